#include "actors/ddp/ddp_core.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "actors/ddp/agreement.hpp"
#include "actors/ddp/of_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

/// "rank 0 in forward 3", or for a forward without gradients what came before it.
std::string place_of(int rank, const BufferSender& sender) {
  return "rank " + std::to_string(rank) +
         (sender.trains != 0 ? " in" : " in a forward without gradients after") + " forward " +
         std::to_string(sender.count.begun);
}

void check(const std::shared_ptr<torch::nn::Module>& module,
           const std::shared_ptr<collectives::ProcessGroup>& group, const DdpOptions& options) {
  check_wrappable(module, group);
  if (options.bucket_cap_mb < 1 || options.first_bucket_cap_mb < 1)
    throw BadConfig("cannot wrap the module", "a bucket's cap is 0 MiB", "give at least 1");
}

std::vector<Fact> facts_of(const std::vector<NamedTensor>& parameters,
                           const std::vector<NamedTensor>& buffers, const DdpOptions& options) {
  std::vector<Fact> facts;
  const auto option = [&](const char* name, std::size_t value) {
    facts.push_back({std::string("option ") + name, std::to_string(value)});
  };
  option("bucket_cap_mb", options.bucket_cap_mb);
  option("first_bucket_cap_mb", options.first_bucket_cap_mb);
  option("broadcast_buffers", options.broadcast_buffers ? 1 : 0);
  option("find_unused_parameters", options.find_unused_parameters ? 1 : 0);
  option("static_graph", options.static_graph ? 1 : 0);
  option("gradient_as_bucket_view", options.gradient_as_bucket_view ? 1 : 0);
  option("init_sync", options.init_sync ? 1 : 0);
  for (const NamedTensor& parameter : parameters) facts.push_back(fact_of("parameter", parameter));
  for (const NamedTensor& buffer : buffers) facts.push_back(fact_of("buffer", buffer));
  return facts;
}

}  // namespace

DdpCore::DdpCore(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<collectives::ProcessGroup> group,
                 const DdpOptions& options)
    : module_((check(module, group, options), std::move(module))),
      group_(std::move(group)),
      host_(group_->host_group()),
      options_(options),
      parameters_(once_each(module_->named_parameters())),
      buffers_(once_each(module_->named_buffers())),
      wrapped_((check_devices(parameters_, buffers_, *group_), parameters_)),
      forwards_(of_group<ForwardCount>(group_)),
      streams_(device_of(*group_)),
      pack_(buffers_, device_of(*group_)),
      packed_(torch::empty({static_cast<std::int64_t>(pack_.size_bytes() + sizeof(BufferSender))},
                           torch::TensorOptions(torch::kUInt8).device(device_of(*group_)))) {
  for (const NamedTensor& parameter : parameters_) reduced_.push_back(parameter.tensor.requires_grad());
  // What this rank alone has wrong is said before anybody waits.
  (void)reduced_parameters(parameters_, device_of(*group_));
  if (std::find(reduced_.begin(), reduced_.end(), true) == reduced_.end()) {
    throw BadConfig("cannot wrap the module", "none of its parameters requires a gradient",
                    "use the module as it is");
  }
  check_agreement(host_, facts_of(parameters_, buffers_, options_));
  if (options_.init_sync) {
    std::vector<torch::Tensor> all;
    for (const NamedTensor& parameter : parameters_) all.push_back(parameter.tensor);
    for (const NamedTensor& buffer : buffers_) all.push_back(buffer.tensor);
    broadcast_tensors(*group_, all, 0);
  }
  BucketReducerOptions reducer;
  reducer.buckets = {options_.bucket_cap_mb << 20, options_.first_bucket_cap_mb << 20};
  reducer.find_unused_parameters = options_.find_unused_parameters;
  reducer.static_graph = options_.static_graph;
  reducer.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  reducer_ = std::make_unique<BucketReducer>(parameters_, group_, reducer);
}

void DdpCore::register_comm_hook(CommHook hook) {
  const char* why = !hook                  ? "it is null"
                    : reducer_->has_hook() ? "there is one already"
                    : has_begun_           ? "a forward began already"
                                           : nullptr;
  if (why != nullptr)
    throw BadConfig("cannot register a comm hook", why, "register one, before the first forward");
  take_hook(hook);
  reducer_->set_hook(std::move(hook));
}

std::vector<std::vector<std::string>> DdpCore::buckets() const {
  return names_of(reducer_->buckets(), reducer_->parameters());
}

