#include "actors/train/reducer.hpp"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/data/torch.hpp"
#include "actors/train/model.hpp"
#include "actors/train/torch_compat.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

using collectives::DType;
using collectives::LeafInterval;
using collectives::ReduceOp;

struct Reducer::Parameter {
  std::string name;
  torch::Tensor tensor;
  GradNode accumulator;  ///< kept alive, or the graph would make an unhooked one
  std::uintptr_t hook = 0;
  std::size_t bucket = 0;
  std::size_t member = 0;
  bool seen = false;  ///< its gradient of this leaf is in
};

struct Reducer::BucketState {
  collectives::TreeBuffer tree;
  std::vector<torch::Tensor> arrays;              ///< whole arrays: partials, then scratch
  std::vector<std::vector<torch::Tensor>> views;  ///< [array][member], shaped as the parameter
  std::size_t pending = 0;                        ///< members whose gradient of the last leaf is not in yet
  std::shared_ptr<collectives::Work> work;
};

struct Reducer::Hook final : torch::autograd::FunctionPostHook {
  Hook(Reducer& owner, std::size_t position) : reducer(owner), index(position) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    reducer.gradient_ready(index);
    return outputs;
  }
  Reducer& reducer;
  std::size_t index;
};

namespace {

DType reducible_dtype(const NamedTensor& parameter) {
  if (!parameter.tensor.device().is_cpu()) {
    throw BadConfig("parameter " + parameter.name + " cannot be reduced", "it is not on the CPU",
                    "keep the model on the CPU");
  }
  switch (parameter.tensor.scalar_type()) {
    case torch::kFloat64:
      return DType::kFloat64;
    case torch::kFloat32:
      return DType::kFloat32;
    case torch::kFloat16:
      return DType::kFloat16;
    case torch::kBFloat16:
      return DType::kBFloat16;
    default:
      throw BadConfig("parameter " + parameter.name + " cannot be reduced", "its type is not a real float",
                      "use float64, float32, float16 or bfloat16, or set requires_grad to false");
  }
}

/// A tensor over `data`, laid out as `like` (autograd's layout contract); `owner` lives as long as the
/// tensor.
torch::Tensor view_like(const torch::Tensor& like, std::byte* data, std::shared_ptr<void> owner) {
  const auto options = torch::TensorOptions().dtype(like.scalar_type());
  auto release = [owner = std::move(owner)](void*) {};
  if (like.is_non_overlapping_and_dense()) {
    return torch::from_blob(data, like.sizes(), like.strides(), std::move(release), options);
  }
  return torch::from_blob(data, like.sizes(), std::move(release), options);
}

bool same_layout(const torch::Tensor& a, const torch::Tensor& b) {
  return a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// Copies with memcpy where the bytes lie the same way: a tenth of the overhead of Tensor::copy_.
void put(const torch::Tensor& into, const torch::Tensor& gradient) {
  if (same_layout(gradient, into)) {
    std::memcpy(into.data_ptr(), gradient.data_ptr(), into.nbytes());
  } else {
    into.copy_(gradient);
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

Reducer::Reducer(const std::vector<NamedTensor>& parameters, int logical_ranks, const ReducerOptions& options)
    : logical_ranks_(logical_ranks),
      options_(options),
      parameters_(reducible(parameters)),
      buckets_(make_buckets(items_of(parameters_), options.buckets)),
      placement_(bytes_of(parameters_)) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t m = 0; m < buckets_[b].members.size(); ++m) {
      Parameter& parameter = parameters_[buckets_[b].members[m].item];
      parameter.bucket = b;
      parameter.member = m;
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<Hook>(*this, i));
  }
}

std::vector<Reducer::Parameter> Reducer::reducible(const std::vector<NamedTensor>& parameters) {
  std::vector<Parameter> found;
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    reducible_dtype(parameter);
    found.push_back({parameter.name, parameter.tensor, {}, 0, 0, 0, false});
  }
  return found;
}

std::vector<BucketItem> Reducer::items_of(const std::vector<Parameter>& parameters) {
  std::vector<BucketItem> items;
  items.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    items.push_back({static_cast<std::size_t>(parameter.tensor.numel()),
                     reducible_dtype({parameter.name, parameter.tensor})});
  }
  return items;
}

std::vector<std::size_t> Reducer::bytes_of(const std::vector<Parameter>& parameters) {
  std::vector<std::size_t> bytes;
  bytes.reserve(parameters.size());
  for (const Parameter& parameter : parameters) bytes.push_back(parameter.tensor.nbytes());
  return bytes;
}

Reducer::~Reducer() {
  detach();
  for (Parameter& parameter : parameters_) parameter.accumulator->del_post_hook(parameter.hook);
}

std::vector<Reducer::Allocation> Reducer::allocations() const {
  std::vector<Allocation> wanted;
  for (const Bucket& bucket : buckets_) wanted.push_back({bucket.count, bucket.dtype});
  if (options_.allow_unused) wanted.push_back({parameters_.size(), DType::kInt32});
  return wanted;
}

