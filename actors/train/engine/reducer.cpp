#include "actors/train/engine/reducer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/data/torch.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

using collectives::DType;
using collectives::LeafInterval;
using collectives::ReduceOp;

namespace {

constexpr const char* kBackwardTwice = "the loss runs backward more than once";

[[noreturn]] void cannot_reduce(const std::string& parameter, const char* why) {
  throw BadConfig("the gradient of " + parameter + " cannot be reduced", why,
                  "return one dense loss; the trainer runs the backward");
}

}  // namespace

struct Reducer::BucketState {
  collectives::TreeBuffer tree;
  std::vector<torch::Tensor> arrays;              ///< whole arrays: partials, then scratch
  std::vector<std::vector<torch::Tensor>> views;  ///< [array][member], shaped as the parameter
  std::shared_ptr<collectives::Work> work;
  // Through the host.
  std::vector<torch::Tensor> host;  ///< the group's partials
  bool launched = false;
  DeviceMark copied;  ///< behind it `host` has this rank's partials
};

Reducer::Reducer(const std::vector<NamedTensor>& parameters, int logical_ranks, const ReducerOptions& options)
    : logical_ranks_(logical_ranks),
      options_(options),
      parameters_(reduced_parameters(parameters, options.device)),
      buckets_(make_buckets(bucket_items(parameters_), options.buckets)),
      writer_(parameters_, options.place_gradients && options.device.is_cpu()),
      seen_(parameters_.size()),
      streams_(options.streams.value_or(options.device)),
      hooks_(parameters_, [this](std::size_t index) { gradient_ready(index); }) {
  place_in(buckets_, parameters_);
}

Reducer::~Reducer() {
  detach();
}

std::vector<Reducer::Allocation> Reducer::allocations(bool gradients) const {
  std::vector<Allocation> wanted;
  if (gradients) {
    for (const Bucket& bucket : buckets_) wanted.push_back({bucket.count, bucket.dtype});
  }
  if (options_.allow_unused) wanted.push_back({parameters_.size(), DType::kInt32});
  return wanted;
}

