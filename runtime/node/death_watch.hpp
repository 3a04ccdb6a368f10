/// Learns of a process's death when it begins. A pidfd tells once the kernel has taken the process's memory
/// apart, which takes a trainer's some 10 to 20 ms; a lock that it holds is let go before that.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/core/ids.hpp"

namespace troupe {

/// One thread waits for all locks at once. Where the kernel cannot do that (before Linux 5.16), and beyond
/// 127 processes, nothing is told and pidfds remain. Thread-safe.
class DeathWatch {
 public:
  /// Called on the watch's thread, once a process: the thread that held its lock has ended. Whether the
  /// process does is to be seen (how_it_ends).
  using OnDeath = std::function<void(ProcessId)>;

  explicit DeathWatch(OnDeath on_death);
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;
  ~DeathWatch();

  /// Memory with a lock, for hold_lock of one process.
  static Result<SharedMemory> make_lock();
  /// From now on, for a process that holds its lock.
  void add(ProcessId process, SharedMemory lock);
  void remove(ProcessId process);

 private:
  struct Entry {
    ProcessId process;
    SharedMemory lock;
  };
  void run();
  void wake();

  OnDeath on_death_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// Takes the lock in `memory`, for as long as the calling thread lives. Errors: kIo, kRefused.
Result<void> hold_lock(UniqueFd memory);

}  // namespace troupe
