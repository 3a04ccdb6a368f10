/// Gradients of all leaves of a step, averaged over the fixed tree: the same bits however the leaves are
/// dealt.
///
/// Each leaf runs forward and backward by itself. A hook on every parameter's AccumulateGrad node takes the
/// gradient as soon as it is there, puts or adds it into the rank's partial sum and lets it go, so `.grad` is
/// undefined before each leaf and autograd's own left fold never happens. During the last leaf's backward a
/// bucket is launched as soon as all its gradients are in, in the order of buckets. After finish() every
/// `.grad` is the mean over the job's leaves, in memory of this rank alone.
///
/// Once the group is aborted the step is lost, so a leaf ends where it next comes by here: at its begin,
/// between forward and backward, and at every gradient, whose hook then throws.
///
/// On a device the host never waits between a leaf's begin and finish(): what is added and copied there is
/// enqueued. The bits do not depend on the way: every addition is one of two arrays, on the device or the
/// host.
///
/// Not thread-safe: one thread drives it, and the backward runs on that thread (as it does on the CPU), or on
/// one that it waits for.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/ddp/buckets.hpp"
#include "actors/ddp/device_streams.hpp"
#include "actors/ddp/gradient_writer.hpp"
#include "actors/ddp/reduced_parameter.hpp"
#include "actors/train/engine/fold_schedule.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

struct ReducerOptions {
  BucketOptions buckets;
  /// false: a parameter without a gradient in some leaf is an error that names it. true: it counts as zeros
  /// there, and its `.grad` stays undefined if no leaf of the step had one; costs one more small reduction.
  bool allow_unused = false;
  /// Gradients are written into the bucket by autograd where that is possible (gradient_placement.hpp), and
  /// copied elsewhere. The bits are the same. false: always copied.
  bool place_gradients = true;
  torch::Device device = torch::kCPU;  ///< where the parameters are
  /// Where the group's memory is the host's, and the parameters are not: partial sums are copied there on a
  /// stream of their own, and the mean back. true: on the CPU, too, for tests.
  bool through_host = false;
  std::optional<torch::Device> streams{};  ///< of which device the streams are; another one in tests alone
};

class Reducer {
 public:
  /// Hooks the parameters that require a gradient. Throws BadConfig for one whose type or device cannot be
  /// reduced.
  Reducer(const std::vector<NamedTensor>& parameters, int logical_ranks, const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Takes part in `group` from the next step on; allocates its trees, so it is collective. Drops the
  /// gradients. `gradients` reduces them, where that is another one, of the same ranks and leaves: its memory
  /// is the parameters' device's.
  void attach(std::shared_ptr<collectives::ProcessGroup> group,
              std::shared_ptr<collectives::ProcessGroup> gradients = nullptr);
  /// Forgets the group and every gradient that lives in its memory.
  void detach();

  /// REQUIRES: attached. Leaves of the interval follow in order.
  void begin_step();
  /// Before the forward of the next leaf.
  void begin_leaf();
  /// Between its forward and its backward: where gradients go is decided when the backward allocates them.
  void begin_backward();
  /// When the backward threw: throws what a hook did, if one did, before autograd wrapped it.
  void rethrow_failure();
  /// After its backward. Throws BadConfig for unused parameters, and as rethrow_failure.
  void end_leaf();
  /// For leaves that run side by side: until it is called with null, a gradient goes into `gradients`, one a
  /// parameter, instead. They lie there until take_leaf.
  void put_aside(std::vector<torch::Tensor>* gradients);
  /// The next leaf, from begin_leaf() to end_leaf(), whose gradients were put aside. Leaves `gradients`
  /// empty.
  void take_leaf(std::vector<torch::Tensor>& gradients);
  /// Gives rank 0's `bytes`, which are where the parameters are, to every rank. Waits for it.
  void broadcast(torch::Tensor& bytes);
  /// Waits, on the host, for every bucket, and sets the gradients: who returns knows that the step was
  /// reduced on this rank. Throws CollectiveAborted or Timeout.
  void finish();
  /// Gives the step up: no gradient stays, hooks do nothing.
  void abandon();

  /// What attach() asks of the allocate_tree of `group`, in order: the size of its segment follows from it.
  /// Without `gradients` another group reduces these.
  struct Allocation {
    std::size_t count = 0;  ///< elements
    collectives::DType dtype = collectives::DType::kFloat32;
  };
  std::vector<Allocation> allocations(bool gradients) const;

 private:
  struct BucketState;

  BucketState allocate(const Bucket& bucket);
  void gradient_ready(std::size_t index);
  void take(std::size_t index, torch::Tensor gradient);
  void bucket_member_done(std::size_t index);
  void launch(BucketState& bucket);
  void fold(BucketState& bucket);
  void reduce_copied();
  void take_back();
  void await_copies() noexcept;
  void add_missing();
  void launch_used();
  void clear_gradients();
  const LeafFold& current() const;
  /// Where the gradient of a parameter goes in this leaf.
  const torch::Tensor& slot(std::size_t index) const;
  bool is_last_leaf() const;

  int logical_ranks_;
  ReducerOptions options_;
  std::vector<ReducedParameter> parameters_;
  std::vector<Bucket> buckets_;
  GradientWriter writer_;
  std::vector<bool> seen_;  ///< by parameter: its gradient of this leaf is in

  std::shared_ptr<collectives::ProcessGroup> group_;
  std::shared_ptr<collectives::ProcessGroup> gradients_;  ///< may be group_
  FoldSchedule schedule_;
  bool through_host_ = false;
  DeviceStreams streams_;
  std::vector<BucketState> states_;
  std::size_t reducing_ = 0;  ///< through the host: buckets whose reduction has begun
  DeviceMark back_;           ///< behind it the means are on the device
  collectives::TreeBuffer used_tree_;
  std::shared_ptr<collectives::Work> used_work_;

  /// By array: where each parameter's gradient goes.
  std::vector<std::vector<GradientPlacement::Slot>> slots_;

  std::size_t leaf_ = 0;  ///< position in the interval
  bool in_leaf_ = false;
  std::vector<torch::Tensor>* aside_ = nullptr;
  LaunchOrder order_;
  std::exception_ptr failure_;  ///< what a hook threw
  GradientHooks hooks_;
};

}  // namespace troupe::train
