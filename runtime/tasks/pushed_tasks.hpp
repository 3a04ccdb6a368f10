/// What a worker knows of the tasks that were pushed to it: which have begun, and which never do. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>

#include "runtime/tasks/lease_pool.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::tasks {

/// One attempt of a task. A task that is tried again may come to the same worker again.
struct TaskAttempt {
  TaskNumber task = 0;
  std::uint32_t attempt = 0;  ///< from 1
  auto operator<=>(const TaskAttempt&) const = default;
};

/// It goes before the arguments of a push.
inline constexpr std::size_t kAttemptBytes = sizeof(TaskNumber) + sizeof(std::uint32_t);
inline void append(wire::Bytes& to, const TaskAttempt& one) {
  const std::size_t at = to.size();
  to.resize(at + kAttemptBytes);
  std::memcpy(to.data() + at, &one.task, sizeof one.task);
  std::memcpy(to.data() + at + sizeof one.task, &one.attempt, sizeof one.attempt);
}
/// Takes it off `bytes`; number 0: it is not there.
inline TaskAttempt cut_attempt(wire::ByteView& bytes) {
  TaskAttempt one;
  if (bytes.size() < kAttemptBytes) return one;
  std::memcpy(&one.task, bytes.data(), sizeof one.task);
  std::memcpy(&one.attempt, bytes.data() + sizeof one.task, sizeof one.attempt);
  bytes = bytes.subspan(kAttemptBytes);
  return one;
}

/// A worker that has no task for so long gives its CPUs to others until it has one. Its owner, which would
/// have given it back by now (PoolLimits::idle), hangs or is stopped.
inline constexpr Duration kUnused = std::chrono::seconds(10);

/// Not thread-safe. `now` never goes back.
class PushedTasks {
 public:
  /// From now on tasks may come.
  void serves(Instant now) { idle_since_ = now; }
  /// False: it was cancelled or taken back before it began, and does not run.
  bool begin(const TaskAttempt& one) {
    running_ = one.task;
    idle_since_.reset();
    const bool is_cancelled = not_wanted_.erase({one.task, kAll}) != 0;
    const bool is_back = not_wanted_.erase(one) != 0;
    if (is_cancelled || is_back) return false;
    begun_[next_begun_++ % begun_.size()] = one;
    return true;
  }
  void end(Instant now) {
    running_ = 0;
    idle_since_ = now;
  }
  /// When it is unused, if nothing begins until then. 0: it is.
  Duration unused_in(Instant now) const {
    return idle_since_ ? std::max(Duration::zero(), *idle_since_ + kUnused - now) : kUnused;
  }
  /// True: it runs. Else no attempt that comes later does.
  bool cancel(TaskNumber task) {
    if (task == running_) return true;
    refuse({task, kAll});
    return false;
  }
  /// True: it never begins here. False: it has begun.
  bool take_back(const TaskAttempt& one) {
    if (std::find(begun_.begin(), begun_.end(), one) != begun_.end()) return false;
    refuse(one);
    return true;
  }

 private:
  static constexpr std::uint32_t kAll = 0;
  static constexpr std::size_t kMostNotWanted = 8 * kPlaces;
  /// An older one goes for it: before it goes in, since it may be the oldest.
  void refuse(const TaskAttempt& one) {
    if (not_wanted_.size() >= kMostNotWanted) not_wanted_.erase(not_wanted_.begin());
    not_wanted_.insert(one);
  }

  TaskNumber running_ = 0;
  std::optional<Instant> idle_since_;             ///< none: one runs, or none may come
  std::array<TaskAttempt, 2 * kPlaces> begun_{};  ///< the last ones
  std::size_t next_begun_ = 0;
  std::set<TaskAttempt> not_wanted_;
};

}  // namespace troupe::tasks
