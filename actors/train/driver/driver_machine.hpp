/// The driver of a job as a pure state machine: deals logical ranks, opens generations, commits steps, runs
/// recovery. Events in, actions out; no clock, no I/O. docs/step-commit.md draws it.
///
/// What is known and decided lies in values with a header and tests of their own: Roster, plan_recovery,
/// Forming, Following, StepLog, StateProofs, Evaluations, CheckpointList, Agenda, Barrier, FailureCount,
/// Interruption. The machine has the state, and routes events between them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/train/driver/agenda.hpp"
#include "actors/train/driver/barrier.hpp"
#include "actors/train/driver/checkpoint_list.hpp"
#include "actors/train/driver/checkpoint_under_way.hpp"
#include "actors/train/driver/driver_types.hpp"
#include "actors/train/driver/evaluations.hpp"
#include "actors/train/driver/failure_count.hpp"
#include "actors/train/driver/following.hpp"
#include "actors/train/driver/forming.hpp"
#include "actors/train/driver/interruption.hpp"
#include "actors/train/driver/recovery.hpp"
#include "actors/train/driver/roster.hpp"
#include "actors/train/driver/state_proofs.hpp"
#include "actors/train/driver/step_log.hpp"
#include "actors/train/mutations.hpp"

namespace troupe::train {

/// Not thread-safe.
class DriverMachine {
 public:
  enum class State : std::uint8_t {
    kGathering,  ///< not enough trainers: the first ones start, or too few survived
    kQuiescing,  ///< a new generation is open; waits for what everyone holds
    kForming,    ///< the plan is out; waits for the group and the state on every member
    kRunning,    ///< steps run and commit
    kBarrier,    ///< at a barrier: evaluation, checkpoint, hold or final hash
    kDone,
    kFailed,
  };

  /// REQUIRES: 1 <= min_trainers <= trainers <= logical_ranks; loaders, epochs, steps_per_epoch, ahead >= 1.
  explicit DriverMachine(DriverConfig config, Mutations mutations = {});

  /// The first actions: the spawns. Call once.
  DriverActions start(Instant now);
  /// Call with DriverTick about ten times a second. `now` never goes back. A driver that was itself stopped
  /// (no tick for a second) moves every deadline by that time: it cannot have heard anybody.
  DriverActions on(const DriverEvent& event, Instant now);

  State state() const { return state_; }
  Generation generation() const { return generation_; }
  const Ledger& ledger() const { return steps_.ledger(); }
  /// Steps committed.
  std::int64_t committed() const { return steps_.committed(); }
  /// Trainers of the current generation, 0 while none runs.
  int members() const { return static_cast<int>(members_.size()); }
  /// Of the state that the steps of this generation are applied to (GenerationPlan::lineage).
  Generation lineage() const { return lineage_; }
  /// A trainer that has the job's weights while steps run; none: nobody does now.
  std::optional<ActorId> runs_with_weights() const {
    const bool runs = state_ == State::kRunning || state_ == State::kBarrier;
    return runs ? std::optional(holders().back()) : std::nullopt;
  }
  /// Whether it waits for GoOn after an epoch.
  bool holds() const { return state_ == State::kBarrier && barrier_.is(BarrierTask::kHold); }
  /// Whether the state of so many steps is evaluated, or ends an epoch.
  bool evaluation_at(std::int64_t step) const { return agenda_.evaluation_at(step); }
  /// Why the last event, or a part of it, was ignored; empty if it was not.
  const std::string& ignored() const { return ignored_; }

 private:
  // driver_machine.cpp: who comes and goes, time and the user.
  void handle(const TrainerReady& e);
  void handle(const TrainerDown& e);
  void handle(const LoaderReady& e);
  void handle(const LoaderDown& e);
  void handle(const LoaderHeartbeat& e);
  void handle(const SpawnFailed& e);
  void handle(const SpawnWaits& e);
  void handle(const TrainerReport& e);
  void handle(const StopRequested& e);
  void handle(const GoOn& e);
  void handle(const DriverTick& e);
  void handle(const WorkerLeaves& e);
  void report(const TrainerHeartbeat& r, TrainerSeat& from);
  void catch_up(Instant now);
  void spawn_missing();
  void lose_checkpoint(const std::string& why);
  void kill(TrainerSeat& trainer, const std::string& why);
  void kill_loader(ActorId loader, const std::string& why, bool fault);
  void check_trainers();
  void check_loaders();
  void check_state();
  void check_standstill();
  void extend_deadlines();
  void expired(const std::string& what) { out_.push_back(DeadlineExpired{what}); }
  void blame(const TrainerSeat& trainer, const std::string& why);
  void failed_at(std::int64_t step, const std::string& why);
  std::string place(std::int64_t step) const;
  bool can_end_at_once() const;
  void end_as_it_is();
  void finish(const StateHash& hash, EndState state);
  void ignore(std::string why) { ignored_ = std::move(why); }
  bool over() const { return state_ == State::kDone || state_ == State::kFailed; }
  /// Ends the job if a part says that it has failed: then true.
  bool failed(std::optional<JobFailed> failure);
  void fail(std::string why, std::string todo = {}) { failed(JobFailed{std::move(why), std::move(todo)}); }