/// A parameter that came or was made to train after wrapping would be trained apart on every rank.
void DdpCore::check_parameters() const {
  std::size_t at = 0;
  const auto refuse = [](const std::string& name, const char* why) {
    throw BadConfig("parameter " + name + " is not reduced", why, "wrap the module again");
  };
  std::vector<NamedTensor> now;
  const std::vector<torch::Tensor> all = module_->parameters();
  if (all.size() >= parameters_.size()) {
    for (const torch::Tensor& tensor : all) {
      if (at < parameters_.size() && tensor.is_same(parameters_[at].tensor)) {
        if (tensor.requires_grad() && !reduced_[at])
          refuse(parameters_[at].name, "it did not require a gradient when the module was wrapped");
        ++at;
      } else if (std::none_of(parameters_.begin(), parameters_.end(),
                              [&](const NamedTensor& known) { return known.tensor.is_same(tensor); })) {
        now = once_each(module_->named_parameters());
        break;
      }
    }
    if (at == parameters_.size() && now.empty()) return;
  }
  now = once_each(module_->named_parameters());
  for (const NamedTensor& parameter : now) {
    if (std::none_of(parameters_.begin(), parameters_.end(),
                     [&](const NamedTensor& known) { return known.tensor.is_same(parameter.tensor); }))
      refuse(parameter.name, "it was added or replaced after the module was wrapped");
  }
  for (const NamedTensor& known : parameters_) {
    if (std::none_of(now.begin(), now.end(),
                     [&](const NamedTensor& parameter) { return known.tensor.is_same(parameter.tensor); }))
      refuse(known.name, "it was removed after the module was wrapped");
  }
}

/// A buffer that came after wrapping would stay apart on every rank.
void DdpCore::check_buffers() const {
  if (!options_.broadcast_buffers) return;
  std::size_t at = 0;  // as a rule each is where it was
  bool as_it_was = true;
  for (const torch::Tensor& tensor : module_->buffers()) {
    if (!tensor.defined()) continue;
    as_it_was = as_it_was && at < buffers_.size() && tensor.is_same(buffers_[at].tensor);
    ++at;
  }
  if (as_it_was) return;
  for (const NamedTensor& buffer : once_each(module_->named_buffers())) {
    if (std::any_of(buffers_.begin(), buffers_.end(),
                    [&](const NamedTensor& known) { return known.tensor.is_same(buffer.tensor); }))
      continue;
    throw BadConfig("buffer " + buffer.name + " is not broadcast",
                    "it was added or replaced after the module was wrapped", "wrap the module again");
  }
}

void DdpCore::before_forward() {
  has_begun_ = true;
  const auto unreduced = reducer_->unreduced();
  if (torch::GradMode::is_enabled()) {
    ++forwards_->begun;
    if (!require_sync_) ++forwards_->in_no_sync;
    if (require_sync_) reducer_->begin_forward(*forwards_);
  }
  check_parameters();
  check_buffers();
  if (const ReducedParameter* lost = reducer_->lost_parameter()) {
    throw BadConfig(
        "parameter " + lost->name + " is not reduced",
        "its data were replaced after the module was wrapped, as torch::load and to() do",
        "load and convert before wrapping, or wrap the module again; copy_ into a parameter is fine");
  }
  if (!last_reduces_ || !options_.broadcast_buffers || pack_.size_bytes() == 0) return;
  try {
    share_buffers(joining_ ? meet(Event::kBuffers).highest : 0, /*shadows=*/false);
  } catch (const Error& error) {
    const bool is_over = error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kTimeout;
    if (!unreduced || !is_over) throw;
    ErrorInfo info = error.info();
    info.why += "; if the others are in the backward of forward " + std::to_string(*unreduced) + ", rank " +
                std::to_string(group_->rank()) + " ran none";
    throw_error(std::move(info));
  }
}

void DdpCore::after_forward() {
  const bool trains = torch::GradMode::is_enabled();
  last_reduces_ = trains && require_sync_;
  if (trains) reducer_->set_synchronized(require_sync_);
}

void DdpCore::backward(const torch::Tensor& loss_sum, double weight) {
  const auto refuse = [](const std::string& why, const char* todo) {
    throw BadConfig("cannot run a backward with a weight", why, todo);
  };
  if (!(weight >= 0) || !std::isfinite(weight))
    refuse("it is " + std::to_string(weight), "give what the loss is a sum over: 0 or more");
  if (reducer_->has_hook()) refuse("there is a comm hook, which averages", "use one or the other");
  reducer_->weigh(weight, [&] { loss_sum.backward(); });
}

