/// torch::Tensor as an argument and an answer of calls and tasks, and as a field of either: its type, its
/// shape and its bytes, one copy at each end. A dense one on the CPU; what arrives is contiguous and knows no
/// gradient.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "actors/data/torch.hpp"
#include "runtime/wire/codec.hpp"

template <>
struct troupe::wire::Codec<at::Tensor> {
  static constexpr std::uint8_t kUndefined = 0xff;
  static constexpr std::size_t kMostDimensions = 64;

  static void encode(Writer& to, const at::Tensor& tensor) {
    std::uint8_t type = kUndefined;
    if (tensor.defined()) {
      for (std::size_t i = 0; i < data::kTorchDTypes.size(); ++i) {
        if (data::kTorchDTypes[i].second == tensor.scalar_type()) type = static_cast<std::uint8_t>(i);
      }
      if (!tensor.device().is_cpu()) return to.refuse("a tensor in it is not on the CPU: send tensor.cpu()");
      if (tensor.layout() != at::kStrided) return to.refuse("a tensor in it is sparse: send it .to_dense()");
      if (type == kUndefined) return to.refuse("a tensor in it has a type that cannot be sent: convert it");
    }
    write(to, type);
    if (type == kUndefined) return;
    const at::Tensor dense = tensor.detach().resolve_neg().contiguous();
    write(to, dense.sizes().vec());
    to.append(dense.data_ptr(), dense.nbytes());
  }

  static bool decode(Reader& from, at::Tensor& tensor) {
    std::uint8_t type = kUndefined;
    std::vector<std::int64_t> shape;
    if (!read(from, type)) return false;
    tensor = at::Tensor();
    if (type == kUndefined) return true;
    if (type >= data::kTorchDTypes.size()) return from.fail("a tensor's type is unknown");
    if (!read(from, shape)) return false;
    if (shape.size() > kMostDimensions) return from.fail("a tensor has too many dimensions");
    const at::ScalarType dtype = data::kTorchDTypes[type].second;
    const std::size_t element = at::elementSize(dtype);
    std::size_t bytes = element;
    bool is_empty = false;
    for (const std::int64_t size : shape) {
      if (size < 0) return from.fail("a tensor's size is below zero");
      is_empty = is_empty || size == 0;
      // More than there can be, and of an empty one other sizes must not overflow either.
      if (size != 0 && bytes > std::numeric_limits<std::int64_t>::max() / static_cast<std::size_t>(size))
        return from.fail("a tensor is larger than any message");
      if (size != 0) bytes *= static_cast<std::size_t>(size);
    }
    ByteView values;
    if (!from.view(values, is_empty ? 0 : bytes)) return false;
    tensor = at::empty(shape, at::TensorOptions(dtype));
    if (!values.empty()) std::memcpy(tensor.data_ptr(), values.data(), values.size());
    return true;
  }
};
