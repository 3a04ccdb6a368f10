/// A trainer's batches on their way from the host's memory to its device, on a stream of their own: while one
/// leaf computes, the next one's batch comes. On the CPU a batch stays where it is.
#pragma once

#include <torch/types.h>

#include <vector>

#include "actors/ddp/device_streams.hpp"
#include "actors/train/job/batch.hpp"

namespace troupe::train {

/// Not thread-safe.
class DeviceBatches {
 public:
  /// `streams`: of which device the streams are; another one than `device` in tests alone.
  explicit DeviceBatches(torch::Device device) : DeviceBatches(device, device) {}
  DeviceBatches(torch::Device device, torch::Device streams) : device_(device), streams_(streams) {}

  /// A step begins.
  void begin() { copied_.clear(); }
  /// The batch on the device: what is computed next runs behind its copy. `host` stays until done() counts
  /// it.
  data::Batch take(const data::Batch& host);
  /// How many batches since begin(), from the first, are copied. Does not wait.
  std::size_t done();
  /// Until all of them are.
  void wait() const;

 private:
  torch::Tensor moved(const torch::Tensor& host) const;

  torch::Device device_;
  DeviceStreams streams_;
  std::vector<DeviceMark> copied_;
};

}  // namespace troupe::train
