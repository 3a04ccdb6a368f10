#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "actors/checkpoint/safetensors.hpp"
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

/// What a trainer holds at a job's end, as bytes that are asked for piece by piece. It is not copied: each
/// piece is taken from where the state is, so that none takes long, however large that is.
///
/// Not synchronized: no task of the trainer may run meanwhile.
class HeldState {
 public:
  /// The piece from `offset` on; none is left where it has no bytes.
  ///
  /// @throws Error kUnavailable where the trainer holds no whole state, or may be changing it
  HeldPiece piece(const TrainerMachine& machine, TrainEngine& engine, HeldWish wish, std::uint64_t offset);

  /// Throws Unavailable where there is no whole state, or it may be changing.
  static void check(const TrainerMachine& machine);
  /// Lets go of what it has laid out.
  void drop();

 private:
  /// Which state, in which shards.
  struct Of {
    HeldWish wish;
    std::int64_t steps = kNoState;
    Generation lineage;
    Generation generation;
    bool operator==(const Of&) const = default;
  };
  std::optional<Of> of_;  ///< none: nothing is laid out
  std::vector<HeldPart> parts_;
  checkpoint::SafetensorsLayout file_;  ///< views of what they own
};

}  // namespace troupe::train
