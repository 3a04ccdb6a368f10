/// Processes from which a look at /proc has not come back.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <set>

namespace troupe::node {

/// Thread-safe. For looks that come one after another: whoever an earlier one still waits for, a later one
/// leaves out.
class StuckProcesses {
 public:
  /// Each costs a thread. With so many no process is looked at any more.
  static constexpr std::size_t kMost = 16;

  /// Calls `look`, which may wait for `process`. False, and it is not called: an earlier one waits there
  /// still.
  bool look_at(pid_t process, const std::function<void()>& look) {
    {
      const std::lock_guard lock(mutex_);
      if (waits_for_.size() >= kMost || !waits_for_.insert(process).second) return false;
    }
    struct Back {
      StuckProcesses& all;
      pid_t process;
      ~Back() {
        const std::lock_guard lock(all.mutex_);
        all.waits_for_.erase(process);
      }
    } back{*this, process};
    look();
    return true;
  }

 private:
  std::mutex mutex_;
  std::set<pid_t> waits_for_;  ///< guarded by mutex_
};

}  // namespace troupe::node
