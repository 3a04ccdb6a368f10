#pragma once

#include <cstdint>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "actors/train/messages.hpp"
#include "actors/train/trainer/trainer_machine.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {

/// A piece of the state that a trainer holds, and which state that is.
struct HeldPiece {
  std::int64_t steps = kNoState;
  Generation lineage;
  wire::Bytes bytes;
};

/// Which of it.
struct HeldWish {
  bool weights_only = false;  ///< parameters and buffers alone
  bool in_shards = false;  ///< what this trainer keeps of it (write_shard); else all, as a safetensors file
  bool operator==(const HeldWish&) const = default;
};

/// What a trainer holds at a job's end, as bytes that are asked for piece by piece.
///
/// Not synchronized: no task of the trainer may run meanwhile.
class HeldState {
 public:
  /// The piece from `offset` on; none is left where it has no bytes, and the copy is given back.
  ///
  /// @throws Error kUnavailable where the trainer holds no whole state
  HeldPiece piece(const TrainerMachine& machine, TrainEngine& engine, HeldWish wish, std::uint64_t offset);

  /// Throws Unavailable where there is no whole state, or it may be changing.
  static void check(const TrainerMachine& machine);

 private:
  bool holds(const TrainerMachine& machine, HeldWish wish) const;

  std::vector<std::byte> bytes_;
  HeldWish wish_;
  std::int64_t steps_ = kNoState;
  Generation lineage_;
};

}  // namespace troupe::train
