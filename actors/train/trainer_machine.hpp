/// What one trainer does in a generation, as a pure state machine, so that the simulator and production run
/// the same rules.
///
/// The trainer's thread asks `next()`, does that (blocking), and tells the outcome with `done(...)`. Orders
/// arrive from another thread with `on(...)`. Not thread-safe: the caller holds one mutex over both, and
/// never while it blocks. When an output asks to abort, the caller aborts the group of that generation from
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

// ---- What to do next ----------------------------------------------------------------------------------

/// Nothing until the next order.
struct Wait {
  std::string reason;
};
/// Make the process group of the plan; leave any older one first.
struct FormGroup {
  GenerationPlan plan;
};
/// Take part in handing the state over: as the source, as a receiver (into spare memory, hash, swap in
/// whole), or as a member that has it already and only keeps the others company.
struct TransferState {
  enum class Role : std::uint8_t { kSource, kReceiver, kBystander };
  Generation generation;
  Role role = Role::kBystander;
  int source = 0;
  std::vector<int> receivers;
};
struct MakeInitialState {};
struct LoadCheckpoint {
  std::string path;
};
/// Get the leaves' batches, compute, reduce. Nothing of the TrainState may change.
struct ComputeStep {
  Generation generation;
  std::int64_t step = 0;
  LeafInterval leaves;
};
/// The step was reduced: change the TrainState. Local; an exception in it is this trainer's death.
struct ApplyStep {
  std::int64_t step = 0;
};
/// Hash the TrainState.
struct HashState {};
struct RunEvaluation {
  Evaluate order;
};
struct RunCheckpoint {
  WriteCheckpoint order;
};

using TrainerTask = std::variant<Wait, FormGroup, TransferState, MakeInitialState, LoadCheckpoint,
                                 ComputeStep, ApplyStep, HashState, RunEvaluation, RunCheckpoint>;

// ---- How it went --------------------------------------------------------------------------------------

/// FormGroup, or a TransferState as source or bystander, succeeded.
struct TaskDone {};
/// A receiver's, MakeInitialState's or LoadCheckpoint's state is in place, whole.
struct StateReady {
  StateHash hash;
};
/// ComputeStep succeeded; the slots of all leaves.
struct Reduced {
  std::vector<SlotReport> slots;
};
/// ApplyStep is through.
struct Applied {};
struct Hashed {
  StateHash hash;
};
struct Evaluated {
  std::int64_t correct = 0;
  std::int64_t count = 0;
  double loss_sum = 0;
};
struct CheckpointStored {
  std::string path;
  StateHash hash;
};
/// The task did not succeed: the group was aborted or timed out, a file could not be read or written.
struct TaskAborted {
  std::string reason;
  std::vector<ActorId> suspects;
};

using TrainerResult =
    std::variant<TaskDone, StateReady, Reduced, Applied, Hashed, Evaluated, CheckpointStored, TaskAborted>;

/// What follows from an order or a result.
struct TrainerOutput {
  std::vector<TrainerReport> reports;  ///< to the driver, in order
  bool abort_group = false;            ///< abort the group now, from this thread
  bool loaders_changed = false;        ///< loaders() is new
  std::string reason;                  ///< why, or why an order was ignored
};

class TrainerMachine {
 public:
  explicit TrainerMachine(ActorId self, Mutations mutations = {});

  /// An order of the driver.
  TrainerOutput on(const TrainerOrder& order);
  /// What the thread shall do now. The same answer until the task is done() or an order changes it; a task
  /// under way is never changed, it is aborted.
  TrainerTask next() const;
  /// The outcome of the task that next() gave.
  TrainerOutput done(const TrainerResult& result);

  Generation generation() const { return generation_; }
  /// Steps in the state held whole, or kNoState.
  std::int64_t steps() const { return steps_; }
  const std::vector<LoaderInfo>& loaders() const { return loaders_; }
  const GenerationPlan& plan() const { return plan_; }
  /// This trainer's leaves in the current plan.
  LeafInterval leaves() const;
  /// Steps below this may be run (and their batches asked for up to the epochs' end).
  std::int64_t limit() const { return limit_; }

  enum class State : std::uint8_t {
    kIdle,       ///< no generation yet
    kQuiescing,  ///< told to leave: hashes what it holds, then reports it
    kQuiesced,   ///< reported; waits for a plan
    kForming,
    kGettingState,
    kRunning,   ///< runs steps below the limit, waits at it
    kApplying,  ///< reduced, not yet applied
    kLeft,      ///< the generation failed here; waits for the next Quiesce
  };
  State state() const { return state_; }

 private:
  int rank() const;
  TrainerOutput failed(const TaskAborted& result);
  void quiesce(const Quiesce& order, TrainerOutput& out);
  void start(const StartGeneration& order, TrainerOutput& out);
  void forget_committed(std::int64_t committed);
  void report_quiesced(StateHash hash, TrainerOutput& out);

  ActorId self_;
  Mutations mutations_;
  State state_ = State::kIdle;
  Generation generation_;
  GenerationPlan plan_;
  std::vector<LoaderInfo> loaders_;
  std::int64_t steps_ = kNoState;
  std::int64_t limit_ = 0;
  std::deque<StepReport> uncommitted_;
  std::vector<SlotReport> reduced_;                                      ///< slots of the step to apply
  std::deque<std::variant<Evaluate, WriteCheckpoint, Finish>> errands_;  ///< of this generation
};

}  // namespace troupe::train
