/// A mutex for what is contended rarely: the engine's, which only an abort and the thread that serves other
/// hosts take beside the one that issues operations.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/core/futex.hpp"

namespace troupe::collectives {

/// Given back by a plain store. A pthread mutex gives itself back by an exchange, which waits until all that
/// was written before has its cache lines: 100 ns of a small operation, whose stage others have just read.
class SpinLock {
 public:
  void lock() {
    for (unsigned turn = 0; !try_lock(); ++turn) {
      if (turn < kSpins) {
        spin_pause(turn);
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }
  bool try_lock() {
    return !held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire);
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  static constexpr unsigned kSpins = 4096;
  std::atomic<bool> held_{false};
};

}  // namespace troupe::collectives
