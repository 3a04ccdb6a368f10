/// Memory of the device and pinned memory of the host that frees itself.
#pragma once

#include <cstddef>

#include "collectives/nccl/errors.hpp"

namespace troupe::collectives::nccl {

/// Device memory in the order of one stream: growing it waits for nobody, since what was enqueued before
/// still has the old memory. One stream's operations, which run one after another, may share it.
class Scratch {
 public:
  /// The stream outlives it.
  Scratch(Caller caller, Stream stream) : caller_(caller), stream_(stream) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// At least `bytes`, for what is enqueued next; aligned to 256. The content is gone when it grows. While
  /// the stream is captured it is the graph's, whose replays run beside other work: until release().
  std::byte* get(std::size_t bytes);
  /// Gives back what a capture got, in the order of the stream.
  void release();

 private:
  Caller caller_;
  Stream stream_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  void* captured_ = nullptr;
};

/// Host memory that the device copies from and to by itself.
class PinnedMemory {
 public:
  PinnedMemory(Caller caller, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  Caller caller_;
  void* data_ = nullptr;
};

}  // namespace troupe::collectives::nccl
