/// Work that is done one piece at a time, in the order it came, in whichever thread brings it.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/host/registry.hpp"

namespace troupe::serve {

/// A thread of its own for a machine would cost two wake-ups a request. Here who brings work does it, unless
/// somebody is at it, who then does this, too. Thread-safe.
class Serial {
 public:
  using Work = std::function<void()>;
  /// Carries work on in another thread.
  using GoOn = std::function<void(Work)>;

  /// `go_on`: where work goes that the calling thread has done enough of: it has a job of its own.
  explicit Serial(GoOn go_on) : go_on_(std::move(go_on)) {}

  void post(Work work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
      if (std::exchange(running_, true)) return;
    }
    run();
  }

 private:
  static constexpr int kEnough = 64;

  void run() {
    for (int done = 0;; ++done) {
      Work work;
      {
        const std::lock_guard lock(mutex_);
        if (queue_.empty()) {
          running_ = false;
          return;
        }
        if (done < kEnough) {
          work = std::move(queue_.front());
          queue_.pop_front();
        }
      }
      if (!work) return go_on_([this] { run(); });
      try {
        work();
      } catch (...) {  // the next is another's
        log(LogLevel::kError, describe_exception("a deployment's work").message());
      }
    }
  }

  const GoOn go_on_;
  std::mutex mutex_;  ///< guards what follows
  std::deque<Work> queue_;
  bool running_ = false;
};

}  // namespace troupe::serve
