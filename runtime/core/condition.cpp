#include "runtime/core/condition.hpp"

#include <climits>

#include "runtime/core/futex.hpp"

namespace troupe {

void Condition::wait_for(std::unique_lock<std::mutex>& lock, Duration limit) {
  const std::uint32_t seen = changes_.load(std::memory_order_relaxed);  // the mutex orders it
  lock.unlock();
  futex_wait(changes_, seen, limit);
  lock.lock();
}

void Condition::notify_all() {
  changes_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(changes_, INT_MAX);
}

}  // namespace troupe
