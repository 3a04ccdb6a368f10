#include "tests/actors/ddp/support.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <sstream>
#include <stdexcept>

#include "runtime/core/error.hpp"
#include "tests/collectives/ranks.hpp"

namespace troupe::train::testing {

std::vector<std::string> fork_ddp(int ranks, const DdpBody& body, std::size_t data_bytes) {
  torch::set_num_threads(1);  // so that a forked child has what it needs
  collectives::testing::Layout layout;
  layout.data_bytes = data_bytes;
  return collectives::testing::run_forked(collectives::testing::options_of(ranks, layout), body);
}

std::string thrown_by(const std::function<void()>& body) {
  try {
    body();
    return "nothing thrown";
  } catch (const BadConfig& error) {
    return std::string("BadConfig: ") + error.what();
  } catch (const BadInput& error) {
    return std::string("BadInput: ") + error.what();
  } catch (const TaskFailed& error) {
    return std::string("TaskFailed: ") + error.what();
  } catch (const CollectiveAborted& error) {
    return std::string("CollectiveAborted: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("other: ") + error.what();
  }
}

PairImpl::PairImpl(int width) : first(width, width), second(width, width) {
  register_module("first", first);
  register_module("second", second);
  steps = register_buffer("steps", torch::zeros({1}));
}

torch::Tensor PairImpl::forward(torch::Tensor x) {
  steps.add_(1);
  if (swapped) return first->forward(torch::tanh(second->forward(x)));
  x = torch::tanh(first->forward(x));
  return with_second ? second->forward(x) : x;
}

torch::Tensor input(int rank, int width) {
  return torch::sin(torch::arange(4 * width) * (1.0 + rank)).reshape({4, width});
}

void forget_gradients(torch::nn::Module& net) {
  for (auto& parameter : net.parameters()) parameter.mutable_grad() = torch::Tensor();
}

std::string gradients_text(torch::nn::Module& net) {
  std::ostringstream text;
  for (const auto& item : net.named_parameters()) {
    text << item.key();
    if (!item.value().grad().defined()) {
      text << " none";
      continue;
    }
    const torch::Tensor grad = item.value().grad().contiguous();
    std::uint64_t hash = 14695981039346656037ULL;
    const auto* bytes = static_cast<const unsigned char*>(grad.data_ptr());
    for (std::size_t i = 0; i < grad.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
    text << ' ' << std::hex << hash << ' ';
  }
  return text.str();
}

void check_alike(const std::vector<std::string>& said) {
  for (const std::string& text : said) {
    CHECK_THAT(text, !Catch::StartsWith("threw") && Catch::StartsWith("first.weight"));
    CHECK(text == said[0]);
  }
}

torch::Tensor Thrower::forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
  return x.clone();
}

torch::autograd::variable_list Thrower::backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
  throw std::runtime_error("no gradient today");
}

}  // namespace troupe::train::testing
