/// Which answers of an actor that saves its state may leave, and when it saves.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/core/error.hpp"
#include "runtime/wire/address.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe {

/// Thread-safe; no I/O of its own. An answer leaves once all that had changed before it is held for the next
/// life. One save is under way at a time: calls that run meanwhile share the next one. Answers are given, and
/// dropped, without the lock.
///
/// Invariant: held_ <= begun_ <= prepared_ <= changes_, and answers wait in the order of their changes, all
/// above held_.
class HeldAnswers {
 public:
  /// Gives the answer; or, where a change before it is not held, this error.
  using Give = std::function<void(const ErrorInfo* not_held)>;

  /// The object has changed, or may have.
  void changed();
  /// An answer of `bytes` that follows the changes so far. Gives it at once if they are held.
  void add(ProcessAddress caller, std::size_t bytes, Give give);
  /// Of the answers to that caller that wait here.
  std::size_t bytes_for(ProcessAddress caller) const;
  /// False: a save is under way, or there is nothing to save. Else the caller saves the object as it is now.
  bool begin_save();
  /// Answers wait that neither the save under way has what they follow, nor a state that is prepared.
  bool wants_prepared() const;
  /// The object as it is now: what is saved next, as soon as the save under way has ended. False: it has.
  bool prepare(wire::Bytes state);
  struct Ended {
    std::vector<Give> leave;          ///< in order
    std::optional<wire::Bytes> next;  ///< whose save has begun with this
  };
  /// The save under way has ended.
  Ended end_save();
  /// No answer waits.
  bool empty() const;
  /// Drops those that wait.
  void clear();

 private:
  struct Waiting {
    std::uint64_t changes = 0;  ///< that it follows
    ProcessAddress caller;
    std::size_t bytes = 0;
    Give give;
  };
  mutable std::mutex mutex_;  ///< guards what follows
  std::uint64_t changes_ = 0;
  std::uint64_t prepared_ = 0;       ///< changes that next_ has, or else the last save
  std::uint64_t begun_ = 0;          ///< changes that the last save has
  std::uint64_t held_ = 0;           ///< changes that the last save has that ended
  std::optional<wire::Bytes> next_;  ///< to be saved next
  std::deque<Waiting> waiting_;
  std::unordered_map<ProcessAddress, std::size_t> bytes_;  ///< of waiting_, by caller
};

}  // namespace troupe