  // driver_generations.cpp: who holds what, who goes on, who joins and who leaves.
  void report(const TrainerQuiesced& r, TrainerSeat& from);
  void report(const GroupFormed& r, TrainerSeat& from);
  void report(const StateInstalled& r, TrainerSeat& from);
  void report(const GenerationFailed& r, TrainerSeat& from);
  void report(const CheckpointUnreadable& r, TrainerSeat& from);
  void report(const StateShared& r, TrainerSeat& from);
  void report(const StateFollowed& r, TrainerSeat& from);
  void report(const FollowFailed& r, TrainerSeat& from);
  bool current(Generation generation);
  bool generation_runs() const;
  bool is_member(const TrainerSeat& trainer) const;
  bool is_spare(const TrainerSeat& trainer) const;
  int staying_members() const;
  void open_generation(const std::string& cause, bool fault);
  void ask_to_quiesce(TrainerSeat& trainer, const std::string& why);
  void plan_when_known();
  bool can_save(const std::vector<Holding>& all);
  RecoveryInput recovery_input() const;
  std::vector<Holding> holdings() const;
  bool waits_for_folder(const std::vector<Holding>& all, bool needs_it);
  void start_generation(const Recovery& recovery);
  void pass_on(GenerationPlan& plan);
  void run_when_formed();
  void share_checkpoint();
  void widen();
  bool let_leave();
  void start_following(const std::vector<ActorId>& followers);
  void stop_following(ActorId who, const std::string& why);
  bool all_caught_up() const;
  void check_following();

  // driver_steps.cpp: commits, and what is done between them.
  void report(const StepApplied& r, TrainerSeat& from);
  void report(const EvaluationDone& r, TrainerSeat& from);
  void report(const CheckpointCopied& r, TrainerSeat& from);
  void report(const CheckpointWritten& r, TrainerSeat& from);
  void report(const StateProved& r, TrainerSeat& from);
  void report(const PruneFailed& r, TrainerSeat& from);
  void report(const CheckpointFailed& r, TrainerSeat& from);
  void report(const TrainerFinished& r, TrainerSeat& from);
  bool agrees(StateProofs& proofs, const TrainerSeat& from, std::int64_t steps,
              const std::vector<PartHash>& parts);
  bool saved_agrees(const TrainerSeat& from, std::int64_t step, const std::vector<PartHash>& parts);
  void all_proven();
  void commit();
  bool commit_step();
  void finish_epoch();
  void proceed();
  void start_barrier(BarrierTask task);
  bool waits_for_checkpoint(BarrierTask next) const;
  void copied();
  void accept_checkpoint();
  void end_checkpoint();
  void no_checkpoint(std::int64_t step, const std::string& why);
  std::optional<Best> best_now() const;
  std::string history_now() const;
  std::vector<ActorId> holders() const;
  EndState held_state(std::vector<PartHash> parts) const;
  void recovered();
  void to_members(const TrainerOrder& order);

  SharedConfig config_;
  Mutations mutations_;
  Roster roster_;
  Forming forming_;
  Following following_;
  StepLog steps_;
  StateProofs proofs_;
  Evaluations evaluations_;
  Agenda agenda_;
  Barrier barrier_;
  CheckpointUnderWay saving_;
  CheckpointList checkpoints_;
  FailureCount failures_;
  Interruption interruption_;

  State state_ = State::kGathering;
  Generation generation_;
  Generation lineage_;            ///< of the state that it begins from
  std::int64_t first_step_ = 0;   ///< steps in that state
  std::vector<ActorId> members_;  ///< of the generation that forms or runs, in rank order
  Instant grace_end_{};           ///< kGathering: until then it waits for all wanted trainers
  Instant deadline_{};            ///< of the state
  Instant stop_deadline_{};

  // Of the event under way.
  Instant now_{-1};
  DriverActions out_;
  std::string ignored_;
};

}  // namespace troupe::train
