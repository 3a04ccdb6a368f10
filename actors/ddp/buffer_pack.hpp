/// A model's buffers as one run of bytes: to keep the committed ones, to send leaf 0's, to put either back.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

#include "actors/ddp/named_tensor.hpp"

namespace troupe::train {

class BufferPack {
 public:
  /// Throws BadConfig for a buffer that is not row-major, or not on `device`.
  explicit BufferPack(const std::vector<NamedTensor>& buffers, torch::Device device = torch::kCPU);

  std::size_t size_bytes() const { return size_bytes_; }
  /// In memory of the buffers' device: nothing waits for it. REQUIRES: `flat` is such memory of size_bytes()
  /// bytes (U8).
  void save(torch::Tensor& flat) const;
  /// Not between a forward and its backward: autograd may have saved a buffer, and may not be told of the
  /// change.
  void restore(const torch::Tensor& flat) const;

 private:
  std::vector<torch::Tensor> buffers_;
  std::size_t size_bytes_ = 0;
};

}  // namespace troupe::train
