/// A model's buffers as one run of bytes: to keep the committed ones, to send leaf 0's, to put either back.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <span>
#include <vector>

#include "actors/ddp/named_tensor.hpp"

namespace troupe::train {

class BufferPack {
 public:
  /// Throws BadConfig for a buffer that is not row-major on the CPU.
  explicit BufferPack(const std::vector<NamedTensor>& buffers);

  std::size_t size_bytes() const { return size_bytes_; }
  /// REQUIRES: `bytes` has size_bytes() bytes.
  void save(std::span<std::byte> bytes) const;
  /// Not between a forward and its backward: autograd may have saved a buffer, and is not told of the change.
  void restore(std::span<const std::byte> bytes) const;

 private:
  std::vector<torch::Tensor> buffers_;
  std::size_t size_bytes_ = 0;
};

}  // namespace troupe::train
