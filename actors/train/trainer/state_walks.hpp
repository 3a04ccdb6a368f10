/// What a trainer does with the whole state of its job, part by part (engine/state_walk.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/train/engine/engine.hpp"
#include "actors/train/engine/state_walk.hpp"
#include "actors/train/trainer/trainer_machine.hpp"

namespace troupe::train {

/// Of a copy, a part at a time in memory.
class CopyWalk final : public StateWalk {
 public:
  explicit CopyWalk(StateCopy& copy);
  const std::vector<StatePart>& parts() const override { return copy_.parts(); }
  std::span<const std::byte> bytes(std::size_t part) override;
  bool is_collective() const override { return false; }

 private:
  StateCopy& copy_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::byte> memory_;
};

Hashed hash_state(StateWalk& walk, const WalkProgress& progress);

/// Saves it with the request's job, position and metadata. Throws what the store says, and what `progress`
/// throws; then, too, the others are through with follow_save().
CheckpointStored save_state(StateWalk& walk, checkpoint::CheckpointStore store,
                            checkpoint::SaveRequest request, const WalkProgress& progress);
/// What the other ranks do meanwhile.
void follow_save(StateWalk& walk);

}  // namespace troupe::train
