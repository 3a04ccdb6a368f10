/// A trainer's state and the steps since, as one run of bytes that another one takes while the steps go on.
///
/// ```
/// u64 n, SharedState | the state as a safetensors file | for each step: u64 n, SharedStep | its record
/// ```
/// Numbers are little-endian, both heads as the wire encodes them (n bytes). A record is
/// TrainEngine::step_record. Whoever follows asks for the piece at an offset, and applies each step when it
/// is there whole: it computes no leaf, so it comes as far as those who do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "actors/train/engine/state_transfer.hpp"
#include "actors/train/plan.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::train {

struct SharedState {
  std::int64_t steps = 0;
  std::vector<StepReport> uncommitted;  ///< as TrainerQuiesced has them
  std::uint64_t bytes = 0;
};

struct SharedStep {
  StepReport report;
  std::int64_t committed = 0;  ///< steps below it were, when it was applied
  double total_weight = 0;     ///< TrainEngine::apply
  StepValues evaluated{};      ///< TrainEngine::observe
  std::uint64_t bytes = 0;
};

struct SharedPiece {
  wire::Bytes bytes;  ///< shorter than kSharedPiece: nothing is behind it yet
  checkpoint::Digest128 digest;
};
inline constexpr std::size_t kSharedPiece = std::size_t{4} << 20;

/// The source's end. Thread-safe.
class StateStream {
 public:
  StateStream(Generation generation, SharedState head, std::unique_ptr<StateCopy> copy);

  /// In which it began.
  Generation generation() const { return generation_; }
  /// A step was applied. What nobody fetches may grow to the size of the state, and to kLeastKept; then the
  /// stream ends.
  void add(SharedStep step, wire::ByteView record);
  /// Throws Unavailable if the stream has ended.
  SharedPiece read(std::uint64_t offset);
  /// Of the state alone, as StateCopy::memory(): a read, too.
  std::optional<StateMemory> memory(std::int32_t reader) {
    ++reads_;
    return copy_->memory(reader);
  }
  /// Counts its own calls since the last piece was read. For one thread at a time.
  int beats_without_a_read() {
    if (reads_ != std::exchange(reads_seen_, reads_)) beats_ = 0;
    return beats_++;
  }

  static constexpr int kQuietBeats = 60;  ///< nobody fetches it for so many seconds: nobody will
  static constexpr std::uint64_t kLeastKept = std::uint64_t{256} << 20;

 private:
  const Generation generation_;
  const wire::Bytes head_;
  const std::unique_ptr<StateCopy> copy_;
  const std::uint64_t log_begin_;  ///< offset

  std::atomic<std::uint64_t> reads_{0};
  std::uint64_t reads_seen_ = 0;
  int beats_ = 0;     ///< since then
  std::mutex mutex_;  ///< guards what follows
  struct Entry {
    std::uint64_t begin = 0;  ///< offset
    wire::Bytes bytes;
  };
  std::vector<Entry> log_;
  std::uint64_t end_;
  bool ended_ = false;
};

/// The follower's end. Not thread-safe.
class StateFollower {
 public:
  /// `pull` gives the piece at an offset. What it throws leaves pull().
  using Pull = std::function<SharedPiece(std::uint64_t offset)>;
  explicit StateFollower(Pull pull) : pull_(std::move(pull)) {}

  /// Fetches a piece. False if there is nothing behind it yet. Throws Corrupt for one that is not what was
  /// sent.
  bool pull();
  /// The state, once, when it is there whole.
  std::optional<ReceivedState> take_state();
  /// Of that state. REQUIRES: take_state gave it.
  const SharedState& head() const { return *head_; }
  struct Step {
    SharedStep head;
    wire::ByteView record;  ///< until the next pull
  };
  /// The next step, when it is there whole.
  std::optional<Step> take_step();

 private:
  wire::ByteView unread() const { return wire::ByteView(buffer_).subspan(at_); }
  template <class Head>
  std::optional<Head> take_head();

  Pull pull_;
  std::uint64_t offset_ = 0;
  wire::Bytes buffer_;  ///< fetched, from at_ on not taken yet
  std::size_t at_ = 0;
  std::optional<SharedState> head_;
  std::unique_ptr<std::byte[]> state_;
  std::uint64_t filled_ = 0;
  bool state_taken_ = false;
  std::optional<SharedStep> step_;  ///< whose record is still to come
};

}  // namespace troupe::train
