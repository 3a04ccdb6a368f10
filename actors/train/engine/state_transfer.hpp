/// A TrainState's way from one rank of a group to those that lack it, point to point: the others take no
/// part.
///
/// ```
/// i64 bytes of the prefix, i64 bytes in all | prefix (safetensors.hpp) | parts in pieces | 16 bytes a part
/// ```
/// The last message has the XXH3-128 of each part, which the sender takes as the part goes by. The receiver
/// takes its own as the part comes in, in spare memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "actors/train/engine/state_parts.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// Sends `parts` to each of `receivers`, at the same time. Throws what the group throws, BadInput for parts
/// that safetensors cannot lay out, and what `progress` throws.
void send_state(collectives::ProcessGroup& group, std::span<const StatePart> parts,
                const std::vector<int>& receivers, const WalkProgress& progress);

/// What arrived, whole: every part has its sender's hash.
struct ReceivedState {
  std::unique_ptr<std::byte[]> memory;  ///< what the parts point into
  std::vector<StatePart> parts;
};

/// The other side of send_state. Throws what the group throws, Corrupt for a part that is not what was sent,
/// and what `progress` throws.
ReceivedState receive_state(collectives::ProcessGroup& group, int source, const WalkProgress& progress);

}  // namespace troupe::train
