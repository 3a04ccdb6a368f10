/// A barrier: nobody runs a step until something is done with the committed state.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "actors/train/driver/agenda.hpp"

namespace troupe::train {

/// A value. Not thread-safe.
///
/// Invariant: a task waits for each of its members once, and is complete when all have done their part.
class Barrier {
 public:
  BarrierTask task() const { return task_; }
  bool is_on() const { return task_ != BarrierTask::kNone; }
  bool is(BarrierTask task) const { return task_ == task; }

  /// REQUIRES: a task, and a member.
  void begin(BarrierTask task, std::vector<ActorId> members);
  void end() { task_ = BarrierTask::kNone; }

  /// The task is this one, and the member has not done its part.
  bool waits_for(BarrierTask task, ActorId member) const;
  /// True if that completes the task: so at most once.
  bool done(ActorId member);

  /// What the first member ended with, and whether `hash` is what the members before this one said.
  bool finish(ActorId member, const StateHash& hash, const std::vector<PartHash>& parts);
  /// Those of the first member. REQUIRES: a finish is complete.
  const StateHash& hash() const { return hash_; }
  const std::vector<PartHash>& parts() const { return parts_; }

 private:
  BarrierTask task_ = BarrierTask::kNone;
  std::vector<ActorId> members_;  ///< in rank order
  std::set<ActorId> waited_for_;
  std::optional<StateHash> first_hash_;  ///< that was told
  StateHash hash_;
  std::vector<PartHash> parts_;
};

}  // namespace troupe::train
