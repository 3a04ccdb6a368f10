/// The copy of its state that a trainer keeps for trainers of other jobs: one at a time.
#pragma once

#include <memory>

#include "actors/train/trainer/state_stream.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

/// Which copy, of which state.
struct KeptState {
  std::uint64_t number = 0;
  std::int64_t steps = kNoState;
  Generation lineage;
};

/// Not thread-safe.
class KeptCopy {
 public:
  /// In place of the one before. `make` says what it is of.
  template <class Make>
  KeptState take(Make make) {
    stream_.reset();
    KeptState what{++number_, kNoState, {}};
    stream_ = make(what);
    return what;
  }
  void drop() { stream_.reset(); }
  /// Throws Unavailable if `number` is not the one that is kept.
  SharedPiece read(std::uint64_t number, std::uint64_t offset) {
    if (stream_ == nullptr || number != number_)
      throw_error(
          {ErrorCode::kUnavailable, "the state is not kept any more", "its trainer went on since", ""});
    return stream_->read(offset);
  }

 private:
  std::unique_ptr<StateStream> stream_;
  std::uint64_t number_ = 0;
};

}  // namespace troupe::train
