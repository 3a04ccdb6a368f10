#include "actors/ddp/ddp_core.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "actors/ddp/agreement.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

/// By their names in the state dict; a tensor that is there twice by its first name.
std::vector<NamedTensor> once_each(const torch::OrderedDict<std::string, torch::Tensor>& named) {
  std::vector<NamedTensor> found;
  std::unordered_set<const void*> seen;
  for (const auto& item : named) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      found.push_back({item.key(), item.value()});
  }
  return found;
}

void check(const std::shared_ptr<torch::nn::Module>& module,
           const std::shared_ptr<collectives::ProcessGroup>& group, const DdpOptions& options) {
  const auto refuse = [](std::string why, std::string todo) {
    throw BadConfig("cannot wrap the module", std::move(why), std::move(todo));
  };
  if (!module) refuse("it is null", "make one");
  if (!group) refuse("there is no group", "call init_process_group");
  if (group->facts().device.kind != collectives::DeviceKind::kCpu)
    refuse("the group is of GPUs, and modules are trained on the CPU", "use the backend native, gloo or mpi");
  const auto& leaves = group->facts().leaves;
  if (std::any_of(leaves.begin(), leaves.end(), [](const auto& interval) { return interval.size() != 1; }))
    refuse("the group has logical ranks", "use a group of init_process_group, or train::run");
  if (options.bucket_cap_mb < 1 || options.first_bucket_cap_mb < 1)
    refuse("a bucket's cap is 0 MiB", "give at least 1");
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
      options_(options),
      parameters_(once_each(module_->named_parameters())),
      buffers_(once_each(module_->named_buffers())),
      pack_(buffers_),
      packed_(pack_.size_bytes()) {
  for (const NamedTensor& parameter : parameters_) reduced_.push_back(parameter.tensor.requires_grad());
  reduced_parameters(parameters_,
                     torch::kCPU);  // what this rank alone has wrong is said before anybody waits
  if (std::find(reduced_.begin(), reduced_.end(), true) == reduced_.end()) {
    throw BadConfig("cannot wrap the module", "none of its parameters requires a gradient",
                    "use the module as it is");
  }
  check_agreement(*group_, facts_of(parameters_, buffers_, options_));
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
  if (std::exchange(has_hook_, true)) {
    throw BadConfig("cannot register a comm hook", "there is one already",
                    "register one, before the first step");
  }
  reducer_->set_hook(std::move(hook));
}

std::vector<std::vector<std::string>> DdpCore::buckets() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : reducer_->buckets()) {
    names.emplace_back();
    for (const Bucket::Member& member : bucket.members)
      names.back().push_back(reducer_->parameters()[member.item].name);
  }
  return names;
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

void DdpCore::before_forward() {
  check_parameters();
  if (const ReducedParameter* lost = reducer_->lost_parameter()) {
    throw BadConfig(
        "parameter " + lost->name + " is not reduced",
        "its data were replaced after the module was wrapped, as torch::load and to() do",
        "load and convert before wrapping, or wrap the module again; copy_ into a parameter is fine");
  }
  if (!buffers_due_ || !options_.broadcast_buffers || packed_.empty()) return;
  share_buffers(joining_ ? meet(Event::kBuffers).highest : 0);
}

void DdpCore::after_forward() {
  const bool trains = torch::GradMode::is_enabled();
  buffers_due_ = trains && require_sync_;
  if (trains) reducer_->set_synchronized(require_sync_);
}

void DdpCore::share_buffers(int root) {
  if (group_->size() == 1) return;
  if (group_->rank() == root) pack_.save(packed_);
  const std::span bytes(reinterpret_cast<std::uint8_t*>(packed_.data()), packed_.size());
  group_->broadcast(bytes, root)->wait();
  if (group_->rank() != root) pack_.restore(packed_);
}

/// Joining, every event of a rank that has input is met by all: the others do nothing but follow.
DdpCore::Presence DdpCore::meet(Event mine) {
  const auto word = static_cast<std::int32_t>(mine);
  std::vector<std::int32_t> words(static_cast<std::size_t>(group_->size()));
  group_->all_gather(std::span(&word, 1), words)->wait();
  Presence there;
  there.lowest = group_->size();
  for (int rank = 0; rank < group_->size(); ++rank) {
    const auto event = static_cast<Event>(words[static_cast<std::size_t>(rank)]);
    if (event == Event::kDone) continue;
    ++there.active;
    there.lowest = std::min(there.lowest, rank);
    there.highest = rank;
    there.event = event;
  }
  if (there.active > 0) last_active_ = there.highest;
  if (join_options_.throw_on_early_termination && there.active > 0 && there.active < group_->size()) {
    throw EarlyTermination(
        "a rank has no input left",
        std::to_string(there.active) + " of " + std::to_string(group_->size()) + " ranks have some",
        "give every rank as many batches, or leave throw_on_early_termination out");
  }
  return there;
}

void DdpCore::shadow() {
  for (;;) {
    const Presence there = meet(Event::kDone);
    if (there.active == 0) return;
    if (there.event == Event::kBuffers) share_buffers(there.highest);
    if (there.event == Event::kBackward) {
      const bool all = join_options_.divide_by_initial_world_size;
      reducer_->shadow_backward({all ? group_->size() : there.active, there.lowest});
    }
  }
}

void DdpCore::join(const std::function<void()>& body, const JoinOptions& options) {
  if (joining_) throw BadConfig("cannot join", "the module is in a join", "end that one first");
  joining_ = true;
  join_options_ = options;
  last_active_ = 0;
  reducer_->set_turns([this] {
    const Presence there = meet(Event::kBackward);
    const bool all = join_options_.divide_by_initial_world_size;
    return BucketReducer::Turn{all ? group_->size() : there.active, there.lowest};
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
