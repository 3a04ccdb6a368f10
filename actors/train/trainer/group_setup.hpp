/// How a trainer makes the process group of a generation from its plan.
#pragma once

#include <memory>

#include "actors/train/floor.hpp"
#include "actors/train/trainer/own_memory.hpp"

namespace troupe::train {

/// Joins groups of the native backend: the shared memory of a generation with the ranks of this node,
/// authenticated sockets to the others. form() throws what the system or a peer refused, Timeout or
/// CollectiveAborted. Fresh memory a generation: nothing of an old one is used again, but by a group of one
/// rank on the CPU, which has it from `own`. That outlives the maker.
std::unique_ptr<GroupMaker> make_native_groups(const Session& session, const RunSettings& settings,
                                               OwnMemory& own);

}  // namespace troupe::train
