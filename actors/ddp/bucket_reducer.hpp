/// Gradients of one module, averaged over the ranks of a group by the time its backward returns.
///
/// The first gradient of a backward opens a reduction: a callback of the autograd engine closes it when the
/// backward is through. In between each bucket is launched as soon as its gradients are in, in the order of
/// buckets. After that every `.grad` is the mean over the ranks; what was accumulated into it before is part
/// of that.
///
/// A backward that throws gives the reduction up and aborts the group, so that no rank waits for this one.
///
/// Not thread-safe: forward and backward run on one thread (a backward on a CPU runs on the thread that calls
/// it).
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/ddp/buckets.hpp"
#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/gradient_writer.hpp"
#include "actors/ddp/group_memory.hpp"
#include "actors/ddp/reduced_parameter.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

struct BucketReducerOptions {
  BucketOptions buckets;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool gradient_as_bucket_view = true;
};

class BucketReducer {
 public:
  /// Collective: takes memory of the group. Throws BadConfig for a parameter that cannot be reduced.
  BucketReducer(const std::vector<NamedTensor>& parameters, std::shared_ptr<collectives::ProcessGroup> group,
                BucketReducerOptions options);
  ~BucketReducer();
  BucketReducer(const BucketReducer&) = delete;
  BucketReducer& operator=(const BucketReducer&) = delete;

  /// Whether backwards reduce from here on, or accumulate on this rank alone.
  void set_synchronized(bool synchronized) { synchronized_ = synchronized; }
  /// REQUIRES: no backward is under way. An empty hook: the mean.
  void set_hook(CommHook hook) { hook_ = std::move(hook); }

  /// Who takes part in a reduction, when some ranks have no input left (join).
  struct Turn {
    int divisor = 0;  ///< ranks that the mean is over
    int root = 0;     ///< the lowest rank that has input
  };
  /// Called when a backward begins to reduce, on ranks that have input. Null: all take part.
  void set_turns(std::function<Turn()> turns) { turns_ = std::move(turns); }
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

  void lay_out();
  void gradient_ready(std::size_t index);
  void begin_backward();
  void begin_buckets(const Turn& turn);
  void take(std::size_t index);
  void done(std::size_t index);
  void launch(std::size_t bucket);
  void finish_backward();
  void interrupted();
  void add_missing();
  void fill_missing(std::size_t index);
  void finish_buckets();
  void agree_on_used();
  void set_gradients();
  void build_again();
  [[noreturn]] void fail();
  void reset();
  bool looks_for_unused() const {
    return options_.find_unused_parameters || (options_.static_graph && !known_);
  }

  std::shared_ptr<collectives::ProcessGroup> group_;
  BucketReducerOptions options_;
  std::vector<ReducedParameter> parameters_;
  std::vector<Bucket> buckets_;
  GradientWriter writer_;
  CommHook hook_;
  std::function<Turn()> turns_;
  bool synchronized_ = true;

  std::shared_ptr<void> memory_;                 ///< the group's, or a tensor's
  std::byte* base_ = nullptr;                    ///< its first byte
  std::vector<torch::Tensor> flat_;              ///< by bucket
  std::vector<torch::Tensor> views_;             ///< by parameter, in its bucket
  std::vector<GradientPlacement::Slot> placed_;  ///< by parameter: where autograd may write in this backward
  std::vector<std::shared_ptr<torch::Tensor>>
      owned_;  ///< by parameter: what a tensor in its slot holds on to

  // Of the backward under way.
  bool in_backward_ = false;
  Turn turn_;
  LaunchOrder order_;
  std::vector<std::function<void()>> launched_;  ///< by bucket: waits, and leaves the mean
  std::vector<bool> seen_;                       ///< by parameter: its gradient is in
  std::vector<bool> had_gradient_;               ///< by parameter: `.grad` was there before
  std::vector<torch::Tensor> kept_;              ///< by parameter: `.grad` as the user has it
  std::vector<std::size_t> arrived_;             ///< parameters, in the order of their gradients

  std::vector<std::int32_t> used_;    ///< by parameter: in a backward since the last reduction
  std::vector<std::int32_t> anyone_;  ///< the same, on any rank
  bool known_ = false;                ///< static_graph: used_ and anyone_ are those of every backward
  std::vector<bool> unused_;          ///< static_graph: no gradient comes for these, on this rank
  bool built_again_ = false;

  std::shared_ptr<BucketReducer*> self_;  ///< for callbacks that may outlive it
  GradientHooks hooks_;
};

}  // namespace troupe::train
