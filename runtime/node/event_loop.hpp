/// The loop of a node or head process: descriptors, timers, and work posted by other threads, all in one
/// thread.
#pragma once

#include <atomic>
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
  void watch(int fd, OnEvents callback);
  /// Whether the callback also hears that `fd` is writable.
  void watch_writable(int fd, bool on);
  void forget(int fd);
  /// Calls `callback` every `period`, from now on.
  void every(Duration period, Callback callback);
  /// Calls `callback` once, `delay` from now.
  void after(Duration delay, Callback callback);
  /// Runs `work` in the loop's thread. Thread-safe.
  void post(Callback work);
  /// Runs until `stop`.
  void run();
  void stop() { stopping_ = true; }

 private:
  struct Timer {
    Instant due{};
    Duration period{};
    Callback callback;
  };
  void run_posted();
  int run_timers();

  UniqueFd epoll_;
  UniqueFd wake_;
  std::map<int, std::shared_ptr<OnEvents>> watched_;
  std::vector<std::shared_ptr<Timer>> timers_;
  std::mutex mutex_;
  std::vector<Callback> posted_;
  bool stopping_ = false;
};

}  // namespace troupe
