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

/// What a trainer holds at a job's end, as the bytes of a safetensors file, asked for piece by piece.
///
/// Not synchronized: no task of the trainer may run meanwhile.
class HeldState {
 public:
  /// The piece from `offset` on; none is left where it has no bytes, and the copy is given back.
  ///
  /// @throws Error kUnavailable where the trainer holds no whole state
  HeldPiece piece(const TrainerMachine& machine, TrainEngine& engine, bool weights_only,
                  std::uint64_t offset);

  /// Throws Unavailable where there is no whole state, or it may be changing.
  static void check(const TrainerMachine& machine);

 private:
  bool holds(const TrainerMachine& machine, bool weights_only) const;

  std::vector<std::byte> bytes_;
  bool weights_only_ = false;
  std::int64_t steps_ = kNoState;
  Generation lineage_;
};

}  // namespace troupe::train