void Reducer::attach(std::shared_ptr<collectives::ProcessGroup> group) {
  detach();
  const LeafInterval interval = group->leaves();
  if (interval.size() < 1 || interval.end > logical_ranks_) {
    throw BadConfig("this rank hosts no leaf of the job",
                    "the group gives it leaves [" + std::to_string(interval.begin) + ", " +
                        std::to_string(interval.end) + ") of " + std::to_string(logical_ranks_),
                    "start at most as many trainers as there are logical ranks");
  }
  schedule_ = make_fold_schedule(interval, logical_ranks_);
  group_ = std::move(group);
  for (const Bucket& bucket : buckets_) states_.push_back(allocate(bucket));
  for (int array = 0; array < schedule_.partials + schedule_.scratch; ++array) {
    std::vector<GradientPlacement::Slot> slots;
    for (const Parameter& parameter : parameters_) {
      const BucketState& bucket = states_[parameter.bucket];
      // The view keeps the array's memory, and the group behind it.
      auto view =
          std::make_shared<torch::Tensor>(bucket.views[static_cast<std::size_t>(array)][parameter.member]);
      void* data = view->data_ptr();
      slots.push_back({data, std::move(view)});
    }
    slots_.push_back(std::move(slots));
  }
  if (options_.allow_unused) used_tree_ = group_->allocate_tree(parameters_.size(), DType::kInt32);
}

/// The arrays of a bucket: the group's partials, then scratch of our own, with a view for each parameter in
/// each.
Reducer::BucketState Reducer::allocate(const Bucket& bucket) {
  BucketState state;
  state.tree = group_->allocate_tree(bucket.count, bucket.dtype);
  TROUPE_ASSERT(static_cast<int>(state.tree.partials.size()) == schedule_.partials,
                "the group has one partial for each canonical node");
  const auto options = torch::TensorOptions().dtype(data::torch_dtype(bucket.dtype));
  const auto count = static_cast<std::int64_t>(bucket.count);
  for (int array = 0; array < schedule_.partials + schedule_.scratch; ++array) {
    torch::Tensor whole;
    std::shared_ptr<void> owner = group_;
    if (array < schedule_.partials) {
      whole = torch::from_blob(
          state.tree.partials[array], {count}, [owner](void*) {}, options);
    } else {
      whole = torch::empty({count}, options);  // LibTorch's CPU allocator aligns to 64 bytes
      owner = std::make_shared<torch::Tensor>(whole);
    }
    whole.zero_();  // padding is summed too, and must be no denormal or NaN
    auto* base = static_cast<std::byte*>(whole.data_ptr());
    const std::size_t element_bytes = collectives::element_size(bucket.dtype);
    std::vector<torch::Tensor> views;
    for (const Bucket::Member& member : bucket.members) {
      views.push_back(
          view_like(parameters_[member.item].tensor, base + member.offset * element_bytes, owner));
    }
    state.arrays.push_back(std::move(whole));
    state.views.push_back(std::move(views));
  }
  return state;
}

void Reducer::detach() {
  abandon();
  slots_.clear();
  states_.clear();
  used_tree_ = {};
  group_.reset();
}

void Reducer::begin_step() {
  TROUPE_ASSERT(group_, "a step needs a group");
  clear_gradients();
  leaf_ = 0;
  next_bucket_ = 0;
  failure_ = nullptr;
  for (BucketState& state : states_) state.work.reset();
  for (const std::byte* partial : used_tree_.partials) {
    std::memset(const_cast<std::byte*>(partial), 0, used_tree_.count * sizeof(std::int32_t));
  }
}

void Reducer::begin_leaf() {
  throw_if_aborted();
  TROUPE_ASSERT(leaf_ < schedule_.leaves.size(), "a step has as many leaves as the rank hosts");
  for (Parameter& parameter : parameters_) parameter.seen = false;
  for (std::size_t b = 0; b < states_.size(); ++b) states_[b].pending = buckets_[b].members.size();
  in_leaf_ = true;
}

void Reducer::begin_backward() {
  throw_if_aborted();
  // A gradient that is added to another needs memory of its own.
  if (options_.place_gradients && !current().add) {
    placement_.begin_backward(slots_[static_cast<std::size_t>(current().array)]);
  }
}

const LeafFold& Reducer::current() const {
  return schedule_.leaves[leaf_];
}

bool Reducer::is_last_leaf() const {
  return leaf_ + 1 == schedule_.leaves.size();
}

void Reducer::throw_if_aborted() const {
  if (std::string reason = group_->abort_reason(); !reason.empty()) {
    throw_error({ErrorCode::kAborted, "the process group was aborted", std::move(reason),
                 "form the next generation"});
  }
}

void Reducer::gradient_ready(std::size_t index) {
  if (!in_leaf_) return;  // a backward that is none of ours
  try {
    throw_if_aborted();
    Parameter& parameter = parameters_[index];
    if (!parameter.tensor.grad().defined()) return;
    torch::Tensor gradient = std::move(parameter.tensor.mutable_grad());
    parameter.tensor.mutable_grad() = torch::Tensor();
    take(index, std::move(gradient));
  } catch (...) {
    failure_ = std::current_exception();
    throw;  // ends the backward; autograd may wrap it on the way
  }
}

