#include "collectives/native/ring.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/core/futex.hpp"

namespace troupe::collectives {

void wake_sleepers(Progress& progress) {
  progress.sleepers.store(0, std::memory_order_relaxed);
  futex_wake(progress.rounds, std::numeric_limits<int>::max());
}

void sleep_on(Progress& progress, std::uint32_t seen, Duration slice) {
  progress.sleepers.store(1, std::memory_order_seq_cst);
  if (progress.rounds.load(std::memory_order_seq_cst) != seen) return;
  futex_wait(progress.rounds, seen, slice);
}

std::size_t Ring::put(std::span<const std::byte> from) {
  const std::size_t used = at_ - head_->read.rounds.load(std::memory_order_acquire);
  is_corrupt_ = is_corrupt_ || used > mask_ + 1;
  if (is_corrupt_) return 0;
  const std::size_t fit = std::min(from.size(), mask_ + 1 - used);
  const std::size_t begin = at_ & mask_;
  const std::size_t first = std::min(fit, mask_ + 1 - begin);
  if (first != 0) std::memcpy(data_ + begin, from.data(), first);
  if (fit != first) std::memcpy(data_, from.data() + first, fit - first);
  at_ += static_cast<std::uint32_t>(fit);
  return fit;
}

std::size_t Ring::take(std::span<std::byte> into) {
  const std::size_t there = head_->written.rounds.load(std::memory_order_acquire) - at_;
  is_corrupt_ = is_corrupt_ || there > mask_ + 1;
  if (is_corrupt_) return 0;
  const std::size_t got = std::min(there, into.size());
  if (got == 0) return 0;
  const std::size_t begin = at_ & mask_;
  const std::size_t first = std::min(got, mask_ + 1 - begin);
  std::memcpy(into.data(), data_ + begin, first);
  if (got != first) std::memcpy(into.data() + first, data_, got - first);
  at_ += static_cast<std::uint32_t>(got);
  publish(head_->read, at_);
  return got;
}

}  // namespace troupe::collectives
