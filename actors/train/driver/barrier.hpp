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
/// Invariants: a task waits for each of its members once, and is complete when all have done their part; only
/// the first member writes a checkpoint, and what is written counts when the task is complete.
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
  /// The task is a checkpoint, and the trainer writes it.
  bool is_written_by(ActorId trainer) const;
  /// True if that completes the task: so at most once.
  bool done(ActorId member);

  /// The first member has written its state.
  void store(CheckpointInfo checkpoint) { stored_ = std::move(checkpoint); }
  /// REQUIRES: a checkpoint is complete.
  const CheckpointInfo& stored() const;

  /// What the first member ended with, and whether `hash` is what the members before this one said.
  bool finish(ActorId member, const StateHash& hash, const std::vector<PartHash>& parts);
  /// Those of the first member. REQUIRES: a finish is complete.
  const StateHash& hash() const { return hash_; }
  const std::vector<PartHash>& parts() const { return parts_; }

 private:
  BarrierTask task_ = BarrierTask::kNone;
  std::vector<ActorId> members_;  ///< in rank order
  std::set<ActorId> waited_for_;
  std::optional<CheckpointInfo> stored_;
  std::optional<StateHash> first_hash_;  ///< that was told
  StateHash hash_;
  std::vector<PartHash> parts_;
};

}  // namespace troupe::train
