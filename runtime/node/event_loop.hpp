/// The loop of a node or head process: descriptors, timers, and work posted by other threads, all in one
/// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"

namespace troupe {

/// One thread runs it; `post` and `stop` may be called from any thread.
class EventLoop {
 public:
  using Callback = std::function<void()>;
  using OnEvents = std::function<void(bool readable, bool writable, bool closed)>;

  EventLoop();

  /// Calls `callback` while `fd` is readable or closed. The caller keeps the descriptor open until `forget`.
  /// What the kernel said of a descriptor before it was forgotten never reaches the next one with its number.
  void watch(int fd, OnEvents callback);
  /// Whether the callback also hears that `fd` is writable.
  void watch_writable(int fd, bool on);
  void forget(int fd);
  /// Calls `callback` every `period`, from now on.
  void every(Duration period, Callback callback);
  /// Calls `callback` once, `delay` from now.
  void after(Duration delay, Callback callback);
  /// Runs `work` in the loop's thread: up to 256 a turn, so that timers and descriptors get theirs.
  /// Thread-safe.
  void post(Callback work);
  /// Runs until `stop`; then true. Or until `pause`, called in the loop's thread; then false, and it may run
  /// again.
  bool run();
  void pause() { paused_ = true; }
  void stop() { stopping_ = true; }

 private:
  struct Timer {
    Instant due{};
    Duration period{};
    Callback callback;
  };
  struct Watch {
    std::uint32_t generation = 0;
    std::shared_ptr<OnEvents> callback;
  };
  void run_posted();
  void wake();
  int run_timers();

  UniqueFd epoll_;
  UniqueFd wake_;
  std::map<int, Watch> watched_;
  std::uint32_t generation_ = 0;  ///< of the newest watch
  std::vector<std::shared_ptr<Timer>> timers_;
  std::mutex mutex_;
  std::deque<Callback> posted_;  ///< guarded by mutex_
  bool paused_ = false;
  std::atomic<bool> stopping_{false};
};

}  // namespace troupe
