/// Tells when LibTorch's operators use a tensor: what PyTorch's forward pre-hooks of modules are for, which
/// LibTorch lacks. Every operator that takes a watched tensor, or a view that was made of it, in a forward or
/// in a backward, calls back first.
///
/// The tensors carry one more dispatch key, whose fallback calls back and goes on with the operator. The key
/// is the one that LibTorch has for wrappers in its own tests (TESTING_ONLY_GenericWrapper): no backend is
/// behind it, and another library in the process that registers a fallback for it is refused by LibTorch.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::train {

struct StorageUse {
  std::size_t key = 0;      ///< as watch_storage() was given
  torch::Tensor tensor;     ///< of the storage
  bool is_written = false;  ///< the operator changes it in place
  std::string operation{};  ///< where it does: "aten::mul_"
};
/// Called in the operator's thread, before the operator, with all that it takes of storages that have this
/// function. What it throws, the operator throws. Operators in it do not call back.
using OnUse = std::function<void(const std::vector<StorageUse>& uses)>;

/// Watches the storage of `tensor` from now on, for as long as the storage lives: uses by tensors that
/// mark_watched() was called for, and by their views. Thread-safe.
void watch_storage(const torch::Tensor& tensor, std::shared_ptr<const OnUse> on_use, std::size_t key);
/// REQUIRES: the tensor's storage is watched, and nobody else uses the tensor meanwhile.
void mark_watched(const torch::Tensor& tensor);

}  // namespace troupe::train
