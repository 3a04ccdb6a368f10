/// Gradients of one module, averaged over the ranks of a group by the time its backward returns.
///
/// The first gradient of a backward opens a reduction: a callback of the autograd engine closes it when the
/// backward is through. In between each bucket is launched as soon as its gradients are in, in the order of
/// buckets. After that every `.grad` is the mean over the ranks; what was accumulated into it before is part
/// of that.
///
/// A backward is reduced if a forward came before it that was not, or if it goes through what a forward
/// returned (watch). Any other, as one through the bare module, accumulates on this rank alone.
///
/// A backward that throws gives the reduction up and aborts the group, so that no rank waits for this one.
/// Every reduction tells which forward it belongs to (step_header.hpp): ranks that are apart, since one left
/// a backward out, abort the group, too.
///
/// Over a group of GPUs gradients are reduced in device memory, and what else ranks tell each other goes over
/// its host_group(). The host waits for the device once, at the end of a backward: who returns from it knows
/// that the reduction went well, so nothing that an abort left behind is applied.
///
/// Not thread-safe: forward and backward run on one thread (a backward on a CPU runs on the thread that calls
/// it, one on a GPU on a thread of the engine's while that one waits).
#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/ddp/bucket_memory.hpp"
#include "actors/ddp/buckets.hpp"
#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/device_streams.hpp"
#include "actors/ddp/gradient_writer.hpp"
#include "actors/ddp/reduced_parameter.hpp"
#include "actors/ddp/step_header.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

struct BucketReducerOptions {
  BucketOptions buckets;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = true;
  std::optional<torch::Device> streams{};  ///< of which device the streams are; another one in tests alone
};

class BucketReducer {
 public:
  /// Collective: takes memory of the group. Throws BadConfig for a parameter that cannot be reduced.
  BucketReducer(const std::vector<NamedTensor>& parameters, std::shared_ptr<collectives::ProcessGroup> group,
                BucketReducerOptions options);
  ~BucketReducer();
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  /// A forward begins whose backward is to be reduced. Counts are of the group, and the same on every rank.
  void begin_forward(const ForwardCount& count) {
    forward_ = count;
    due_ = true;
  }
  /// The number of the last such forward, if no backward of it has begun to reduce.
  std::optional<std::uint64_t> unreduced() const {
    return due_ ? std::optional(forward_.begun) : std::nullopt;
  }
  /// Whether backwards reduce from here on, or accumulate on this rank alone.
  void set_synchronized(bool synchronized) { synchronized_ = synchronized; }
  /// `output` is of such a forward: every backward through it is reduced.
  void watch(const torch::Tensor& output);
  /// Runs a backward whose gradients are sums over `weight` things. Of all such up to the next reduction the
  /// sum over the ranks is divided by the sum of weights, in place of the mean. Throws what `backward`
  /// throws.
  void weigh(double weight, const std::function<void()>& backward);
  bool has_hook() const { return hook_ != nullptr; }
  /// REQUIRES: no backward is under way. An empty hook: the mean.
  void set_hook(CommHook hook) { hook_ = std::move(hook); }

  /// Who takes part in a reduction, when some ranks have no input left (join).
  struct Turn {
    int divisor = 0;        ///< ranks that the mean is over
    int root = 0;           ///< the lowest rank that has input
    bool weighted = false;  ///< divided by the sum of weights
  };
  /// Called when a backward begins to reduce, on ranks that have input, with whether it is weighted. Null:
  /// all take part.
  void set_turns(std::function<Turn(bool weighted)> turns) { turns_ = std::move(turns); }
  /// The part in others' reduction of a rank without input: zeros. Its gradients are lost.
  void shadow_backward(const Turn& turn);

  const std::vector<ReducedParameter>& parameters() const { return parameters_; }
  /// A parameter whose data were replaced, so that its gradients would stay local. Null: there is none.
  const ReducedParameter* lost_parameter() const {
    const auto lost = hooks_.lost(parameters_);
    return lost ? &parameters_[*lost] : nullptr;
  }
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  class Backward;
  struct Self;

