/// What one trainer does in a generation, as a pure state machine, so that the simulator and production run
/// the same rules.
///
/// The trainer's thread takes a task with `take()`, does it (blocking), and tells the outcome with
/// `done(...)`. Orders arrive from another thread with `on(...)`. Not thread-safe: the caller holds one mutex
/// over all three, and never while it blocks. When an output asks to abort, the caller aborts the group from
/// the order's thread, so that the blocked one comes back.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/train/messages.hpp"
#include "actors/train/mutations.hpp"
#include "actors/train/plan.hpp"

namespace troupe::train {

// What to do next.

/// Nothing until the next order.
struct Wait {
  std::string reason;
};
/// Make the process group of the plan; leave any older one first.
struct FormGroup {
  GenerationPlan plan;
};
/// Hand the state over, or receive it (into spare memory, hash, swap in whole).
struct TransferState {
  enum class Role : std::uint8_t { kSource, kReceiver };
  Generation generation;
  Role role = Role::kReceiver;
  int source = 0;
  std::vector<int> receivers;
};
/// Take the state that another one shares, and every step since, up to where it is.
struct FollowSource {
  FollowState order;
  std::int64_t until = kNoState;  ///< so many steps; else as many as there are
  bool goes_on = false;           ///< with what was taken before
};
struct MakeInitialState {};
/// Read the plan's checkpoint, or get it part by part from rank `source`, which reads it for `receivers`.
struct LoadCheckpoint {
  std::string path;
  StateHash hash;  ///< what its manifest must say
  int source = -1;
  std::vector<int> receivers{};
};
/// Get the leaves' batches, compute, reduce. Nothing of the TrainState may change.
struct ComputeStep {
  Generation generation;
  std::int64_t step = 0;
  LeafInterval leaves;
  bool rehearse = false;  ///< a fresh copy of the state computes it, too
};
/// The step was reduced: change the TrainState. Local; an exception in it is this trainer's death.
struct ApplyStep {
  std::int64_t step = 0;
  int proves = -1;         ///< tell the hashes of this piece of the state after it; -1: none
  StepValues evaluated{};  ///< what the state before it came to, for schedules that look at that
};
/// The final hash of the TrainState.
struct HashState {};
/// The hashes of its parts.
struct HashParts {
  ProveState order;
};
struct RunEvaluation {
  Evaluate order;
};
struct RunCheckpoint {
  WriteCheckpoint order;
};
struct RunPrune {
  PruneCheckpoints order;
};
struct ShareOut {
  ShareState order;
};

using TrainerTask =
    std::variant<Wait, FormGroup, TransferState, FollowSource, MakeInitialState, LoadCheckpoint, ComputeStep,
                 ApplyStep, HashState, HashParts, RunEvaluation, RunCheckpoint, RunPrune, ShareOut>;

// How it went.

/// FormGroup, a TransferState as source, or RunPrune succeeded.
struct TaskDone {};
/// A receiver's, MakeInitialState's or LoadCheckpoint's state is in place, whole.
struct StateReady {};
/// FollowSource has a state, whole.
struct Followed {
  std::int64_t steps = kNoState;
  std::vector<StepReport> uncommitted;  ///< as TrainerQuiesced has them
};
/// ShareOut succeeded.
struct Shared {
  std::string address;
};
/// ComputeStep succeeded; the slots of all leaves.
struct Reduced {
  std::vector<SlotReport> slots;
};
/// ApplyStep is through.
struct Applied {
  std::vector<PartHash> parts;  ///< if the task asked for them
  bool proven = false;          ///< it was the last piece
  StepValues values;
  bool halts = false;  ///< no step comes behind it in this generation (NotFinite::kStop)
};
struct Hashed {
  StateHash hash;
  std::vector<PartHash> parts;
};
struct PartsHashed {
  std::vector<PartHash> parts;
};
struct Evaluated {
  std::vector<PieceReport> pieces;
};
/// Of RunCheckpoint: what is written was taken, and wrote() comes later.
struct StateCopied {};
/// The same, and all is done.
struct CheckpointStored {
  std::string path;
  StateHash hash;
  std::vector<PartHash> parts;
};
/// The task did not succeed: the group was aborted or timed out, a file could not be read or written.
struct TaskAborted {
  std::string reason;
  std::vector<ActorId> suspects;
  bool is_of_others = false;  ///< of LoadCheckpoint: a receiver was lost, and the file is good
};

using TrainerResult = std::variant<TaskDone, StateReady, Followed, Shared, Reduced, Applied, Hashed,
                                   PartsHashed, Evaluated, StateCopied, CheckpointStored, TaskAborted>;

/// What follows from an order or a result.
struct TrainerOutput {
  std::vector<TrainerReport> reports;  ///< to the driver, in order
  bool abort_group = false;            ///< abort the group now, from this thread
  bool loaders_changed = false;        ///< loaders() is new
  std::string reason;                  ///< why, or why an order was ignored
};

/// One trainer's rules. `take` and `done` alternate, except that a Wait has no outcome: take again after an
/// order.
class TrainerMachine {
 public:
  explicit TrainerMachine(ActorId self, Mutations mutations = {});

  /// An order of the driver.
  TrainerOutput on(const TrainerOrder& order);
  /// What the thread shall do now.
  TrainerTask take();
  /// The outcome of the task that was taken last.
  TrainerOutput done(const TrainerResult& result);

