/// A thread for work that may wait for a disk, so that a loop does not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/core/quiet_thread.hpp"

namespace troupe {

/// Thread-safe. Does what is posted, in order.
class WorkThread {
 public:
  WorkThread() : thread_(start_quiet_thread([this] { run(); })) {}
  /// Waits for the work at hand, and drops the rest.
  ~WorkThread() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
        if (stopping_) return;
        work = std::move(posted_.front());
        posted_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;  ///< guarded by mutex_
  bool stopping_ = false;                     ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace troupe
