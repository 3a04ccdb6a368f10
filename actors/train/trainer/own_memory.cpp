#include "actors/train/trainer/own_memory.hpp"

#include <atomic>
#include <cstring>

namespace troupe::train {

std::shared_ptr<SharedMemory> OwnMemory::take(std::size_t bytes, std::size_t zeroed, const Open& open) {
  const std::lock_guard lock(mutex_);
  const bool fits =
      kept_ != nullptr && kept_.use_count() == 1 && kept_->size() >= bytes && kept_->size() / 2 <= bytes;
  if (fits) {
    std::atomic_thread_fence(std::memory_order_acquire);  // what its last holder wrote comes before
    std::memset(kept_->data(), 0, zeroed);
    return kept_;
  }
  kept_.reset();  // first: both may be more than there is
  kept_ = open(bytes);
  return kept_;
}

void OwnMemory::drop() {
  const std::lock_guard lock(mutex_);
  kept_.reset();
}

}  // namespace troupe::train
