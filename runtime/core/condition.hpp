/// A condition variable on futex_wait: a simulation sees who waits for what.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "runtime/core/clock.hpp"

namespace troupe {

/// As std::condition_variable: wakes may be spurious, the caller checks again.
class Condition {
 public:
  void wait(std::unique_lock<std::mutex>& lock) { wait_for(lock, Duration::max()); }
  void wait_for(std::unique_lock<std::mutex>& lock, Duration limit);
  void notify_all();

 private:
  std::atomic<std::uint32_t> changes_{0};
};

}  // namespace troupe