void Reducer::attach(std::shared_ptr<collectives::ProcessGroup> group,
                     std::shared_ptr<collectives::ProcessGroup> gradients) {
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
  gradients_ = gradients ? std::move(gradients) : group_;
  const bool of_host = gradients_->facts().device.kind == collectives::DeviceKind::kCpu;
  through_host_ = options_.through_host || (of_host && !options_.device.is_cpu());
  for (const Bucket& bucket : buckets_) states_.push_back(allocate(bucket));
  for (int array = 0; array < schedule_.partials + schedule_.scratch; ++array) {
    std::vector<GradientPlacement::Slot> slots;
    for (const ReducedParameter& parameter : parameters_) {
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
  state.tree = gradients_->allocate_tree(bucket.count, bucket.dtype);
  TROUPE_ASSERT(static_cast<int>(state.tree.partials.size()) == schedule_.partials,
                "the group has one partial for each canonical node");
  const auto on_host = torch::TensorOptions().dtype(data::torch_dtype(bucket.dtype));
  const auto options = on_host.device(options_.device);
  const auto count = static_cast<std::int64_t>(bucket.count);
  for (int array = 0; array < schedule_.partials + schedule_.scratch; ++array) {
    torch::Tensor whole;
    std::shared_ptr<void> owner = gradients_;
    if (array < schedule_.partials && through_host_) {
      state.host.push_back(torch::from_blob(
          state.tree.partials[array], {count}, [owner](void*) {}, on_host));
      state.host.back().zero_();
    }
    if (array < schedule_.partials && !through_host_) {
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
  gradients_.reset();
  group_.reset();
}

void Reducer::begin_step() {
  TROUPE_ASSERT(group_, "a step needs a group");
  clear_gradients();
  leaf_ = 0;
  failure_ = nullptr;
  for (BucketState& state : states_) {
    state.work.reset();
    state.launched = false;
  }
  reducing_ = 0;
  for (const std::byte* partial : used_tree_.partials) {
    std::memset(const_cast<std::byte*>(partial), 0, used_tree_.count * sizeof(std::int32_t));
  }
}

void Reducer::begin_leaf() {
  group_->throw_if_aborted();
  TROUPE_ASSERT(leaf_ < schedule_.leaves.size(), "a step has as many leaves as the rank hosts");
  seen_.assign(parameters_.size(), false);
  order_.begin(buckets_);
  in_leaf_ = true;
}

void Reducer::begin_backward() {
  group_->throw_if_aborted();
  // A gradient that is added to another needs memory of its own.
  if (!current().add) writer_.begin(slots_[static_cast<std::size_t>(current().array)]);
}

const LeafFold& Reducer::current() const {
  return schedule_.leaves[leaf_];
}

const torch::Tensor& Reducer::slot(std::size_t index) const {
  const ReducedParameter& parameter = parameters_[index];
  return states_[parameter.bucket].views[static_cast<std::size_t>(current().array)][parameter.member];
}

bool Reducer::is_last_leaf() const {
  return leaf_ + 1 == schedule_.leaves.size();
}

void Reducer::gradient_ready(std::size_t index) {
  if (!in_leaf_ && aside_ == nullptr) return;  // a backward that is none of ours
  try {
    group_->throw_if_aborted();
    ReducedParameter& parameter = parameters_[index];
    if (!parameter.tensor.grad().defined()) return;
    torch::Tensor gradient = std::move(parameter.tensor.mutable_grad());
    parameter.tensor.mutable_grad() = torch::Tensor();
    if (aside_ == nullptr) {
      take(index, std::move(gradient));
    } else {
      if ((*aside_)[index].defined()) cannot_reduce(parameter.name, kBackwardTwice);
      (*aside_)[index] = std::move(gradient);
    }
  } catch (...) {
    failure_ = std::current_exception();
    throw;  // ends the backward; autograd may wrap it on the way
  }
}

void Reducer::take(std::size_t index, torch::Tensor gradient) {
  if (seen_[index] || gradient.is_sparse() || gradient.requires_grad())
    cannot_reduce(parameters_[index].name, seen_[index] ? kBackwardTwice : "it is sparse or has a graph");
  seen_[index] = true;
  const torch::Tensor& into = slot(index);
  if (current().add) {
    into.add_(gradient);
  } else if (!writer_.write(index, std::move(gradient), into)) {
    return;
  }
  bucket_member_done(index);
}

void Reducer::put_aside(std::vector<torch::Tensor>* gradients) {
  if (gradients != nullptr) gradients->resize(parameters_.size());
  aside_ = gradients;
}

void Reducer::take_leaf(std::vector<torch::Tensor>& gradients) {
  TROUPE_ASSERT(aside_ == nullptr, "no backward runs");
  begin_leaf();
  const torch::NoGradGuard no_grad;
  for (std::size_t i = gradients.size(); i-- > 0;) {  // in the order of buckets
    if (gradients[i].defined()) take(i, std::exchange(gradients[i], {}));
  }
  end_leaf();
}

void Reducer::bucket_member_done(std::size_t index) {
  order_.done(parameters_[index].bucket, is_last_leaf(), [this](std::size_t b) { launch(states_[b]); });
}

void Reducer::launch(BucketState& bucket) {
  fold(bucket);
  if (!through_host_) {
    streams_.before_default();
    bucket.work = gradients_->all_reduce_tree(bucket.tree, ReduceOp::kAvg);
    return;
  }
  bucket.copied = streams_.aside_after(streams_.here(), [&] {
    for (std::size_t i = 0; i < bucket.host.size(); ++i)
      bucket.host[i].copy_(bucket.arrays[i], /*non_blocking=*/true);
  });
  bucket.launched = true;
  reduce_copied();
}

/// Has the group reduce what has come to its memory, in the order of buckets.
void Reducer::reduce_copied() {
  while (reducing_ < states_.size() && states_[reducing_].launched && states_[reducing_].copied.reached()) {
    BucketState& bucket = states_[reducing_++];
    bucket.work = gradients_->all_reduce_tree(bucket.tree, ReduceOp::kAvg);
  }
}

/// The means go back to the device, each as soon as it is there; what is computed next runs behind them.
void Reducer::take_back() {
  for (BucketState& bucket : states_) {
    while (bucket.work == nullptr) {
      DeviceStreams::wait(states_[reducing_].copied, [this] { group_->throw_if_aborted(); });
      reduce_copied();
    }
    bucket.work->wait();
    back_ = streams_.aside([&] { bucket.arrays[0].copy_(bucket.host[0], /*non_blocking=*/true); });
  }
  streams_.join(back_);
}

/// The group's memory may go: nothing is on its way from or to it any more. What went wrong on the device is
/// told by whatever asks it next.
void Reducer::await_copies() noexcept {
  try {
    for (const BucketState& bucket : states_) DeviceStreams::wait(bucket.copied, [] {});
    DeviceStreams::wait(back_, [] {});
  } catch (const std::exception&) {
  }
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
  writer_.end();
  rethrow_failure();  // in a backward of the loss's own, which went on
  const torch::NoGradGuard no_grad;
  writer_.take_deferred([this](std::size_t index) -> const torch::Tensor& { return slot(index); },
                        [this](std::size_t index) { bucket_member_done(index); });
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
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!seen_[i]) missing.push_back(parameters_[i].name);
  }
  if (!missing.empty() && !options_.allow_unused) {
    throw BadConfig("parameters without a gradient: " + listed(missing), "the loss does not depend on them",
                    "use them in forward, set requires_grad to false, or set find_unused_parameters");
  }
  if (options_.allow_unused) {
    // Which node counts a use does not matter: only whether the sum over all is zero.
    auto* used = reinterpret_cast<std::int32_t*>(used_tree_.partials.front());
    for (std::size_t i = 0; i < parameters_.size(); ++i) used[i] += seen_[i] ? 1 : 0;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (seen_[i]) continue;
    const torch::Tensor& into = slot(i);
    if (current().add) {
      into.add_(0.0);
    } else {
      into.zero_();
    }
    bucket_member_done(i);
  }
}

void Reducer::launch_used() {
  used_work_ = group_->all_reduce_tree(used_tree_, ReduceOp::kSum);
}

void Reducer::broadcast(torch::Tensor& bytes) {
  const auto device = gradients_->facts().device;
  const bool copies = device.kind == collectives::DeviceKind::kCpu && !bytes.is_cpu();
  const torch::Tensor whole = copies ? bytes.cpu() : bytes;
  if (!copies) streams_.before_default();
  gradients_->broadcast({whole.data_ptr(), whole.nbytes(), DType::kUInt8, device}, 0)
      ->wait_for(Duration::max());
  if (copies) bytes.copy_(whole);
}

void Reducer::finish() {
  TROUPE_ASSERT(leaf_ == schedule_.leaves.size() && order_.all_launched(), "every leaf of the rank has run");
  if (through_host_) {
    take_back();
  } else {
    // On the host, also where a stream could: a step counts as reduced once nothing can go wrong with it.
    for (BucketState& bucket : states_) bucket.work->wait_for(Duration::max());
  }
  if (used_work_) std::exchange(used_work_, nullptr)->wait();
  const auto* used =
      options_.allow_unused ? reinterpret_cast<const std::int32_t*>(used_tree_.partials.front()) : nullptr;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ReducedParameter& parameter = parameters_[i];
    if (used && used[i] == 0) continue;
    parameter.tensor.mutable_grad() = states_[parameter.bucket].views[0][parameter.member];
  }
}

void Reducer::abandon() {
  in_leaf_ = false;
  aside_ = nullptr;
  writer_.end();
  writer_.forget();
  failure_ = nullptr;
  await_copies();
  for (BucketState& state : states_) state.work.reset();
  used_work_.reset();
  clear_gradients();
}

void Reducer::clear_gradients() {
  for (ReducedParameter& parameter : parameters_) parameter.tensor.mutable_grad() = torch::Tensor();
}

}  // namespace troupe::train
