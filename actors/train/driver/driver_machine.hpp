/// The driver of a job as a pure state machine: deals logical ranks, opens generations, commits steps, runs
/// recovery. Events in, actions out; no clock, no I/O. docs/step-commit.md draws it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/train/driver/agenda.hpp"
#include "actors/train/driver/checkpoint_list.hpp"
#include "actors/train/driver/driver_types.hpp"
#include "actors/train/driver/evaluations.hpp"
#include "actors/train/driver/failure_count.hpp"
#include "actors/train/driver/interruption.hpp"
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
  std::vector<DriverAction> start(Instant now);
  /// Call with DriverTick about ten times a second. `now` never goes back. A driver that was itself stopped
  /// (no tick for a second) moves every deadline by that time: it cannot have heard anybody.
  std::vector<DriverAction> on(const DriverEvent& event, Instant now);

  State state() const { return state_; }
  Generation generation() const { return generation_; }
  const Ledger& ledger() const { return steps_.ledger(); }
  /// Steps committed.
  std::int64_t committed() const { return steps_.committed(); }
  /// Trainers of the current generation, 0 while none runs.
  int members() const { return static_cast<int>(members_.size()); }
  /// Whether it waits for GoOn after an epoch.
  bool holds() const { return state_ == State::kBarrier && barrier_task_ == BarrierTask::kHold; }
  /// Whether the state of so many steps is evaluated, or ends an epoch.
  bool evaluation_at(std::int64_t step) const { return agenda_.evaluation_at(step); }
  /// Why the last event, or a part of it, was ignored; empty if it was not.
  const std::string& ignored() const { return ignored_; }

 private:
  using Actions = DriverActions;

  /// What a process said of its progress, and since when it is held to it.
  struct Watch {
    Progress progress;
    Instant since{};  ///< it came further then, or waited for others

    /// True if it has come further.
    bool hear(const Progress& news, Instant now);
    bool hangs(Instant now, Duration allowed) const { return progress.computes && now - since >= allowed; }
  };
  /// A trainer that is not known to be dead.
  struct Trainer {
    TrainerReady ready;
    Instant last_heard{};
    Watch watch;
    std::uint64_t arrival = 0;
    int rank = -1;               ///< in the current generation, or the last it was in; -1: never
    bool made_progress = false;  ///< was a member when the job got further than ever
    bool killed = false;         ///< we asked for its death; `deadline` is when it counts as dead anyway
    bool quiesced = false;
    bool leaves = false;  ///< its node drains: another one is to take its place
    std::string why_it_leaves;
    Instant deadline{};  ///< for its quiesce, or its death
    std::int64_t steps = kNoState;
    Generation lineage;                 ///< of the state it holds
    StateHash final_hash;               ///< once it has finished
    std::vector<PartHash> final_parts;  ///< of that state
    bool proven = false;                ///< computed a step, and had the same bits after it as the others
    bool formed = false;
    bool holds = false;        ///< has the generation's state
    std::string unreadable;    ///< why it cannot read the generation's checkpoint
    std::int64_t applied = 0;  ///< steps, in this generation
    bool barrier_task_done = false;
  };
  struct Loader {
    LoaderInfo info;
    Instant last_heard{};
    Watch watch;
    bool made_progress = false;
  };
  struct Spawn {
    SpawnKind kind = SpawnKind::kTrainer;
    Instant deadline{};
  };
  /// Restarts of one kind of actor.
  struct Pool {
    int failures = 0;  ///< failures since one of its actors last helped the job get further than ever
    Instant not_before{};
    bool given_up = false;
    std::string last_failure;
    std::string waits_for;  ///< what the last one that had to wait was told
  };
  /// Trainers that are no members yet take the state of one that is, while the steps go on.
  struct Following {
    ActorId source{};
    Generation shared_in;
    bool shared = false;          ///< the source has its copy
    std::set<ActorId> followers;  ///< that have not failed
    std::set<ActorId> caught_up;
    std::optional<std::int64_t> join_at;  ///< after so many steps they become members
    Instant deadline{};
  };
  // driver_machine.cpp: who is there
  void handle(const TrainerReady& e, Instant now, Actions& out);
  void handle(const TrainerDown& e, Instant now, Actions& out);
  void handle(const LoaderReady& e, Instant now, Actions& out);
  void handle(const LoaderDown& e, Instant now, Actions& out);
  void handle(const LoaderHeartbeat& e, Instant now, Actions& out);
  void handle(const SpawnFailed& e, Instant now, Actions& out);
  void handle(const SpawnWaits& e, Instant now, Actions& out);
  void handle(const TrainerReport& e, Instant now, Actions& out);
  void handle(const StopRequested& e, Instant now, Actions& out);
  void handle(const GoOn& e, Instant now, Actions& out);
  void handle(const DriverTick& e, Instant now, Actions& out);
  void spawn_missing(Instant now, Actions& out);
  void spawn_missing(SpawnKind kind, int wanted, int have, Instant now, Actions& out);
  void kill(Trainer& trainer, const std::string& why, Instant now, Actions& out);
  void kill_loader(ActorId actor, const std::string& why, Instant now, Actions& out);
  void lost_loader(ActorId actor, const std::string& why, Instant now, Actions& out, bool fault = true);
  void announce_loaders(Actions& out);
  void catch_up(Instant now);
  void check_trainers(Instant now, Actions& out);
  void check_loaders(Instant now, Actions& out);
  void check_spawns(Instant now, Actions& out);
  void check_state(Instant now, Actions& out);
  bool can_end_at_once() const;
  void end_as_it_is(Actions& out);
  void finish(const StateHash& hash, EndState state, Actions& out);
  Pool& pool(SpawnKind kind) { return kind == SpawnKind::kTrainer ? trainer_pool_ : loader_pool_; }
  std::vector<LoaderInfo> loader_list() const;
  std::string describe(const Trainer& trainer) const;
  void ignore(std::string why) { ignored_ = std::move(why); }
  bool over() const { return state_ == State::kDone || state_ == State::kFailed; }
  void fail(std::string why, Actions& out, std::string todo = {});
  /// Carries out what a part says: true, and the job is over, if it has failed.
  bool failed(std::optional<JobFailed> failure, Actions& out);

  // driver_failures.cpp: who makes no progress, what failed, and when it is enough
  void count_failure(SpawnKind kind, const std::string& why, Instant now, Actions& out);
  void failed_at(std::int64_t step, const std::string& why, Actions& out);
  void blame(const Trainer& trainer, const std::string& why, Actions& out);
  std::int64_t step_of(const Trainer& trainer) const;
  std::string place(std::int64_t step) const;
  void expired(const std::string& what, Actions& out);
  void spawn_failed(SpawnKind kind, const std::string& why, bool by_code, Instant now, Actions& out);
  void moved(Instant now);
  bool somebody_computes() const;
  std::string who_waits() const;
  void check_standstill(Instant now, Actions& out);

  // driver_generations.cpp: who holds what, and who goes on
  void report(const TrainerHeartbeat& r, Trainer& from, Instant now, Actions& out);
  void report(const TrainerQuiesced& r, Trainer& from, Instant now, Actions& out);
  void report(const GroupFormed& r, Trainer& from, Instant now, Actions& out);
  void report(const StateInstalled& r, Trainer& from, Instant now, Actions& out);
  void report(const GenerationFailed& r, Trainer& from, Instant now, Actions& out);
  void report(const CheckpointUnreadable& r, Trainer& from, Instant now, Actions& out);
  bool current(Generation generation);
  bool generation_runs() const;
  bool is_member(const Trainer& trainer) const;
  void open_generation(const std::string& cause, bool fault, Instant now, Actions& out);
  void ask_to_quiesce(Trainer& trainer, const std::string& why, Instant now, Actions& out);
  void plan_when_known(Instant now, Actions& out);
  const Trainer* find_authority() const;
  void go_back_to(std::int64_t step, Actions& out);
  void start_generation(Instant now, Actions& out);
  bool enough_hold_a_state() const;
  bool has_the_state(const Trainer& trainer) const;
  bool can_follow_up(const Trainer& trainer) const;
  void deal_ranks();
  void run_when_formed(Instant now, Actions& out);
  void share_checkpoint(Instant now, Actions& out);
  void drop_checkpoint(Instant now, Actions& out);
  void widen(Instant now, Actions& out);

  // driver_leaving.cpp: whose node drains hands over, and goes
  void handle(const WorkerLeaves& e, Instant now, Actions& out);
  bool let_leave(Instant now, Actions& out);
  int staying() const;
  int staying_members() const;
  void leave_out(std::vector<Trainer*>& order, bool from_members);

  // driver_following.cpp: who joins takes the state beside the steps
  void report(const StateShared& r, Trainer& from, Instant now, Actions& out);
  void report(const StateFollowed& r, Trainer& from, Instant now, Actions& out);
  void report(const FollowFailed& r, Trainer& from, Instant now, Actions& out);
  void start_following(const std::vector<ActorId>& followers, Instant now, Actions& out);
  void stop_following(ActorId who, const std::string& why, Instant now, Actions& out);
  bool all_caught_up() const;
  bool must_wait_for_copies() const;
  void check_following(Instant now, Actions& out);

  // driver_commits.cpp: what is done
  void report(const StepApplied& r, Trainer& from, Instant now, Actions& out);
  void report(const EvaluationDone& r, Trainer& from, Instant now, Actions& out);
  void report(const CheckpointWritten& r, Trainer& from, Instant now, Actions& out);
  void report(const StateProved& r, Trainer& from, Instant now, Actions& out);
  void report(const PruneFailed& r, Trainer& from, Instant now, Actions& out);
  void report(const CheckpointFailed& r, Trainer& from, Instant now, Actions& out);
  void report(const TrainerFinished& r, Trainer& from, Instant now, Actions& out);
  bool agrees(const Trainer& from, std::int64_t step, const std::vector<PartHash>& parts, Actions& out);
  void all_proven();
  void accept_checkpoint(Instant now, Actions& out);
  void commit(Instant now, Actions& out);
  bool commit_step(Actions& out);
  void proceed(Instant now, Actions& out);
  void start_barrier_task(Instant now, Actions& out);
  bool barrier_task_complete() const;
  void finish_epoch(Actions& out);
  std::string history_now() const;
  void recovered(Instant now, Actions& out);
  void to_members(const TrainerOrder& order, Actions& out);

  DriverConfig config_;
  Mutations mutations_;
  State state_ = State::kGathering;
  Generation generation_;
  StepLog steps_;
  StateProofs proofs_;
  Evaluations evaluations_;
  Agenda agenda_;
  CheckpointList checkpoints_;
  FailureCount failures_;
  Interruption interruption_;
  std::string ignored_;

  std::map<ActorId, Trainer> trainers_;
  std::set<ActorId> dead_;        ///< trainers and loaders that must not come back
  std::vector<ActorId> members_;  ///< of the generation that forms or runs, in rank order
  std::map<ActorId, Loader> loaders_;
  std::map<std::uint64_t, Spawn> spawns_;  ///< by token
  std::uint64_t last_token_ = 0;
  std::uint64_t arrivals_ = 0;
  Pool trainer_pool_;
  Pool loader_pool_;

  Instant last_event_{-1};
  Instant grace_end_{};         ///< kGathering: until then it waits for all wanted trainers
  Instant deadline_{};          ///< of the state
  Instant loaderless_since_{};  ///< when the last loader went; meaningful while there is none
  Instant stop_deadline_{};

  std::int64_t first_step_ = 0;  ///< of this generation
  Generation lineage_;           ///< of the state it starts from
  std::optional<Following> following_;
  int failed_followings_ = 0;  ///< since the generation began
  BarrierTask barrier_task_ = BarrierTask::kNone;
  std::optional<CheckpointInfo> stored_;  ///< written, not yet accepted
};

}  // namespace troupe::train
