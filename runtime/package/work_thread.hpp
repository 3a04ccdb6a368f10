/// A thread for work that may wait for a disk, so that a loop does not.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "runtime/core/condition.hpp"
#include "runtime/core/thread.hpp"

namespace troupe {

/// Thread-safe. Does what is posted, in order.
class WorkThread {
 public:
  WorkThread() : thread_(Thread::quiet([this] { run(); })) {}
  /// Waits for the work at hand, and drops the rest.
  ~WorkThread() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(work));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        while (!stopping_ && posted_.empty()) changed_.wait(lock);
        if (stopping_) return;
        work = std::move(posted_.front());
        posted_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> posted_;  ///< guarded by mutex_
  bool stopping_ = false;                     ///< guarded by mutex_
  Thread thread_;
};

}  // namespace troupe
