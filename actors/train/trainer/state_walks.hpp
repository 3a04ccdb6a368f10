/// What a trainer does with the whole state of its job, part by part (engine/state_walk.hpp).
#pragma once

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/train/engine/state_walk.hpp"
#include "actors/train/trainer/trainer_machine.hpp"

namespace troupe::train {

Hashed hash_state(StateWalk& walk, const WalkProgress& progress);

/// Saves it: sets the request's hash and tensors. Throws what the store says, and what `progress` throws;
/// then, too, the others are through with follow_save().
checkpoint::SavedCheckpoint save_state(StateWalk& walk, checkpoint::CheckpointStore store,
                                       checkpoint::SaveRequest& request, const WalkProgress& progress);
/// What the other ranks do meanwhile.
void follow_save(StateWalk& walk);

}  // namespace troupe::train