  bool has_host_apart() const { return &host_ != group_.get(); }
  void lay_out();
  void gradient_ready(std::size_t index);
  void begin_backward();
  void begin_buckets(const Turn& turn, const ForwardCount& told);
  void take(std::size_t index);
  void done(std::size_t index);
  void launch(std::size_t bucket);
  void launch_hook(std::size_t bucket);
  void launch_sum(std::size_t bucket);
  std::shared_ptr<collectives::Work> tell_forward();
  collectives::Buffer whole(std::size_t bucket) const;
  void finish_backward();
  void interrupted(std::uint64_t backward);
  void add_missing();
  void fill_missing(std::size_t index);
  void finish_buckets();
  void leave_launched();
  void agree_on_used();
  void set_gradients();
  void build_again();
  [[noreturn]] void fail();
  void reset();
  bool looks_for_unused() const {
    return options_.find_unused_parameters || (options_.static_graph && !known_);
  }

  std::shared_ptr<collectives::ProcessGroup> group_;
  collectives::ProcessGroup& host_;  ///< may be *group_
  BucketReducerOptions options_;
  std::vector<ReducedParameter> parameters_;
  std::vector<Bucket> buckets_;
  DeviceStreams streams_;
  GradientWriter writer_;
  CommHook hook_;
  std::function<Turn(bool)> turns_;
  bool synchronized_ = true;
  ForwardCount forward_;         ///< the last one that is to be reduced
  bool due_ = false;             ///< it has not been
  std::weak_ptr<void> through_;  ///< lives while a backward is under way that goes through a forward's output
  std::optional<double> weight_;  ///< of backwards since the last reduction, if they are weighted
  bool weighing_ = false;         ///< the backward under way has one

  BucketMemory memory_;
  std::vector<torch::Tensor> flat_;              ///< by bucket
  StepHeader header_;                            ///< behind the first bucket, unless the host is apart
  std::vector<torch::Tensor> views_;             ///< by parameter, in its bucket
  std::vector<GradientPlacement::Slot> placed_;  ///< by parameter: where autograd may write in this backward
  std::vector<std::shared_ptr<torch::Tensor>>
      owned_;  ///< by parameter: what a tensor in its slot holds on to

  // Of the backward under way.
  /// Its number; 0: there is none. Another thread may give it up.
  std::atomic<std::uint64_t> under_way_{0};
  std::uint64_t backwards_ = 0;  ///< begun so far
  Turn turn_;
  ForwardCount told_;                 ///< the forward that it belongs to; 0: a shadow's
  double sum_of_weights_ = 0;         ///< where it is weighted
  std::vector<ForwardCount> counts_;  ///< by rank, where there is no header
  LaunchOrder order_;
  /// By bucket: waits, and leaves the mean. Empty once a backward has ended well.
  std::vector<std::function<void()>> launched_;
  std::vector<bool> seen_;            ///< by parameter: its gradient is in
  std::vector<bool> had_gradient_;    ///< by parameter: `.grad` was there before
  std::vector<torch::Tensor> kept_;   ///< by parameter: `.grad` as the user has it
  std::vector<std::size_t> arrived_;  ///< parameters, in the order of their gradients

  std::vector<std::int32_t> used_;    ///< by parameter: in a backward since the last reduction
  std::vector<std::int32_t> anyone_;  ///< the same, on any rank
  bool known_ = false;                ///< static_graph: used_ and anyone_ are those of every backward
  std::vector<bool> unused_;          ///< static_graph: no gradient comes for these, on this rank
  bool built_again_ = false;

  std::shared_ptr<Self> self_;  ///< for callbacks that may outlive it
  GradientHooks hooks_;
};

}  // namespace troupe::train
