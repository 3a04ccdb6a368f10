/// The threads that run the methods of an actor with max_concurrency.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/core/condition.hpp"
#include "runtime/core/thread.hpp"

namespace troupe {

/// Thread-safe, but stop(). Threads start when work finds none idle.
class MethodThreads {
 public:
  using Work = std::function<void()>;

  explicit MethodThreads(std::size_t most) : most_(most) {}
  ~MethodThreads() { stop(); }
  MethodThreads(const MethodThreads&) = delete;
  MethodThreads& operator=(const MethodThreads&) = delete;

  /// Work begins in the order in which it came. Where no thread can be started at all the caller does it.
  /// REQUIRES: it does not throw.
  void run(Work work);
  /// Waits for what runs, and gives back what has not begun. REQUIRES: not called in one of the threads.
  std::deque<Work> stop();

 private:
  void serve();

  const std::size_t most_;
  std::mutex mutex_;  ///< guards what follows
  Condition has_work_;
  std::deque<Work> waiting_;
  std::size_t idle_ = 0;  ///< threads that wait for work, and no work is meant for them
  bool stops_ = false;
  std::vector<Thread> threads_;
};

}  // namespace troupe
