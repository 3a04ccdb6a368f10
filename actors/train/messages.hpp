/// Orders of the driver to a trainer, and a trainer's reports. Everything carries its generation; what is of
/// an old one is ignored. Between one trainer and the driver, messages of one direction arrive in order or
/// not at all.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "actors/train/plan.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/core/one_of.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::train {

// Driver to trainer.

/// Leave the collective of any older generation, then say what you hold (TrainerQuiesced).
struct Quiesce {
  Generation generation;
  std::string reason;
};
/// Form the group and get the state. Steps start with the first Committed of this generation.
struct StartGeneration {
  GenerationPlan plan;
};
/// Steps below `committed` are committed; steps below `limit` may be run.
struct Committed {
  Generation generation;
  std::int64_t committed = 0;
  std::int64_t limit = 0;
  StepValues evaluated{};  ///< GenerationPlan::evaluated of the state after `committed` steps; empty: none
};
struct SetLoaders {
  std::vector<LoaderInfo> loaders;
};
/// Evaluate pieces [begin, end) with the state as it is.
struct Evaluate {
  Generation generation;
  int epoch = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
/// Copy the state as it is, and write the copy beside the steps; `step` names it.
struct WriteCheckpoint {
  Generation generation;
  std::int64_t step = 0;
  std::string history;  ///< the driver's, for the manifest (history.hpp)
};
/// Report the hashes of the parts that all have, of which rank 0 takes a copy; with shards keep one of yours
/// for it.
struct ProveState {
  Generation generation;
  std::int64_t step = 0;
};
/// Delete the checkpoints that are older than this one.
struct PruneCheckpoints {
  Generation generation;
  std::string oldest_kept;  ///< path of its manifest
  std::string spared;       ///< an older one that stays, too: the best; empty: none
};
/// Between steps: take a copy of the state, and keep what each later step adds, for those that will follow.
struct ShareState {
  Generation generation;
};
/// Take the state that a trainer shares, and its steps since, while the generation runs without you.
struct FollowState {
  Generation generation;
  std::string source;    ///< StateShared::address
  Generation shared_in;  ///< the generation of its ShareState
  Generation lineage;    ///< of that state
};
/// The job is over: report the final hash.
struct Finish {
  Generation generation;
};

struct TrainerOrder : OneOf<Quiesce, StartGeneration, Committed, SetLoaders, Evaluate, WriteCheckpoint,
                            ProveState, PruneCheckpoints, ShareState, FollowState, Finish> {
  using OneOf::OneOf;
  TrainerOrder();
  TrainerOrder(const TrainerOrder&);
  TrainerOrder(TrainerOrder&&) noexcept;
  TrainerOrder& operator=(const TrainerOrder&);
  TrainerOrder& operator=(TrainerOrder&&) noexcept;
  ~TrainerOrder();
};

// Trainer to driver.

/// How far the thread that computes has come. A count that stands still while it computes is a hang; one that
/// waits is held up by somebody else.
struct Progress {
  std::uint64_t count = 0;  ///< grows with every leaf, piece of the test set, and 16 MiB of a file or state
  bool computes = false;    ///< false: it waits for an order, a batch or other ranks
  std::string doing;        ///< "step 17, leaf 3"
};
/// A sign of life, every second, from a thread that does not compute. Any other report is one too.
struct TrainerHeartbeat {
  ActorId actor{};
  Progress progress;
};
/// "I have left every older generation, and hold this."
struct TrainerQuiesced {
  ActorId actor{};
  Generation generation;  ///< the one of the Quiesce
  std::int64_t steps = kNoState;
  Generation lineage;  ///< of that state (GenerationPlan::lineage)
  /// Steps it applied and does not know to be committed, each with the slots of all leaves: a leaf's own
  /// trainer may be dead by now. (Slots travel with the last bucket of a step, so every rank knows all.)
  std::vector<StepReport> uncommitted;
  bool writes = false;  ///< a checkpoint that was ordered before
};
/// The group of this generation is up, seen from this rank.
struct GroupFormed {
  ActorId actor{};
  Generation generation;
};
/// The state was received, loaded or made, and swapped in whole.
struct StateInstalled {
  ActorId actor{};
  Generation generation;
  std::int64_t steps = kNoState;
};
/// Step `report.step` was reduced and applied. `report.slots` has every leaf, as it came with the last
/// bucket.
struct StepApplied {
  ActorId actor{};
  Generation generation;
  StepReport report;
  std::vector<PartHash> parts;  ///< of a piece of the state after it, where the plan asked for them
  bool proven = false;          ///< the pieces of the steps before and this one are the whole state
};
/// The group could not be formed, or a collective or transfer of it was aborted or timed out. This trainer
/// has left it.
struct GenerationFailed {
  ActorId actor{};
  Generation generation;
  std::string reason;
  std::vector<ActorId> suspects;  ///< whom it waited for; empty if it does not know
};
/// This trainer cannot load the plan's checkpoint. Others may.
struct CheckpointUnreadable {
  ActorId actor{};
  Generation generation;
  std::string path;
  std::string reason;
};
struct EvaluationDone {
  ActorId actor{};
  Generation generation;
  int epoch = 0;
  std::vector<PieceReport> pieces;
};
/// Steps may go on: rank 0 has what it writes.
struct CheckpointCopied {
  ActorId actor{};
  Generation generation;
  std::int64_t step = 0;
};
struct CheckpointWritten {
  ActorId actor{};
  Generation generation;  ///< of its order
  std::int64_t step = 0;
  std::string path;
  StateHash hash;
  std::vector<PartHash> parts;  ///< of what was written
};
struct StateProved {
  ActorId actor{};
  Generation generation;
  std::int64_t step = 0;
  std::vector<PartHash> parts;
};
/// ShareState is done: who follows asks this trainer for the rest.
struct StateShared {
  ActorId actor{};
  Generation generation;
  std::string address;  ///< ActorAddress, encoded
};
/// It has all steps that the trainer it follows had, and waits to be a member.
struct StateFollowed {
  ActorId actor{};
  Generation generation;
  std::int64_t steps = kNoState;
};
/// The state could not be shared, or not be followed. Whoever wanted to follow holds none.
struct FollowFailed {
  ActorId actor{};
  Generation generation;
  std::string reason;
};
struct PruneFailed {
  ActorId actor{};
  Generation generation;
  std::string reason;
};
struct CheckpointFailed {
  ActorId actor{};
  Generation generation;  ///< of its order
  std::int64_t step = 0;
  std::string reason;
};
struct TrainerFinished {
  ActorId actor{};
  Generation generation;
  std::int64_t steps = 0;
  StateHash hash;
  std::vector<PartHash> parts;
};

struct TrainerReport
    : OneOf<TrainerHeartbeat, TrainerQuiesced, GroupFormed, StateInstalled, StepApplied, GenerationFailed,
            CheckpointUnreadable, EvaluationDone, CheckpointCopied, CheckpointWritten, StateProved,
            StateShared, StateFollowed, FollowFailed, PruneFailed, CheckpointFailed, TrainerFinished> {
  using OneOf::OneOf;
  TrainerReport();
  TrainerReport(const TrainerReport&);
  TrainerReport(TrainerReport&&) noexcept;
  TrainerReport& operator=(const TrainerReport&);
  TrainerReport& operator=(TrainerReport&&) noexcept;
  ~TrainerReport();
};

}  // namespace troupe::train

namespace troupe::wire {

// In messages.cpp, compiled once.
template <>
struct Codec<train::TrainerOrder> {
  static void encode(Writer& to, const train::TrainerOrder& order);
  static bool decode(Reader& from, train::TrainerOrder& order);
};
template <>
struct Codec<train::TrainerReport> {
  static void encode(Writer& to, const train::TrainerReport& report);
  static bool decode(Reader& from, train::TrainerReport& report);
};

}  // namespace troupe::wire
