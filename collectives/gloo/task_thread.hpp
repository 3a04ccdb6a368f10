/// A thread that runs blocking calls in order, and the Work of each.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "collectives/process_group.hpp"

namespace troupe::collectives {

class TaskThread {
 public:
  TaskThread();
  /// Runs what is queued and joins.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  /// Queues `task`; what it throws, its Work's wait() throws. The waits of the Work end when the task does:
  /// it is the task that has a deadline and notices an abort.
  /// `source`: where the task leaves Work::source().
  std::shared_ptr<Work> run(std::function<void()> task, std::shared_ptr<std::atomic<int>> source = nullptr);
  /// Whether nothing is queued or running.
  bool idle() const;
  /// Waits for that until `end`; whether it is so.
  bool await_idle(std::chrono::steady_clock::time_point end) const;

 private:
  class Task;
  void loop();

  mutable std::mutex mutex_;
  std::condition_variable changed_;          ///< for the thread
  mutable std::condition_variable idle_;     ///< nothing is queued or running
  std::deque<std::shared_ptr<Task>> queue_;  ///< the running one is at the front
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace troupe::collectives
