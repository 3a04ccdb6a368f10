/// The copy of its state that a trainer keeps for trainers of other jobs: one at a time.
#pragma once

#include <memory>
#include <optional>

#include "actors/train/trainer/state_stream.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"

namespace troupe::train {

/// Which copy, of which state.
struct KeptState {
  std::uint64_t number = 0;  ///< drawn at random: who is not told of the copy cannot ask for it
  std::int64_t steps = kNoState;
  Generation lineage;
};

/// How it is had.
struct KeptPlace {
  bool given_up = false;              ///< nobody wanted it for a while
  std::optional<StateMemory> memory;  ///< on its own host; none: in pieces
};

/// Not thread-safe.
class KeptCopy {
 public:
  /// In place of the one before. `make` says what it is of.
  template <class Make>
  KeptState take(Make make) {
    drop();
    KeptState what{SystemRandom().next(), kNoState, {}};
    stream_ = make(what);
    number_ = what.number;
    return what;
  }
  void drop() {
    stream_.reset();
    number_.reset();
    is_taken_ = false;
  }
  /// Once a second. The pages that its trainer changes are kept twice, so one that nobody reads for
  /// kIdleBeats is given up, and one that somebody took whole for kTakenBeats: another clone may be on its
  /// way.
  void beat() {
    if (stream_ == nullptr) return;
    if (stream_->beats_without_a_read() >= (is_taken_ ? kTakenBeats : kIdleBeats)) stream_.reset();
  }
  static constexpr int kIdleBeats = 120;
  static constexpr int kTakenBeats = 10;

  /// For the process `reader`; 0: it is read in pieces alone. Throws Unavailable if `number` is another one
  /// by now.
  KeptPlace place(std::uint64_t number, std::int32_t reader) {
    if (number != number_) went_on();
    if (stream_ == nullptr) return {.given_up = true, .memory = {}};
    if (reader <= 0) return {.given_up = false, .memory = {}};  // -1 would let every process read it
    return {.given_up = false, .memory = stream_->memory(reader)};
  }
  /// Throws Unavailable if `number` is not the one that is kept.
  SharedPiece read(std::uint64_t number, std::uint64_t offset) {
    if (stream_ == nullptr || number != number_) went_on();
    return stream_->read(offset);
  }
  /// Somebody has all of it.
  void taken(std::uint64_t number) { is_taken_ = is_taken_ || number == number_; }

 private:
  [[noreturn]] static void went_on() {
    throw_error({ErrorCode::kUnavailable, "the state is not kept any more", "its trainer went on since", ""});
  }

  std::unique_ptr<StateStream> stream_;  ///< null with a number: it was given up
  std::optional<std::uint64_t> number_;
  bool is_taken_ = false;
};

}  // namespace troupe::train
