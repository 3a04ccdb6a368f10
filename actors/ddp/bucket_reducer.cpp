#include "actors/ddp/bucket_reducer.hpp"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

#include "actors/ddp/kept_for_good.hpp"
#include "actors/ddp/options.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

using collectives::DType;
using collectives::ReduceOp;

namespace {

/// Where gradients are not written by autograd itself: with memory of their own, or not on the CPU.
bool places(const collectives::ProcessGroup& group, const BucketReducerOptions& options) {
  return options.gradient_as_bucket_view && group.facts().device.kind == collectives::DeviceKind::kCpu;
}

/// Bytes of a header behind the first bucket, of the largest dtype where that is not known.
std::size_t header_bytes(const collectives::ProcessGroup& group, DType dtype = DType::kFloat64) {
  return StepHeader::elements(dtype, group.size()) * collectives::element_size(dtype);
}

bool same(const std::vector<Bucket>& a, const std::vector<Bucket>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Bucket& x, const Bucket& y) {
    return std::equal(x.members.begin(), x.members.end(), y.members.begin(), y.members.end(),
                      [](const auto& m, const auto& n) { return m.item == n.item; });
  });
}

}  // namespace

/// A reducer for callbacks of the engine's.
struct BucketReducer::Self {
  explicit Self(BucketReducer* of) : reducer(of) {}
  std::mutex mutex;  ///< held while the reducer ends, or is told of a backward that did
  BucketReducer* reducer;
};

/// One backward, for the engine: its end is the call, or the death of the callback that was never called. On
/// a device it may die in the engine's thread, after the backward has thrown in the caller's.
class BucketReducer::Backward {
 public:
  Backward(std::weak_ptr<Self> self, std::uint64_t number) : self_(std::move(self)), number_(number) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  ~Backward() {
    const auto self = finished_ ? nullptr : self_.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex);
    if (self->reducer != nullptr) self->reducer->interrupted(number_);
  }
  void finish() {
    finished_ = true;
    if (const auto self = self_.lock()) self->reducer->finish_backward();
  }

 private:
  std::weak_ptr<Self> self_;
  std::uint64_t number_;
  bool finished_ = false;
};

BucketReducer::BucketReducer(const std::vector<NamedTensor>& parameters,
                             std::shared_ptr<collectives::ProcessGroup> group, BucketReducerOptions options)
    : group_(std::move(group)),
      host_(group_->host_group()),
      options_(options),
      parameters_(reduced_parameters(parameters, device_of(*group_))),
      buckets_(make_buckets(bucket_items(parameters_), options.buckets)),
      streams_(options.streams.value_or(device_of(*group_))),
      writer_(parameters_, places(*group_, options)),
      memory_(group_, buckets_, has_host_apart() ? 0 : header_bytes(*group_)),
      used_(parameters_.size()),
      anyone_(parameters_.size(), 1),
      unused_(parameters_.size()),
      self_(std::make_shared<Self>(this)),
      hooks_(parameters_, [this](std::size_t index) { gradient_ready(index); }) {
  lay_out();
}

BucketReducer::~BucketReducer() {
  {
    const std::lock_guard lock(self_->mutex);
    self_->reducer = nullptr;
  }
  try {
    leave_launched();
  } catch (const std::exception&) {
    // Of a device that does not answer any more, or of MPI: whoever uses it next is told.
    keep_value_for_good(std::make_pair(std::move(launched_), flat_));
  }
}

/// What a backward launched that failed: a device may still be at its memory.
void BucketReducer::leave_launched() {
  if (!launched_.empty()) group_->await_quiet();
  launched_.clear();
}

/// Views for the buckets that there are.
void BucketReducer::lay_out() {
  const DType first = buckets_.front().dtype;
  BucketViews laid =
      memory_.lay_out(buckets_, parameters_, has_host_apart() ? 0 : header_bytes(*group_, first));
  flat_ = std::move(laid.flat);
  views_ = std::move(laid.views);
  owned_.clear();
  for (const torch::Tensor& view : views_) owned_.push_back(std::make_shared<torch::Tensor>(view));
  if (!has_host_apart()) header_ = StepHeader(laid.behind_first, first, group_->rank(), group_->size());
}

