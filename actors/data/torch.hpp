/// LibTorch's tensors as ours and back, without a copy where one is not needed: include it to write get() and
/// collate() with torch::Tensor. tensor_codec.hpp and torch_dataset.hpp are the only other files of this
/// folder that see LibTorch.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <memory>
#include <utility>

#include "actors/data/tensor.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::data {

inline constexpr std::array<std::pair<DType, at::ScalarType>, 10> kTorchDTypes{
    {{DType::kFloat64, at::kDouble},
     {DType::kFloat32, at::kFloat},
     {DType::kFloat16, at::kHalf},
     {DType::kBFloat16, at::kBFloat16},
     {DType::kInt8, at::kChar},
     {DType::kInt16, at::kShort},
     {DType::kInt32, at::kInt},
     {DType::kInt64, at::kLong},
     {DType::kUInt8, at::kByte},
     {DType::kBool, at::kBool}}};

inline at::ScalarType torch_dtype(DType dtype) {
  for (const auto& [ours, theirs] : kTorchDTypes) {
    if (ours == dtype) return theirs;
  }
  TROUPE_ASSERT(false, "every dtype has a LibTorch type");
}

template <>
struct TensorTraits<at::Tensor> {
  /// Shares the tensor's memory where it is contiguous.
  static Tensor from(const at::Tensor& tensor) {
    const auto refuse = [](std::string why, std::string todo) {
      throw BadConfig("cannot put a torch tensor into a sample", std::move(why), std::move(todo));
    };
    if (!tensor.defined()) refuse("it is not defined", "");
    if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided)
      refuse("it is not a dense tensor on the CPU", "use .cpu() or .to_dense()");
    for (const auto& [ours, theirs] : kTorchDTypes) {
      if (theirs != tensor.scalar_type()) continue;
      const auto held = std::make_shared<at::Tensor>(tensor.detach().resolve_neg().contiguous());
      return Tensor(ours, tensor.sizes().vec(),
                    std::shared_ptr<const std::byte>(held, static_cast<const std::byte*>(held->data_ptr())));
    }
    refuse(std::string("its type is ") + at::toString(tensor.scalar_type()), "use .to() another");
    return {};
  }
  static at::Tensor to(const Tensor& tensor) {
    return at::from_blob(
        const_cast<std::byte*>(tensor.bytes().data()), tensor.shape(), [held = tensor.owner()](void*) {},
        at::TensorOptions(torch_dtype(tensor.dtype())));
  }
};

}  // namespace troupe::data
