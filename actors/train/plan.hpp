/// What a generation of trainers is told when it starts, and what it reports. Plain aggregates: the wire
/// carries them.
///
/// Steps are counted over the whole job: step k of epoch e is e * steps_per_epoch + k. A TrainState is named
/// by the number of steps applied to it: 0 is the initial state, 7 has steps 0 to 6, kNoState is none.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/checkpoint/part_hash.hpp"
#include "actors/train/job/figures.hpp"
#include "collectives/leaf_tree.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::train {

using collectives::LeafInterval;

inline constexpr std::int64_t kNoState = -1;

/// The hash of a whole TrainState (final_hash), as text. Opaque to the machines: they compare it.
using StateHash = std::string;

using checkpoint::PartHash;

/// What one logical rank used in one step: hashed from the sample indices in the batch's header as read, not
/// computed again.
struct SlotReport {
  int leaf = 0;
  std::uint64_t indices_hash = 0;
  double loss = 0;
  double weight = 1;            ///< of the loss in means: what the job gave, or the samples of the batch
  std::vector<Figure> figures;  ///< what the job counted
  bool operator==(const SlotReport&) const = default;
};

/// The slots of one step, by leaf.
struct StepReport {
  std::int64_t step = 0;
  std::vector<SlotReport> slots;
  StepValues values;  ///< once it is applied
  bool operator==(const StepReport&) const = default;
};

/// Whether the loss of every leaf is a finite number.
inline bool is_finite(const std::vector<SlotReport>& slots) {
  return std::all_of(slots.begin(), slots.end(),
                     [](const SlotReport& slot) { return std::isfinite(slot.loss); });
}

/// One piece of the test set, evaluated: sums over its samples. Pieces are cut by index, so what a piece
/// comes to does not depend on who evaluates it.
struct PieceReport {
  std::int64_t piece = 0;
  std::uint64_t indices_hash = 0;  ///< as read from the batch
  std::int64_t count = 0;
  std::vector<Figure> figures;  ///< "loss", and what else the evaluation counted
  bool operator==(const PieceReport&) const = default;
};

/// One trainer of a generation; its rank is its place in the list.
struct Member {
  ActorId actor{};
  NodeId node{};
  std::string data_address;  ///< where the other ranks reach its data plane
  LeafInterval leaves;
  bool has_nccl = false;  ///< it could reduce gradients over NCCL
  bool operator==(const Member&) const = default;
};

struct LoaderInfo {
  ActorId actor{};
  NodeId node{};
  std::string address;
  bool operator==(const LoaderInfo&) const = default;
};

/// Where the members' TrainState comes from.
enum class StateOrigin : std::uint8_t {
  kMembers,     ///< rank `source` has it; `receivers` need it
  kInitial,     ///< everyone makes it from the seed
  kCheckpoint,  ///< everyone but `receivers` tries to read `checkpoint`
};

struct GenerationPlan {
  Generation generation;
  int logical_ranks = 0;
  std::vector<Member> members;  ///< in rank order
  StateOrigin origin = StateOrigin::kInitial;
  int source = -1;             ///< rank that sends, where there are receivers or followers
  std::vector<int> receivers;  ///< ranks that receive all of it; of a checkpoint, which they cannot read
  /// Ranks that hold an earlier state of the lineage, and follow `source`: they take what came after it.
  std::vector<int> followers;
  std::string checkpoint;  ///< path, with kCheckpoint
  StateHash state_hash;    ///< what that checkpoint's manifest must say
  /// The generation that made or loaded the state which all steps since were applied to. Two trainers with as
  /// many steps applied hold the same bits (in an exact job) if their lineage is the same.
  Generation lineage;
  bool exact = true;            ///< trainers hold the same bits, and steps are rehearsed
  bool sharded = false;         ///< each keeps its shards of the state alone, once it has applied a step
  bool prove = false;           ///< all report hashes after the first steps, until the state is through
  std::int64_t begun_at = 0;    ///< the step that this run began with: see is_rehearsed
  std::int64_t first_step = 0;  ///< first step to run, and the number of steps in the state to start from
  std::int64_t steps_per_epoch = 0;
  std::int64_t total_steps = 0;
  std::int64_t committed = 0;  ///< steps committed so far
  std::vector<LoaderInfo> loaders;
  /// What the states after first_step steps and later ones came to, as far as known, where schedules look at
  /// that: seen before the next step is applied.
  std::map<std::int64_t, StepValues> evaluated;
  bool operator==(const GenerationPlan&) const = default;
};

/// Every rank computes its first leaf of `step` a second time (rehearsal.hpp): in the step after the run's
/// first, the 4th after it, the 16th, the 64th and so on, so that what changes later is found as well and the
/// cost stays a few leaves, and in the job's last. Not in the first: what counts from 0 is then still what it
/// is in a fresh copy.
inline bool is_rehearsed(std::int64_t step, std::int64_t begun_at, std::int64_t total_steps) {
  if (step + 1 == total_steps) return step > begun_at;
  const auto after = static_cast<std::uint64_t>(std::max<std::int64_t>(step - begun_at, 0));
  return std::has_single_bit(after) && std::countr_zero(after) % 2 == 0;
}

}  // namespace troupe::train