void Reducer::take(std::size_t index, torch::Tensor gradient) {
  Parameter& parameter = parameters_[index];
  if (parameter.seen || gradient.is_sparse() || gradient.requires_grad()) {
    throw BadConfig("the gradient of " + parameter.name + " cannot be reduced",
                    parameter.seen ? "the loss runs backward more than once" : "it is sparse or has a graph",
                    "return one dense loss; the trainer runs the backward");
  }
  parameter.seen = true;
  const torch::Tensor& into = states_[parameter.bucket].views[current().array][parameter.member];
  if (current().add) {
    into.add_(gradient);
  } else if (placement_.landed(index, gradient) && same_layout(gradient, into)) {
    // Autograd has written it in its place.
  } else if (placement_.occupied(index)) {
    const bool in_slot = gradient.data_ptr() == into.data_ptr();  // in another layout
    deferred_.push_back({index, in_slot ? gradient.clone() : std::move(gradient)});
    return;
  } else {
    put(into, gradient);
  }
  bucket_member_done(parameter);
}

/// The tensors that lived in the slots of these are gone, now that the backward is over.
void Reducer::take_deferred() {
  for (const Deferred& late : deferred_) {
    Parameter& parameter = parameters_[late.index];
    if (placement_.occupied(late.index)) {
      throw BadConfig("the gradient of " + parameter.name + " has no place to go",
                      "a tensor that the backward made is kept and lives there",
                      "keep clones of what a backward makes, or set place_gradients to false");
    }
    put(states_[parameter.bucket].views[current().array][parameter.member], late.gradient);
    bucket_member_done(parameter);
  }
  deferred_.clear();
}

void Reducer::bucket_member_done(Parameter& parameter) {
  --states_[parameter.bucket].pending;
  if (is_last_leaf()) launch_ready_buckets();
}

void Reducer::launch_ready_buckets() {
  while (next_bucket_ < states_.size() && states_[next_bucket_].pending == 0) launch(states_[next_bucket_++]);
}

void Reducer::launch(BucketState& bucket) {
  fold(bucket);
  bucket.work = group_->all_reduce_tree(bucket.tree, ReduceOp::kAvg);
}

void Reducer::fold(BucketState& bucket) {
  for (const collectives::FoldStep& step : current().after) {
    bucket.arrays[step.into].add_(bucket.arrays[step.from]);
  }
}

void Reducer::rethrow_failure() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Reducer::end_leaf() {
  in_leaf_ = false;
  placement_.end_backward();
  rethrow_failure();  // in a backward of the loss's own, which went on
  const torch::NoGradGuard no_grad;
  take_deferred();
  add_missing();
  if (!is_last_leaf()) {
    for (BucketState& bucket : states_) fold(bucket);
  } else if (options_.allow_unused) {
    launch_used();
  }
  ++leaf_;
}

/// What a leaf did not use counts as zeros, which are added like any gradient: x + 0 is not x for a negative
/// zero.
void Reducer::add_missing() {
  std::vector<std::string> missing;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.seen) missing.push_back(parameter.name);
  }
  if (!missing.empty() && !options_.allow_unused) {
    throw BadConfig("parameters without a gradient: " + listed(missing), "the loss does not depend on them",
                    "use them in forward, set requires_grad to false, or set find_unused_parameters");
  }
  if (options_.allow_unused) {
    // Which node counts a use does not matter: only whether the sum over all is zero.
    auto* used = reinterpret_cast<std::int32_t*>(used_tree_.partials.front());
    for (std::size_t i = 0; i < parameters_.size(); ++i) used[i] += parameters_[i].seen ? 1 : 0;
  }
  for (Parameter& parameter : parameters_) {
    if (parameter.seen) continue;
    const torch::Tensor& into = states_[parameter.bucket].views[current().array][parameter.member];
    if (current().add) {
      into.add_(0.0);
    } else {
      into.zero_();
    }
    bucket_member_done(parameter);
  }
}

void Reducer::launch_used() {
  used_work_ = group_->all_reduce_tree(used_tree_, ReduceOp::kSum);
}

void Reducer::finish() {
  TROUPE_ASSERT(leaf_ == schedule_.leaves.size() && next_bucket_ == states_.size(),
                "every leaf of the rank has run");
  for (BucketState& bucket : states_) bucket.work->wait();
  if (used_work_) std::exchange(used_work_, nullptr)->wait();
  const auto* used =
      options_.allow_unused ? reinterpret_cast<const std::int32_t*>(used_tree_.partials.front()) : nullptr;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (used && used[i] == 0) continue;
    parameter.tensor.mutable_grad() = states_[parameter.bucket].views[0][parameter.member];
  }
}

void Reducer::abandon() {
  in_leaf_ = false;
  placement_.end_backward();
  deferred_.clear();
  failure_ = nullptr;
  for (BucketState& state : states_) state.work.reset();
  used_work_.reset();
  clear_gradients();
}

void Reducer::clear_gradients() {
  for (Parameter& parameter : parameters_) parameter.tensor.mutable_grad() = torch::Tensor();
}

}  // namespace troupe::train
