/// One of bench_ddp's two training processes.
#pragma once

#include <string>

#include "collectives/native/native_group.hpp"

namespace troupe::bench {

/// Bytes of the group's segment that all cases need together.
std::size_t ddp_tree_bytes();

/// Serves commands from `commands`, a line each: "<case> <mode> <steps>", until it ends. Rank 0 writes the
/// milliseconds a step took to `answers`, a line each; for 0 steps the bytes that the optimizer keeps there.
/// "ours" is under the trainer's engine, "hand" by DistributedDataParallel, "alone" the same step without
/// communication; "adam" and "sharded" are the case "wide" under the engine with AdamW, whole and sharded,
/// and "job_zero3" and "job_prefetch" the same with sharded parameters.
/// "hand_adam", "zero2", "zero3" and "prefetch" (of zero3) are an MLP under AdamW by hand, in
/// DistributedDataParallel and FullyShardedDataParallel; for -1 steps of these rank 0 writes the bytes
/// between steps and at most, and what docs/sharding.md says of both, four lines.
void serve_ddp_worker(collectives::NativeGroupOptions options, int commands, int answers);

/// The version of LibTorch that this program runs on.
std::string torch_version();

}  // namespace troupe::bench