/// With the buffers goes the root's forward: a rank that is in another one ran a forward alone. It goes
/// behind them, or over the host's group, before anybody waits for the device. `shadows`: this rank is in
/// none.
void DdpCore::share_buffers(int root, bool shadows) {
  if (group_->size() == 1) return;
  const bool is_root = group_->rank() == root;
  const bool apart = &host_ != group_.get();
  const BufferSender mine{*forwards_, torch::GradMode::is_enabled() ? 1U : 0U};
  BufferSender its = mine;
  torch::Tensor pack = packed_.narrow(0, 0, static_cast<std::int64_t>(pack_.size_bytes()));
  if (apart) {
    host_.broadcast(std::span(reinterpret_cast<std::uint8_t*>(&its), sizeof its), root)->wait();
    check_forward(root, its, mine, shadows);
  }
  streams_.on_default([&] {
    auto* behind = apart ? nullptr : packed_.data_ptr<std::uint8_t>() + pack_.size_bytes();
    if (is_root) {
      pack_.save(pack);
      if (!apart) std::memcpy(behind, &mine, sizeof mine);
    }
    broadcast_tensor(*group_, apart ? pack : packed_, root);
    if (is_root) return;
    if (!apart) {
      std::memcpy(&its, behind, sizeof its);
      check_forward(root, its, mine, shadows);
    }
    pack_.restore(pack);
  });
}

void DdpCore::check_forward(int root, const BufferSender& its, const BufferSender& mine, bool shadows) {
  if (group_->rank() == root || shadows || its.count.begun == mine.count.begun) return;
  throw out_of_step(*group_, place_of(root, its) + ", " + place_of(group_->rank(), mine),
                    "run as many forwards on every rank, and evaluate with the bare module");
}

/// Joining, every event of a rank that has input is met by all: the others do nothing but follow.
DdpCore::Presence DdpCore::meet(Event mine) {
  const std::array<std::uint64_t, 3> words{static_cast<std::uint64_t>(mine), forwards_->begun,
                                           forwards_->in_no_sync};
  std::vector<std::uint64_t> all(words.size() * static_cast<std::size_t>(group_->size()));
  host_.all_gather(words, all)->wait();
  Presence there;
  there.lowest = group_->size();
  std::vector<ForwardCount> forwards;
  for (int rank = 0; rank < group_->size(); ++rank) {
    const auto its = std::span(all).subspan(words.size() * static_cast<std::size_t>(rank), words.size());
    const auto event = static_cast<Event>(its[0]);
    const ForwardCount count{its[1], its[2]};
    there.furthest = {std::max(there.furthest.begun, count.begun),
                      std::max(there.furthest.in_no_sync, count.in_no_sync)};
    forwards.push_back(event == Event::kDone ? ForwardCount{} : count);
    if (event == Event::kDone) continue;
    ++there.active;
    there.lowest = std::min(there.lowest, rank);
    there.highest = rank;
    there.event = event;
  }
  check_in_step(*group_, forwards);
  if (there.active > 0) last_active_ = there.highest;
  if (join_options_.throw_on_early_termination && there.active > 0 && there.active < group_->size()) {
    *forwards_ = there.furthest;
    throw EarlyTermination(
        "a rank has no input left",
        std::to_string(there.active) + " of " + std::to_string(group_->size()) + " ranks have some",
        "give every rank as many batches, or leave throw_on_early_termination out");
  }
  return there;
}

BucketReducer::Turn DdpCore::turn_of(const Presence& there) const {
  const bool all = join_options_.divide_by_initial_world_size;
  return {all ? group_->size() : there.active, there.lowest, there.event == Event::kWeightedBackward};
}

void DdpCore::shadow() {
  for (;;) {
    const Presence there = meet(Event::kDone);
    if (there.active == 0) {
      *forwards_ = there.furthest;
      return;
    }
    if (there.event == Event::kBuffers) {
      share_buffers(there.highest, /*shadows=*/true);
    } else {
      reducer_->shadow_backward(turn_of(there));
    }
  }
}

void DdpCore::join(const std::function<void()>& body, const JoinOptions& options) {
  if (joining_) throw BadConfig("cannot join", "the module is in a join", "end that one first");
  joining_ = true;
  join_options_ = options;
  last_active_ = 0;
  reducer_->set_turns([this](bool weighted) {
    return turn_of(meet(weighted ? Event::kWeightedBackward : Event::kBackward));
  });
  const auto leave = [this] {
    joining_ = false;
    reducer_->set_turns(nullptr);
  };
  try {
    body();
    shadow();
    // What ran longest is what all go on with.
    std::vector<torch::Tensor> all;
    for (const NamedTensor& parameter : parameters_) all.push_back(parameter.tensor);
    for (const NamedTensor& buffer : buffers_) all.push_back(buffer.tensor);
    broadcast_tensors(*group_, all, last_active_);
    leave();
  } catch (const EarlyTermination&) {
    leave();
    throw;
  } catch (const CollectiveAborted&) {
    leave();
    throw;
  } catch (const std::exception& error) {
    leave();
    group_->abort("rank " + std::to_string(group_->rank()) + " left a join: " + error.what());
    throw;
  }
}

}  // namespace troupe::train