void BucketReducer::watch(const torch::Tensor& output) {
  if (!output.requires_grad() || output.is_leaf()) return;
  output.register_hook([reducer = std::weak_ptr(self_)](const torch::Tensor&) {
    const auto self = reducer.lock();
    if (!self || !self->reducer->through_.expired()) return;
    auto alive = std::make_shared<int>();
    self->reducer->through_ = alive;
    // Dies with the backward, however that ends.
    torch::autograd::Engine::get_default_engine().queue_callback([alive] {});
  });
}

void BucketReducer::weigh(double weight, const std::function<void()>& backward) {
  const std::optional<double> before = std::exchange(weight_, weight_.value_or(0) + weight);
  weighing_ = true;
  try {
    backward();
    weighing_ = false;
    if (weight_ && synchronized_) {  // a reduction would have taken it
      throw BadConfig("a weighted backward was not reduced",
                      "its loss is of no forward of this module through the wrapper",
                      "call backward(loss_sum, weight) with what comes of the wrapper's forward");
    }
  } catch (...) {
    weighing_ = false;
    if (weight_) weight_ = before;  // none: a reduction began, and was given up
    throw;
  }
}

void BucketReducer::gradient_ready(std::size_t index) {
  if (!synchronized_ || (under_way_ == 0 && !due_ && through_.expired())) {
    used_[index] = 1;
    return;
  }
  try {
    const torch::NoGradGuard no_grad;
    if (under_way_ == 0) begin_backward();
    take(index);
  } catch (...) {
    fail();
  }
}

void BucketReducer::begin_backward() {
  auto backward = std::make_shared<Backward>(self_, ++backwards_);
  torch::autograd::Engine::get_default_engine().queue_callback([backward] { backward->finish(); });
  const bool weighted = weight_.has_value();
  if (weighted && !weighing_) {
    throw BadConfig("cannot reduce a backward", "it has no weight, and those before it in no_sync have",
                    "call backward(loss_sum, weight) for each of them");
  }
  begin_buckets(turns_ ? turns_(weighted) : Turn{group_->size(), 0, weighted}, forward_);
  under_way_ = backwards_;
  due_ = false;
  placed_.assign(parameters_.size(), {});
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    had_gradient_[i] = parameters_[i].tensor.grad().defined();
    // A gradient that is added to another needs memory of its own.
    if (!had_gradient_[i]) placed_[i] = {views_[i].data_ptr(), owned_[i]};
  }
  writer_.begin(placed_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (known_ && unused_[i]) fill_missing(i);
  }
}

void BucketReducer::begin_buckets(const Turn& turn, const ForwardCount& told) {
  turn_ = turn;
  told_ = told;
  order_.begin(buckets_);
  leave_launched();
  launched_.assign(buckets_.size(), nullptr);
  seen_.assign(parameters_.size(), false);
  had_gradient_.assign(parameters_.size(), false);
  kept_.assign(parameters_.size(), {});
  arrived_.clear();
}

void BucketReducer::take(std::size_t index) {
  torch::Tensor& gradient = parameters_[index].tensor.mutable_grad();
  if (!gradient.defined()) return;
  const auto refuse = [&](const char* why, const char* todo) {
    throw BadConfig("the gradient of " + parameters_[index].name + " cannot be reduced", why, todo);
  };
  if (seen_[index]) refuse("it came twice in one backward", "run one backward, of the sum of the losses");
  if (gradient.is_sparse()) refuse("it is sparse", "use a dense gradient");
  if (gradient.requires_grad()) refuse("it has a graph of its own", "do not give create_graph to backward()");
  if (known_ && unused_[index]) {
    refuse("the first backward did not use it, and static_graph says that all are alike",
           "leave static_graph out, and set find_unused_parameters");
  }
  seen_[index] = true;
  used_[index] = 1;
  arrived_.push_back(index);
  const torch::Tensor& into = views_[index];
  if (gradient.data_ptr() == into.data_ptr() && same_layout(gradient, into)) {
    // Accumulated there, or autograd has written it in its place.
  } else if (had_gradient_[index] || !options_.gradient_as_bucket_view) {
    put(into, gradient);
    kept_[index] = gradient;
  } else if (!writer_.write(index, std::exchange(gradient, {}), into)) {
    return;
  }
  done(index);
}

void BucketReducer::done(std::size_t index) {
  streams_.before_default();  // what is reduced may have been computed on several streams
  order_.done(parameters_[index].bucket, true, [this](std::size_t bucket) { launch(bucket); });
}

