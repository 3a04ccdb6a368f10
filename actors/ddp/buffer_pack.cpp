#include "actors/ddp/buffer_pack.hpp"

#include <cstring>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

BufferPack::BufferPack(const std::vector<NamedTensor>& buffers) {
  for (const NamedTensor& buffer : buffers) {
    if (!buffer.tensor.device().is_cpu() || !buffer.tensor.is_contiguous()) {
      throw BadConfig("buffer " + buffer.name + " cannot be kept", "it is not row-major on the CPU",
                      "register a contiguous tensor");
    }
    buffers_.push_back(buffer.tensor);
    size_bytes_ += buffer.tensor.nbytes();
  }
}

void BufferPack::save(std::span<std::byte> bytes) const {
  TROUPE_ASSERT(bytes.size() == size_bytes_, "a pack has one size");
  std::size_t at = 0;
  for (const torch::Tensor& buffer : buffers_) {
    if (buffer.nbytes() > 0) std::memcpy(bytes.data() + at, buffer.data_ptr(), buffer.nbytes());
    at += buffer.nbytes();
  }
}

void BufferPack::restore(std::span<const std::byte> bytes) const {
  TROUPE_ASSERT(bytes.size() == size_bytes_, "a pack has one size");
  std::size_t at = 0;
  for (const torch::Tensor& buffer : buffers_) {
    if (buffer.nbytes() > 0) std::memcpy(buffer.data_ptr(), bytes.data() + at, buffer.nbytes());
    at += buffer.nbytes();
  }
}

}  // namespace troupe::train
