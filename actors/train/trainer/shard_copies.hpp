/// A checkpoint's way out of a job whose state is in shards: each trainer takes a copy of what it gives
/// (ShardedState), and keeps it for rank 0, which reads them all while it writes beside the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "actors/train/plan.hpp"
#include "actors/train/trainer/state_stream.hpp"
#include "collectives/process_group.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

class Trainer;

/// Which checkpoint's.
struct ShardsOf {
  Generation generation;  ///< that it was ordered in
  std::int64_t step = 0;
  bool operator==(const ShardsOf&) const = default;
};

/// The copy that a trainer keeps for another one: the newest. Thread-safe: the thread that computes keeps it,
/// the actor's reads.
class KeptShards {
 public:
  void keep(const ShardsOf& of, std::unique_ptr<StateCopy> copy);
  /// As many as there are, and at most kSharedPiece. Throws Unavailable where that one is not kept any more.
  /// For one thread at a time.
  SharedPiece read(const ShardsOf& of, std::uint64_t offset, std::uint64_t bytes) const;
  void drop(const ShardsOf& of);
  void drop();

 private:
  mutable std::mutex mutex_;  ///< guards what follows
  ShardsOf of_;
  std::shared_ptr<StateCopy> copy_;
};

/// All trainers' copies, for the one that writes: the others' are not wanted any more when it goes. For one
/// thread at a time.
class ShardReader {
 public:
  /// `mine`: rank 0's; `trainers`: all, by rank. `look` is called while it waits; what it throws ends that.
  ShardReader(const ShardsOf& of, std::unique_ptr<StateCopy> mine, std::vector<ActorHandle<Trainer>> trainers,
              std::function<void()> look);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  /// Throws Corrupt for what is not what was sent, and what a call throws: its trainer may be gone.
  void read(std::size_t rank, std::uint64_t offset, std::span<std::byte> into);

 private:
  /// What was read last of a rank's copy: small parts come together.
  struct Window {
    std::uint64_t begin = 0;
    wire::Bytes bytes;
  };
  SharedPiece take(std::size_t rank, const Future<SharedPiece>& asked, std::size_t least) const;

  const ShardsOf of_;
  const std::unique_ptr<StateCopy> mine_;
  const std::vector<ActorHandle<Trainer>> trainers_;
  const std::function<void()> look_;
  std::vector<Window> windows_;  ///< by rank
};

/// How many trainers of the plan are on that node.
int members_of(const GenerationPlan& plan, NodeId node);

/// Collective: told whether this trainer, which is `actor`, has copied what it gives. The trainers by rank,
/// if all have.
std::vector<ActorHandle<Trainer>> all_copied(bool copied, collectives::ProcessGroup& group,
                                             const GenerationPlan& plan, ActorContext& actor);

/// What a process has of its host's memory, in bytes.
struct ProcessMemory {
  std::uint64_t now = 0;
  std::uint64_t most = 0;  ///< that it ever had
};
ProcessMemory own_process_memory();

/// Why each of `here` trainers of this host has no room for a copy of `bytes`; empty: it has, or nobody
/// knows. Steps may change every page of what was copied, and take as much memory beside it as this process
/// ever had.
std::string why_no_room(std::uint64_t bytes, int here, const ProcessMemory& own,
                        std::optional<std::uint64_t> available);

}  // namespace troupe::train