  /// Told by the thread in the middle of a task: it computes `part` of it now ("leaf 3"), or waits for a
  /// batch or other ranks, or has only come further.
  void computes(const std::string& part);
  void waits();
  void advanced() { ++progress_.count; }
  /// Told before done(): with sharded parameters a trainer may have none, whatever it was given.
  void holds_whole_state(bool holds) { has_whole_ = holds; }
  /// A checkpoint of so many steps is being written beside the tasks, until wrote() is told what came of it.
  void writes(std::int64_t step) { writes_ = step; }
  TrainerOutput wrote(const WriteCheckpoint& order, const TrainerResult& result);
  /// What the driver is told every second.
  TrainerReport heartbeat() const;

  enum class State : std::uint8_t {
    kIdle,       ///< no generation yet
    kQuiescing,  ///< told to leave: ends its task, then reports what it holds
    kQuiesced,   ///< reported; waits for a plan
    kFollowing,  ///< takes a state beside the steps of the others
    kForming,
    kGettingState,
    kRunning,   ///< runs steps below the limit, waits at it
    kApplying,  ///< reduced, not yet applied
    kLeft,      ///< the generation failed here; waits for the next Quiesce
  };
  State state() const { return state_; }
  Generation generation() const { return generation_; }
  /// Steps in the state held whole, or kNoState.
  std::int64_t steps() const { return steps_; }
  Generation lineage() const { return lineage_; }  ///< of that state
  /// No task is under way that could change the state.
  bool rests() const { return !doing_ || std::holds_alternative<RunPrune>(*doing_); }
  /// The state is that after steps() steps, whole or as this trainer keeps it, and no task changes it now.
  bool has_settled() const { return rests() && steps_ != kNoState && state_ != State::kApplying; }
  /// Somebody may still follow the state that was shared in that generation.
  bool may_be_followed(Generation shared_in) const;
  const GenerationPlan& plan() const { return plan_; }
  const std::vector<LoaderInfo>& loaders() const { return loaders_; }
  /// This trainer's rank in the current plan, or -1, and its leaves.
  int rank() const;
  LeafInterval leaves() const;
  /// What it has applied and does not know to be committed.
  const std::deque<StepReport>& uncommitted() const { return uncommitted_; }
  /// Steps below this may be run.
  std::int64_t limit() const { return limit_; }

 private:
  using BarrierTask =
      std::variant<Evaluate, WriteCheckpoint, ProveState, PruneCheckpoints, ShareState, Finish>;

  void handle(const Quiesce& order, TrainerOutput& out);
  void handle(const StartGeneration& order, TrainerOutput& out);
  void handle(const Committed& order, TrainerOutput& out);
  void handle(const SetLoaders& order, TrainerOutput& out);
  void handle(const Evaluate& order, TrainerOutput& out) { add_barrier_task(order, out); }
  void handle(const WriteCheckpoint& order, TrainerOutput& out) { add_barrier_task(order, out); }
  void handle(const ProveState& order, TrainerOutput& out) { add_barrier_task(order, out); }
  void handle(const PruneCheckpoints& order, TrainerOutput& out) { add_barrier_task(order, out); }
  void handle(const ShareState& order, TrainerOutput& out) { add_barrier_task(order, out); }
  void handle(const FollowState& order, TrainerOutput& out);
  void handle(const Finish& order, TrainerOutput& out) { add_barrier_task(order, out); }
  template <class Order>
  void add_barrier_task(const Order& order, TrainerOutput& out);

  TrainerTask choose() const;
  TrainerTask choose_state_task() const;
  TrainerTask choose_running_task() const;
  TrainerTask apply_task() const;
  bool is_receiver() const;
  bool is_follower() const;

  void finished(const FormGroup& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const TransferState& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const FollowSource& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const ShareOut& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const MakeInitialState& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const LoadCheckpoint& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const ComputeStep& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const ApplyStep& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const HashState& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const HashParts& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const RunPrune& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const RunEvaluation& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const RunCheckpoint& task, const TrainerResult& result, TrainerOutput& out);
  void finished(const Wait& task, const TrainerResult& result, TrainerOutput& out);
  void installed(TrainerOutput& out);
  void tell_written(const WriteCheckpoint& order, const TrainerResult& result, TrainerOutput& out) const;
  void leave(const TaskAborted& why, TrainerOutput& out);
  void report_quiesced(TrainerOutput& out);
  /// A newer generation called while the task ran: its outcome is of an old one.
  bool superseded() const { return state_ == State::kQuiescing; }

  ActorId self_;
  Mutations mutations_;
  State state_ = State::kIdle;
  Generation generation_;
  GenerationPlan plan_;
  std::vector<LoaderInfo> loaders_;
  std::int64_t steps_ = kNoState;
  Generation lineage_;      ///< of the state held
  FollowState follows_;     ///< whom, in kFollowing
  bool caught_up_ = false;  ///< with it, once
  bool proves_ = false;     ///< the state is not told yet, all of it
  bool halts_ = false;      ///< runs no more steps, whatever the limit
  std::int64_t limit_ = 0;
  std::optional<TrainerTask> doing_;  ///< taken, not done
  std::optional<std::int64_t> writes_;
  Progress progress_;
  bool has_whole_ = true;  ///< the engine says so
  bool whole_ = true;      ///< what it holds: with shards it keeps its own alone from its first step on
  std::deque<StepReport> uncommitted_;  ///< applied, not known to be committed; ends with steps_ - 1
  std::map<std::int64_t, StepValues> evaluated_;  ///< GenerationPlan::evaluated, and what came since
  std::vector<SlotReport> reduced_;               ///< slots of the step to apply
  std::deque<BarrierTask> barrier_tasks_;         ///< of this generation
};

}  // namespace troupe::train
