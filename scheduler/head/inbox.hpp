/// What has come for the head's loop and was not looked at yet, in bytes: a bound on what peers can pile up.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace troupe {

/// Thread-safe. A peer that sends faster than the loop takes is not heard for a while: from the first frame
/// that is too much until all before it are done. Then it must say everything again, since what it says
/// counts in order or not at all.
class Inbox {
 public:
  struct Limits {
    std::size_t peer_bytes = std::size_t{32} << 20;
    std::size_t total_bytes = std::size_t{1} << 30;
  };
  explicit Inbox(Limits limits) : limits_(limits) {}
  Inbox() : Inbox(Limits{}) {}

  /// Whether a frame of `from` is taken. One of any size is, while less than the limits waits.
  bool take(const std::string& from, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (overrun_.contains(from)) return false;
    Waiting& waiting = waiting_[from];
    // A peer of which nothing waits is taken in any case: somebody must come to say that it was refused.
    const bool is_full = waiting.bytes >= limits_.peer_bytes || total_bytes_ >= limits_.total_bytes;
    if (is_full && waiting.frames > 0) {
      overrun_.insert(from);
      return false;
    }
    waiting.bytes += bytes;
    ++waiting.frames;
    total_bytes_ += bytes;
    return true;
  }
  /// A frame that was taken is done. True: frames of that peer were not taken, and it must say everything
  /// again.
  bool done(const std::string& from, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    total_bytes_ -= bytes;
    const auto at = waiting_.find(from);
    at->second.bytes -= bytes;
    if (--at->second.frames > 0) return false;
    waiting_.erase(at);
    return overrun_.erase(from) == 1;
  }

 private:
  struct Waiting {
    std::size_t bytes = 0;
    std::size_t frames = 0;
  };
  const Limits limits_;
  std::mutex mutex_;
  std::map<std::string, Waiting> waiting_;  ///< guarded by mutex_
  std::size_t total_bytes_ = 0;             ///< guarded by mutex_; the sum over waiting_
  std::set<std::string> overrun_;           ///< guarded by mutex_
};

}  // namespace troupe
