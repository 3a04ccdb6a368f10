/// A thread of what a simulation runs as it is: an actor's own threads.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "runtime/core/thread_floor.hpp"

namespace troupe {

/// As std::thread, but throws cannot_start_thread(), on the floor of whoever starts it. REQUIRES: joined
/// before it is destroyed or assigned to.
class Thread {
 public:
  Thread() = default;
  explicit Thread(std::function<void()> body);
  /// One that leaves the process's signals to others (quiet_thread.hpp).
  static Thread quiet(std::function<void()> body);
  bool joinable() const { return thread_.joinable() || simulated_ != nullptr; }
  void join();

 private:
  explicit Thread(std::thread thread) : thread_(std::move(thread)) {}
  std::thread thread_;
  std::unique_ptr<ThreadFloor::Running> simulated_;
};

/// The calling thread does nothing for so long.
void sleep_for(Duration time);

}  // namespace troupe
