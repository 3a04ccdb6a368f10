/// What DistributedDataParallel does, whatever the type of its module.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actors/ddp/bucket_reducer.hpp"
#include "actors/ddp/buffer_pack.hpp"
#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/device_streams.hpp"
#include "actors/ddp/options.hpp"
#include "actors/ddp/wrapped_parameters.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// Who sends buffers.
struct BufferSender {
  ForwardCount count;
  std::uint64_t trains = 0;  ///< 1: its forward wants gradients, and is counted
};

/// Not thread-safe.
class DdpCore {
 public:
  /// See DistributedDataParallel.
  DdpCore(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<collectives::ProcessGroup> group,
          const DdpOptions& options);
  DdpCore(const DdpCore&) = delete;
  DdpCore& operator=(const DdpCore&) = delete;

  /// Around each forward of the module.
  void before_forward();
  void after_forward();
  /// `output` is of the forward that after_forward() was called for.
  void watch(const torch::Tensor& output) {
    if (last_reduces_) reducer_->watch(output);
  }
  /// See DistributedDataParallel.
  void backward(const torch::Tensor& loss_sum, double weight);

  void register_comm_hook(CommHook hook);
  /// Whether forwards from here on want their backward reduced. Returns what it was.
  bool require_sync(bool wanted) { return std::exchange(require_sync_, wanted); }
  void join(const std::function<void()>& body, const JoinOptions& options);

  collectives::ProcessGroup& group() const { return *group_; }
  /// Names of the parameters of each bucket, in the order of reduction.
  std::vector<std::vector<std::string>> buckets() const;

 private:
  enum class Event : std::uint64_t { kDone, kBuffers, kBackward, kWeightedBackward };
  struct Presence {
    int active = 0;  ///< ranks that have input
    int lowest = 0, highest = 0;
    Event event = Event::kDone;  ///< of those
    ForwardCount furthest;       ///< that some rank has begun
  };
  void check_parameters() const;
  void check_buffers() const;
  void share_buffers(int root, bool shadows);
  void check_forward(int root, const BufferSender& its, const BufferSender& mine, bool shadows);
  Presence meet(Event mine);
  BucketReducer::Turn turn_of(const Presence& there) const;
  void shadow();

  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<collectives::ProcessGroup> group_;
  collectives::ProcessGroup& host_;  ///< may be *group_
  DdpOptions options_;
  std::vector<NamedTensor> parameters_;  ///< all, once each
  std::vector<bool> reduced_;            ///< by parameter: required a gradient when it was wrapped
  std::vector<NamedTensor> buffers_;
  WrappedParameters wrapped_;
  std::shared_ptr<ForwardCount> forwards_;  ///< the group's
  DeviceStreams streams_;
  BufferPack pack_;
  torch::Tensor packed_;  ///< and room for a BufferSender
  std::unique_ptr<BucketReducer> reducer_;
  bool has_begun_ = false;  ///< a forward did

  bool require_sync_ = true;
  bool last_reduces_ = true;  ///< the forward before wanted its backward reduced, or there was none

  bool joining_ = false;
  JoinOptions join_options_;
  int last_active_ = 0;  ///< the highest rank that had input when last anybody had
};

}  // namespace troupe::train