void BucketReducer::launch(std::size_t b) {
  streams_.on_default([&] { hook_ ? launch_hook(b) : launch_sum(b); });
}

/// The forward's counts by themselves: a hook has the bucket alone, and a header is the host's to write.
std::shared_ptr<collectives::Work> BucketReducer::tell_forward() {
  if (group_->size() == 1) return nullptr;
  counts_.resize(static_cast<std::size_t>(group_->size()));
  const auto bytes_of = [](std::span<ForwardCount> counts) {
    return std::span(reinterpret_cast<std::uint8_t*>(counts.data()), counts.size_bytes());
  };
  return host_.all_gather(bytes_of(std::span(&told_, 1)), bytes_of(counts_));
}

void BucketReducer::launch_hook(std::size_t b) {
  const auto told = b == 0 && !is_local(hook_) ? tell_forward() : nullptr;
  GradBucket bucket{b, b + 1 == buckets_.size(), flat_[b], {}};
  for (const Bucket::Member& member : buckets_[b].members) bucket.gradients.push_back(views_[member.item]);
  std::function<void()> finish = hook_(std::move(bucket), *group_);
  if (!finish) {
    throw BadConfig("the comm hook cannot be used",
                    "it returned an empty function for bucket " + std::to_string(b),
                    "return what waits for the operations it launched, or [] {} if there are none");
  }
  launched_[b] = [this, told, finish = std::move(finish)] {
    if (told) {
      told->wait();
      check_in_step(*group_, counts_);
    }
    finish();
  };
}

void BucketReducer::launch_sum(std::size_t b) {
  const bool mean = !turn_.weighted && turn_.divisor == group_->size();
  std::shared_ptr<collectives::Work> told, weights;
  if (b == 0) {
    if (has_host_apart()) told = tell_forward();
    header_.write(told_);
    sum_of_weights_ = told_.begun == 0 ? 0 : weight_.value_or(0);
    if (turn_.weighted) weights = host_.all_reduce(std::span(&sum_of_weights_, 1), ReduceOp::kSum);
  }
  auto work = group_->all_reduce(whole(b), mean ? ReduceOp::kAvg : ReduceOp::kSum);
  launched_[b] = [this, b, mean, told = std::move(told), weights = std::move(weights),
                  work = std::move(work)] {
    if (told) {
      told->wait();
      check_in_step(*group_, counts_);
    }
    if (weights) weights->wait();
    work->wait();
    if (b == 0) {
      const ForwardCount& mine = told_.begun != 0 ? told_ : forward_;
      check_in_step(*group_, header_.read(mine, mean ? turn_.divisor : 1));
    }
    if (turn_.weighted && !(sum_of_weights_ > 0)) {
      throw BadConfig("gradients cannot be divided by the sum of weights", "it is 0 over all ranks",
                      "leave such a step out on every rank");
    }
    if (!mean) flat_[b].div_(turn_.weighted ? sum_of_weights_ : turn_.divisor);
  };
}

/// A bucket with the header behind it.
collectives::Buffer BucketReducer::whole(std::size_t b) const {
  collectives::Buffer buffer = buffer_of(flat_[b]);
  if (b == 0 && !has_host_apart()) buffer.count += StepHeader::elements(buckets_[b].dtype, group_->size());
  return buffer;
}

void BucketReducer::finish_backward() {
  try {
    const torch::NoGradGuard no_grad;
    writer_.end();
    writer_.take_deferred([this](std::size_t index) -> const torch::Tensor& { return views_[index]; },
                          [this](std::size_t index) { done(index); });
    add_missing();
    finish_buckets();
    agree_on_used();
    set_gradients();
    build_again();
    reset();
  } catch (...) {
    fail();
  }
}

/// The backward threw outside of here.
void BucketReducer::interrupted(std::uint64_t backward) {
  if (!under_way_.compare_exchange_strong(backward, 0)) return;
  // Another thread touches nothing but the group: the next backward, if there is one, begins with what is
  // left.
  if (device_of(*group_).is_cpu()) reset();
  group_->abort("rank " + std::to_string(group_->rank()) + ": a backward ended with an exception");
}

