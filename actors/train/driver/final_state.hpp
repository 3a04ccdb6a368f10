/// The state that a job ended with, on its way into the program.
#pragma once

#include <functional>
#include <vector>

#include "actors/train/driver/train_driver.hpp"

namespace troupe::train {

/// All of it as a safetensors file, or parameters and buffers alone. `goes_on`: whether it is worth while to
/// ask again after a failure. Throws Unavailable when no trainer is left that holds the state, or the job has
/// come to another one before all of it came, Corrupt when what came is another one, and what a call throws.
/// Blocks.
wire::Bytes take_final_state(const ActorHandle<TrainDriver>& driver, bool weights_only,
                             const std::function<bool()>& goes_on);

/// The same from whoever gives the pieces: those of each shard in their order.
using AskForPiece = std::function<FinalPiece(int shard, std::uint64_t offset)>;
wire::Bytes join_pieces(const AskForPiece& ask);

/// Whether each tensor of a safetensors file has the bytes that `parts` says, by its name.
Result<void> check_parts(wire::ByteView file, const std::vector<PartHash>& parts);

}  // namespace troupe::train
