/// A batch as the user's model sees it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::data {

/// One leaf's samples of one step: `input` [N, ...], `target` [N, ...]. The tensors may be views of memory
/// that the loader takes back after the step: keep a clone, not the tensor.
struct Batch {
  at::Tensor input;
  at::Tensor target;
  std::int64_t size() const { return input.size(0); }
};

}  // namespace troupe::data
