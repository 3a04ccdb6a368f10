/// Which answers of an actor that saves its state may leave, and when it saves.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe {

/// Pure. An answer leaves once all that had changed before it is held for the next life. One save is under
/// way at a time: calls that run meanwhile share the next one.
///
/// Invariant: held_ <= begun_ <= changes_, and answers wait in the order of their changes, all above held_.
class HeldAnswers {
 public:
  /// Gives the answer; or, where a change before it is not held, this error.
  using Give = std::function<void(const ErrorInfo* not_held)>;

  /// The object has changed, or may have.
  void changed() { ++changes_; }
  /// An answer that follows the changes so far. Gives it at once if they are held.
  void add(Give give);
  /// False: a save is under way, or there is nothing to save. Else the caller saves the object as it is now.
  bool begin_save();
  /// That save has ended: these may leave, in order.
  std::vector<Give> end_save();
  /// No answer waits.
  bool empty() const { return waiting_.empty(); }
  /// Drops those that wait.
  void clear() { waiting_.clear(); }

 private:
  struct Waiting {
    std::uint64_t changes = 0;  ///< that it follows
    Give give;
  };
  std::uint64_t changes_ = 0;
  std::uint64_t begun_ = 0;  ///< changes that the last save has
  std::uint64_t held_ = 0;   ///< changes that the last save has that ended
  std::deque<Waiting> waiting_;
};

}  // namespace troupe
