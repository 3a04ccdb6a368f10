#include "actors/ddp/buffer_pack.hpp"

#include <cstdint>
#include <cstring>
#include <string>

#include "runtime/core/error.hpp"

namespace troupe::train {

namespace {

/// The buffer's memory.
torch::Tensor bytes_of(const torch::Tensor& buffer) {
  return buffer.detach().reshape({-1}).view(torch::kUInt8);
}

}  // namespace

BufferPack::BufferPack(const std::vector<NamedTensor>& buffers, torch::Device device) {
  const std::string where = device.is_cpu() ? "the CPU" : device.str();
  for (const NamedTensor& buffer : buffers) {
    if (buffer.tensor.device().type() != device.type() || !buffer.tensor.is_contiguous()) {
      throw BadConfig("buffer " + buffer.name + " cannot be kept", "it is not row-major on " + where,
                      "register a contiguous tensor");
    }
    buffers_.push_back(buffer.tensor);
    size_bytes_ += buffer.tensor.nbytes();
  }
}

void BufferPack::save(torch::Tensor& flat) const {
  const torch::NoGradGuard no_grad;
  std::int64_t at = 0;
  for (const torch::Tensor& buffer : buffers_) {
    const auto size = static_cast<std::int64_t>(buffer.nbytes());
    if (size > 0 && buffer.is_cpu()) {
      std::memcpy(flat.data_ptr<std::uint8_t>() + at, buffer.data_ptr(), buffer.nbytes());
    } else if (size > 0) {
      flat.narrow(0, at, size).copy_(bytes_of(buffer), /*non_blocking=*/true);
    }
    at += size;
  }
}

void BufferPack::restore(const torch::Tensor& flat) const {
  const torch::NoGradGuard no_grad;
  std::int64_t at = 0;
  for (const torch::Tensor& buffer : buffers_) {
    const auto size = static_cast<std::int64_t>(buffer.nbytes());
    if (size > 0 && buffer.is_cpu()) {
      std::memcpy(buffer.data_ptr(), flat.data_ptr<std::uint8_t>() + at, buffer.nbytes());
    } else if (size > 0) {
      bytes_of(buffer).copy_(flat.narrow(0, at, size), /*non_blocking=*/true);
    }
    at += size;
  }
}

}  // namespace troupe::train