/// What this rank did not use counts as what was accumulated before, or as zeros.
void BucketReducer::add_missing() {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!seen_[i] && !(known_ && unused_[i])) missing.push_back(parameters_[i].name);
  }
  if (!missing.empty() && !looks_for_unused()) {
    throw BadConfig(
        "parameters without a gradient on rank " + std::to_string(group_->rank()) + ": " + listed(missing),
        "the loss does not depend on them",
        known_ ? "leave static_graph out, and set find_unused_parameters"
               : "use them in forward, set requires_grad to false, or set find_unused_parameters");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!seen_[i] && !(known_ && unused_[i])) fill_missing(i);
  }
}

void BucketReducer::fill_missing(std::size_t i) {
  const torch::Tensor& before = parameters_[i].tensor.grad();
  if (!before.defined()) {
    views_[i].zero_();
  } else if (before.data_ptr() != views_[i].data_ptr()) {
    put(views_[i], before);
    kept_[i] = before;
  } else {
    kept_[i] = before.clone();  // in case that nobody used it
  }
  done(i);
}

void BucketReducer::finish_buckets() {
  TROUPE_ASSERT(order_.all_launched(), "every gradient is in, so every bucket is launched");
  streams_.on_default([this] {
    for (const auto& finish : launched_) finish();
  });
  if (has_host_apart()) {  // a wait was the stream's, and not the host's
    streams_.synchronize();
    group_->throw_if_aborted();  // which is known before a kernel is stopped
  }
  launched_.clear();
}

/// Whether anybody used each parameter since the last reduction.
void BucketReducer::agree_on_used() {
  if (!looks_for_unused()) {
    std::fill(used_.begin(), used_.end(), 0);
    return;
  }
  anyone_ = used_;
  host_.all_reduce(std::span(anyone_), ReduceOp::kMax)->wait();
  if (options_.static_graph) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) unused_[i] = used_[i] == 0;
    known_ = true;
  }
  std::fill(used_.begin(), used_.end(), 0);
}

void BucketReducer::set_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (anyone_[i] == 0) {
      // It stays as it was.
      if (gradient.defined() && gradient.data_ptr() == views_[i].data_ptr() && kept_[i].defined())
        gradient.copy_(kept_[i]);
    } else if (options_.gradient_as_bucket_view) {
      gradient = views_[i];
    } else if (kept_[i].defined()) {
      put(kept_[i], views_[i]);
    } else {
      gradient = views_[i].clone();
    }
  }
}

/// Once: buckets in the order in which gradients arrived on one rank, so that the first are complete soonest.
void BucketReducer::build_again() {
  if (built_again_ || options_.find_unused_parameters) return;
  built_again_ = true;
  std::vector<std::int32_t> order(arrived_.begin(), arrived_.end());
  std::vector<bool> there(parameters_.size());
  for (const std::int32_t index : order) there[static_cast<std::size_t>(index)] = true;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (!there[i]) order.push_back(static_cast<std::int32_t>(i));
  }
  host_.broadcast(std::span(order), turn_.root)->wait();
  std::vector<Bucket> buckets =
      make_buckets(bucket_items(parameters_), {order.begin(), order.end()}, options_.buckets);
  if (same(buckets, buckets_)) return;
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& view : views_) values.push_back(view.clone());
  const std::vector<torch::Tensor> old = views_;
  buckets_ = std::move(buckets);
  lay_out();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    put(views_[i], values[i]);
    if (gradient.defined() && gradient.data_ptr() == old[i].data_ptr()) gradient = views_[i];
  }
}

void BucketReducer::shadow_backward(const Turn& turn) {
  const torch::NoGradGuard no_grad;
  begin_buckets(turn, {});
  for (torch::Tensor& flat : flat_) flat.zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i) done(i);
  finish_buckets();
  agree_on_used();
  build_again();
  reset();
}

/// Ends the reduction with what was thrown. Nobody waits for a rank that failed by itself.
void BucketReducer::fail() {
  reset();
  try {
    throw;
  } catch (const EarlyTermination&) {  // on every rank alike
    throw;
  } catch (const CollectiveAborted&) {
    throw;
  } catch (const std::exception& error) {
    group_->abort("rank " + std::to_string(group_->rank()) + ": " + error.what());
    throw;
  }
}

void BucketReducer::reset() {
  under_way_ = 0;
  due_ = false;
  weight_.reset();
  writer_.end();
  writer_.forget();
  kept_.clear();
}

}  // namespace troupe::train
