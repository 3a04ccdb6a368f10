/// What a generation begins from, and with whom: the one place that decides whose state counts.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/train/plan.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::train {

/// What is known of a trainer that is not known to be dead.
struct Holding {
  ActorId actor{};
  std::uint64_t arrival = 0;  ///< earlier ones are smaller
  int rank = -1;              ///< in the last generation, if it was a member
  bool killed = false;        ///< it counts as alive until its death is known
  bool known = false;         ///< it has said what it holds
  bool leaves = false;        ///< its node drains
  bool follows = false;       ///< it takes the state of `RecoveryInput::source`, which has shared that
  bool joins = false;         ///< it follows, and has caught up
  std::int64_t steps = kNoState;
  Generation lineage;      ///< of that state
  bool has_folder = true;  ///< it can write a checkpoint
};

struct RecoveryInput {
  Generation generation;       ///< that is to begin
  std::int64_t committed = 0;  ///< steps
  std::int64_t saved = 0;      ///< steps in the newest checkpoint; 0 without one: the initial state
  int trainers = 1;            ///< members at most
  int min_trainers = 1;
  int logical_ranks = 1;
  bool sharded = false;
  bool waits_for_copies = false;  ///< who lacks the state gets it while the others wait
  ActorId source{};               ///< whose state followers take; none: nobody follows
};

struct Recovery {
  std::int64_t first_step = 0;  ///< steps in the state to begin from, and the first step to run
  Generation lineage;           ///< of that state; the new generation's, if no member holds it
  struct Member {
    ActorId actor{};
    bool holds = false;  ///< the state, so that it needs nothing
    bool operator==(const Member&) const = default;
  };
  std::vector<Member> members;  ///< in rank order
  int source = -1;              ///< the rank that gives the state to who lacks it; -1: nobody holds it
  std::vector<int> receivers;   ///< ranks that get all of it
  std::vector<int> followers;   ///< ranks that get what came after the state that they hold
  bool operator==(const Recovery&) const = default;
};

/// Whether enough is known to plan: everyone has said what it holds, but for who may be at a copy of a whole
/// state where enough members hold one.
bool can_plan(const std::vector<Holding>& all, const RecoveryInput& input);

/// The state of the most steps is the authority, and of those the one of the newest lineage, unless a
/// checkpoint has more committed steps than all. Survivors keep the order of their ranks, newcomers come
/// behind them; but rank 0 writes checkpoints, and is the first that can, if any. A newcomer that would have
/// to be given the whole state stays outside where there are enough without it. REQUIRES: can_plan(), at
/// least min_trainers of them.
Recovery plan_recovery(const std::vector<Holding>& all, const RecoveryInput& input);

}  // namespace troupe::train
