/// Which answers of an actor that saves its state may leave, and when it saves.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe {

/// Thread-safe; no I/O of its own. An answer leaves once all that had changed before it is held for the next
/// life. One save is under way at a time: calls that run meanwhile share the next one. Answers are given, and
/// dropped, without the lock.
///
/// Invariant: held_ <= begun_ <= changes_, and answers wait in the order of their changes, all above held_.
class HeldAnswers {
 public:
  /// Gives the answer; or, where a change before it is not held, this error.
  using Give = std::function<void(const ErrorInfo* not_held)>;

  /// The object has changed, or may have.
  void changed();
  /// An answer that follows the changes so far. Gives it at once if they are held.
  void add(Give give);
  /// False: a save is under way, or there is nothing to save. Else the caller saves the object as it is now.
  bool begin_save();
  /// That save has ended: these may leave, in order.
  std::vector<Give> end_save();
  /// No answer waits.
  bool empty() const;
  /// Drops those that wait.
  void clear();

 private:
  struct Waiting {
    std::uint64_t changes = 0;  ///< that it follows
    Give give;
  };
  mutable std::mutex mutex_;  ///< guards what follows
  std::uint64_t changes_ = 0;
  std::uint64_t begun_ = 0;  ///< changes that the last save has
  std::uint64_t held_ = 0;   ///< changes that the last save has that ended
  std::deque<Waiting> waiting_;
};

}  // namespace troupe
