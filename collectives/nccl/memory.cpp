#include "collectives/nccl/memory.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/log.hpp"

namespace troupe::collectives::nccl {

Scratch::~Scratch() {
  if (data_ != nullptr && caller_.api->cuda.cudaFreeAsync(data_, stream_) != kCudaSuccess) {
    log(LogLevel::kWarning, "cudaFreeAsync failed on rank " + std::to_string(caller_.rank));
  }
}

std::byte* Scratch::get(std::size_t bytes) {
  bool capturing = false;
  CUDA_TRY(caller_, caller_.api->cuda.cudaStreamIsCapturing(stream_, &capturing));
  if (capturing) {
    release();
    CUDA_TRY(caller_, caller_.api->cuda.cudaMallocAsync(&captured_, bytes, stream_));
    return static_cast<std::byte*>(captured_);
  }
  if (bytes > size_) {
    if (data_ != nullptr) CUDA_TRY(caller_, caller_.api->cuda.cudaFreeAsync(data_, stream_));
    data_ = nullptr;
    size_ = 0;
    CUDA_TRY(caller_, caller_.api->cuda.cudaMallocAsync(&data_, bytes, stream_));
    size_ = bytes;
  }
  return static_cast<std::byte*>(data_);
}

void Scratch::release() {
  if (captured_ == nullptr) return;
  CUDA_TRY(caller_, caller_.api->cuda.cudaFreeAsync(std::exchange(captured_, nullptr), stream_));
}

PinnedMemory::PinnedMemory(Caller caller, std::size_t bytes) : caller_(caller) {
  CUDA_TRY(caller_, caller_.api->cuda.cudaMallocHost(&data_, std::max<std::size_t>(bytes, 1)));
}

PinnedMemory::~PinnedMemory() {
  if (caller_.api->cuda.cudaFreeHost(data_) != kCudaSuccess) {
    log(LogLevel::kWarning, "cudaFreeHost failed on rank " + std::to_string(caller_.rank));
  }
}

}  // namespace troupe::collectives::nccl
