/// What time, waits and threads stand on. In production the kernel; a simulation installs its own in its one
/// thread, and runs the threads of all its processes there, one at a time, in an order that its seed decides.
///
/// Everything that waits does so in futex_wait (Condition, Future, Window), reads the time from
/// MonotonicClock and starts a thread as Thread: so production code runs in a simulation as it is. A mutex
/// is not held while it waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/core/clock.hpp"

namespace troupe {

class ThreadFloor {
 public:
  virtual ~ThreadFloor() = default;
  virtual Instant now() = 0;
  /// As futex_wait and futex_wake; masks do not matter.
  virtual void wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout) = 0;
  virtual void wake(std::atomic<std::uint32_t>& word) = 0;

  class Running {
   public:
    virtual ~Running() = default;
    virtual void join() = 0;
  };
  virtual std::unique_ptr<Running> start(std::function<void()> body) = 0;

  /// That of the calling thread; null: the kernel.
  static ThreadFloor* current() { return current_; }

 private:
  friend class ThreadFloorScope;
  static inline thread_local ThreadFloor* current_ = nullptr;
};

/// Installs a floor in the calling thread for a scope.
class ThreadFloorScope {
 public:
  explicit ThreadFloorScope(ThreadFloor* floor) : before_(ThreadFloor::current_) {
    ThreadFloor::current_ = floor;
  }
  ~ThreadFloorScope() { ThreadFloor::current_ = before_; }
  ThreadFloorScope(const ThreadFloorScope&) = delete;
  ThreadFloorScope& operator=(const ThreadFloorScope&) = delete;

 private:
  ThreadFloor* before_;
};

}  // namespace troupe
