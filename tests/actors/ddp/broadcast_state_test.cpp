#include "actors/ddp/broadcast_state.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>

#include "actors/ddp/optimizer_state.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/ddp/support.hpp"

namespace troupe::train::testing {
namespace {

void step(Pair& net, torch::optim::Optimizer& optimizer, int times) {
  for (int i = 0; i < times; ++i) {
    forget_gradients(*net);
    net->forward(input(i)).square().mean().backward();
    optimizer.step();
  }
}

/// Bits of the parameters, as gradients_text says them.
std::string bits_of(Pair& net) {
  for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = parameter.detach().clone();
  std::string text = gradients_text(*net);
  forget_gradients(*net);
  return text;
}

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

template <class Optimizer, class Options>
Make maker(Options options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

TEST_CASE(
    "one rank's parameters, buffers and optimizer state on every rank: the next steps have the same bits") {
  namespace optim = torch::optim;
  const Make make = GENERATE(maker<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9)),
                             maker<optim::Adam>(optim::AdamOptions(0.1)),
                             maker<optim::AdamW>(optim::AdamWOptions(0.1).amsgrad(true)),
                             maker<optim::RMSprop>(optim::RMSpropOptions(0.1).momentum(0.5).centered(true)),
                             maker<optim::Adagrad>(optim::AdagradOptions(0.1)));
  const auto said = fork_ddp(2, [&](const Group& group) {
    torch::manual_seed(group->rank());
    Pair net;
    const auto optimizer = make(net->parameters());
    if (group->rank() == 1) {
      step(net, *optimizer, 3);
      set_learning_rates(*optimizer, {0.25});
      net->steps.fill_(7);
    }
    broadcast_parameters(*net, *group, 1);
    broadcast_optimizer_state(*optimizer, *group, 1);
    const std::string buffer = std::to_string(net->steps.item<float>());
    step(net, *optimizer, 2);
    return bits_of(net) + buffer + ' ' + std::to_string(learning_rates(*optimizer)[0]);
  });
  check_alike(said);
  CHECK_THAT(said[0], Catch::Contains("7.0") && Catch::EndsWith("0.250000"));
}

TEST_CASE("state that the root does not have is dropped") {
  const auto said = fork_ddp(2, [](const Group& group) {
    torch::manual_seed(1);
    Pair net;
    torch::optim::Adam adam(net->parameters(), 0.1);
    if (group->rank() == 1) step(net, adam, 2);
    broadcast_parameters(net->named_parameters(), *group);
    broadcast_optimizer_state(adam, *group);
    step(net, adam, 1);
    return bits_of(net);
  });
  check_alike(said);
}

TEST_CASE("an object of one rank on every rank") {
  struct Progress {
    int epoch;
    double best;
  };
  const auto said = fork_ddp(3, [](const Group& group) {
    const int rank = group->rank();
    const auto progress = broadcast_object(Progress{rank, 0.5 * rank}, *group, 2);
    const std::string text = broadcast_object(rank == 0 ? std::string("a\0b", 3) : std::string(), *group);
    return std::to_string(progress.epoch) + ' ' + std::to_string(progress.best) + ' ' +
           std::to_string(text.size()) + text.back();
  });
  for (const std::string& text : said) CHECK(text == "2 1.000000 3b");
}

TEST_CASE("broadcasts of what ranks do not have alike are errors on all") {
  const auto said = fork_ddp(2, [](const Group& group) {
    Pair net(group->rank() == 0 ? 8 : 6);
    std::string text = thrown_by([&] { broadcast_parameters(*net, *group); });
    Pair same;
    torch::optim::SGD sgd(same->parameters(), 0.1);
    torch::optim::Adam adam(same->parameters(), 0.1);
    torch::optim::Optimizer& mine = group->rank() == 0 ? static_cast<torch::optim::Optimizer&>(sgd) : adam;
    text += thrown_by([&] { broadcast_optimizer_state(mine, *group); });
    torch::optim::LBFGS lbfgs(same->parameters(), 0.1);
    return text + thrown_by([&] { broadcast_optimizer_state(lbfgs, *group); });
  });
  CHECK(said[0] == said[1]);
  using Catch::Contains;
  CHECK_THAT(said[0], Contains("first.weight: it is Float [8, 8] on rank 0 and Float [6, 6] on rank 1") &&
                          Contains("optimizer: it is SGD on rank 0 and Adam on rank 1") &&
                          Contains("it is none of SGD, Adam"));
}

}  // namespace
}  // namespace troupe::train::testing
