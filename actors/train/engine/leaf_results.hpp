/// What the leaves of a step came to, without a wait for the device at each of them: losses and counted
/// tensors are copied to the host behind the forward that made them, and read when all leaves are under way.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

#include "actors/ddp/device_streams.hpp"
#include "actors/train/engine/engine.hpp"
#include "actors/train/job/leaf.hpp"

namespace troupe::train {

/// Not thread-safe.
class LeafResults {
 public:
  explicit LeafResults(torch::Device device) : device_(device), streams_(device) {}

  /// A step begins.
  void begin() { leaves_.clear(); }
  /// After a leaf's forward. REQUIRES: `loss` has one element.
  void add(const torch::Tensor& loss, Leaf& at);
  /// In the order of add(). Waits until the device has come to the last leaf's forward, and calls `look`
  /// meanwhile.
  std::vector<LeafResult> all(const std::function<void()>& look) const;

 private:
  struct One {
    LeafResult result;
    torch::Tensor values;             ///< on the host: the loss, then the figures of `places`
    std::vector<std::size_t> places;  ///< figures whose sum was a tensor of the device
    DeviceMark copied;
  };
  torch::Device device_;
  DeviceStreams streams_;
  std::vector<One> leaves_;
};

}  // namespace troupe::train
