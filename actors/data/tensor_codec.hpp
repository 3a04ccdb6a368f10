/// torch::Tensor as an argument and an answer of calls and tasks, and as a field of either: its type, its
/// shape and its bytes, one copy at each end. A dense one on the CPU; what arrives is contiguous and knows no
/// gradient. Another one throws BadConfig where it is to be sent.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "actors/data/torch.hpp"
#include "runtime/wire/codec.hpp"

template <>
struct troupe::wire::Codec<at::Tensor> {
  static constexpr std::uint8_t kUndefined = 0xff;
  static constexpr std::size_t kMostDimensions = 64;

  static void encode(Writer& to, const at::Tensor& tensor) {
    const std::uint8_t type = tensor.defined() ? type_of(tensor) : kUndefined;
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

 private:
  /// Its place in kTorchDTypes. Throws BadConfig for a tensor that cannot be sent.
  static std::uint8_t type_of(const at::Tensor& tensor) {
    const auto refuse = [](std::string why, std::string todo) {
      throw BadConfig("cannot send a tensor", std::move(why), std::move(todo));
    };
    const std::string dtype = at::toString(tensor.scalar_type());
    if (tensor.is_meta()) refuse("it is on the device meta, and has no numbers", "make it on the CPU");
    if (!tensor.device().is_cpu())
      refuse("it is on the device " + tensor.device().str() + ", and not on the CPU", "send tensor.cpu()");
    if (tensor.is_nested()) refuse("it is a nested one", "send the std::vector of tensor.unbind()");
    if (tensor.layout() != at::kStrided) {
      std::ostringstream layout;
      layout << tensor.layout();
      refuse("its layout is " + layout.str() + ", and not dense", "send tensor.to_dense()");
    }
    if (tensor.is_quantized())
      refuse("its type is " + dtype + ", which is quantized", "send tensor.dequantize()");
    if (tensor.is_complex()) refuse("its type is " + dtype, "send torch::view_as_real(tensor)");
    if (static_cast<std::size_t>(tensor.dim()) > kMostDimensions) {
      refuse("it has " + std::to_string(tensor.dim()) + " dimensions, and " +
                 std::to_string(kMostDimensions) + " are the most",
             "reshape it");
    }
    for (std::size_t i = 0; i < data::kTorchDTypes.size(); ++i) {
      if (data::kTorchDTypes[i].second == tensor.scalar_type()) return static_cast<std::uint8_t>(i);
    }
    refuse("its type is " + dtype, "send it as another type: tensor.to(torch::kFloat)");
    return kUndefined;
  }
};
