/// The driver's configuration, events and actions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "actors/train/deadlines.hpp"
#include "actors/train/driver/history.hpp"
#include "actors/train/driver/ledger.hpp"
#include "actors/train/messages.hpp"
#include "actors/train/not_finite.hpp"
#include "actors/train/plan.hpp"
#include "actors/train/restart_policy.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::train {

/// A checkpoint that can be started from.
struct CheckpointInfo {
  std::string path;
  std::int64_t step = 0;   ///< steps in its state
  StateHash hash;          ///< empty if not known
  std::string history{};   ///< encode_history; empty: none
  bool in_memory = false;  ///< a snapshot: no file, and nobody's best checkpoint
  bool operator==(const CheckpointInfo&) const = default;
};

/// How long each state may last.
struct DriverDeadlines : Deadlines {
  Duration start_grace = std::chrono::seconds(10);  ///< waits this long for all wanted trainers, then min
  Duration quiesce = std::chrono::seconds(6);       ///< then the trainer is killed, unless it computes
  Duration kill = std::chrono::seconds(6);  ///< then it counts as dead though nobody saw it: its messages are
                                            ///< refused and its regions never used again
  Duration standstill = std::chrono::seconds(30);  ///< nobody computes, and nobody makes progress
  Duration silence = std::chrono::seconds(6);      ///< a trainer or loader without a sign of life is killed
};

struct DriverConfig {
  int logical_ranks = 1;
  int trainers = 1;  ///< wanted; at most logical_ranks
  int min_trainers = 1;
  int loaders = 1;
  int epochs = 1;
  std::int64_t steps_per_epoch = 1;
  std::int64_t max_steps = 0;  ///< the job ends after so many, and not after its epochs; 0: after these
  bool evaluates = false;      ///< the job trains no step: the state that it begins with is evaluated
  std::int64_t total_steps() const {
    return evaluates ? 0 : max_steps > 0 ? max_steps : epochs * steps_per_epoch;
  }
  std::int64_t evaluate_every = 0;     ///< steps, beside each epoch's end and the job's; 0: no more
  std::int64_t test_pieces = 0;        ///< evaluated after each epoch; 0: none
  std::int64_t validation_pieces = 0;  ///< the same; their numbers follow those of the test set
  std::int64_t pieces() const { return test_pieces + validation_pieces; }
  bool hold = false;                  ///< after each epoch but the last, until GoOn
  bool exact = true;                  ///< trainers must hold the same bits; false: each computes its own
  bool sharded = false;               ///< no trainer holds a whole state once it has applied a step
  bool checkpoints = false;           ///< whether checkpoints are written at all
  std::string checkpoint_folder{};    ///< for messages
  std::int64_t checkpoint_every = 0;  ///< steps; 0: at each epoch's end
  int keep_checkpoints = 3;           ///< of this run; older ones, of any run, go
  StopEarly stop_early;
  NotFinite not_finite = NotFinite::kGoOn;
  std::string keep_best;  ///< the checkpoint with the best value of this metric stays; empty: none does
  Mode keep_best_mode = Mode::kAuto;
  bool tells_metrics = false;  ///< schedules look at them: trainers hear what evaluations came to
  int ahead = 8;               ///< steps that may be run ahead of the commit
  int failed_generations = 3;  ///< generations that fail in a row before the most suspected trainer is killed
  RestartPolicy restart;
  DriverDeadlines deadlines;
  std::uint32_t incarnation = 1;  ///< from the head
  /// All checkpoints of an earlier run, oldest first; the job takes up at the last that a trainer can read.
  /// Empty: from step 0.
  std::vector<CheckpointInfo> resume;
  /// The hash of the indices that the sampler deals to a slot. Checked at each epoch's end if given.
  std::function<std::uint64_t(int epoch, std::int64_t step_in_epoch, int leaf)> expected_indices;
  /// The same of a piece of an evaluation.
  std::function<std::uint64_t(std::int64_t piece)> expected_piece;
};
/// The machine's, and that of its values.
using SharedConfig = std::shared_ptr<const DriverConfig>;

// Events: a trainer's reports (messages.hpp), and these.

enum class SpawnKind : std::uint8_t { kTrainer, kLoader };

/// A trainer is up and can be given orders. `token` is its SpawnTrainer's.
struct TrainerReady {
  std::uint64_t token = 0;
  ActorId actor{};
  NodeId node{};
  std::string data_address;
  bool has_nccl = false;
  bool has_folder = true;  ///< it sees the checkpoint folder of the run
};
/// The process is gone: seen by its node (pidfd), or its node was declared dead.
struct TrainerDown {
  ActorId actor{};
  std::string reason;
};
/// The node of a trainer or loader drains: it has a while to hand over. Or (`stays`) it does not any more.
struct WorkerLeaves {
  ActorId actor{};
  std::string reason;
  bool stays = false;
};
struct LoaderReady {
  std::uint64_t token = 0;
  ActorId actor{};
  NodeId node{};
  std::string address;
};
struct LoaderDown {
  ActorId actor{};
  std::string reason;
};
/// A loader's sign of life, every second, from a thread that reads no data.
struct LoaderHeartbeat {
  ActorId actor{};
  Progress progress;
};
struct SpawnFailed {
  std::uint64_t token = 0;
  std::string reason;
  ErrorCode code = ErrorCode::kUnavailable;
};
/// The cluster has no room for that spawn now, and says why.
struct SpawnWaits {
  std::uint64_t token = 0;
  std::string why;
};
/// Ctrl-C. The first time the job ends at a checkpoint, the second time at once.
struct StopRequested {
  bool hold_state = false;  ///< somebody wants the state: end where a trainer holds it
};
/// A job that holds after an epoch goes on into the next one; so does one that is about to hold.
struct GoOn {};
struct DriverTick {};

using DriverEvent =
    std::variant<TrainerReady, TrainerDown, LoaderReady, LoaderDown, LoaderHeartbeat, SpawnFailed, SpawnWaits,
                 TrainerReport, StopRequested, GoOn, DriverTick, WorkerLeaves>;

// Actions.

struct SpawnActor {
  SpawnKind kind = SpawnKind::kTrainer;
  std::uint64_t token = 0;
  std::string reason;
};
/// The spawn is not wanted any more: whatever it leads to is to be killed.
struct CancelSpawn {
  std::uint64_t token = 0;
  std::string reason;
};
struct SendOrder {
  ActorId trainer{};
  TrainerOrder order;
};
/// Fencing is death. Answered by TrainerDown (LoaderDown).
struct KillActor {
  ActorId actor{};
  std::string reason;
};
/// The step is committed: write it to the ledger and the metrics.
struct CommitStep {
  LedgerEntry entry;
  double loss = 0;  ///< mean over the leaves, added in leaf order
  StepValues values;
};
/// Steps from `to` on are void; they will run again.
struct RewindLedger {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::string reason;
};
/// The checkpoint holds a committed state: publish it (and let older ones go).
struct AcceptCheckpoint {
  CheckpointInfo checkpoint;
};
/// An epoch, or with `ended` false an evaluation in the middle of one.
struct EpochDone {
  int epoch = 0;
  std::int64_t step = 0;  ///< steps of the state that was evaluated
  bool ended = true;
  std::vector<Figure> train;              ///< over the epoch's slots so far, in their order; "loss" first
  std::vector<Figure> test;               ///< over the pieces of the test set, in their order
  std::vector<Figure> validation;         ///< the same of the validation set
  std::int64_t count = 0;                 ///< samples evaluated; 0 without an evaluation
  std::map<std::string, double> metrics;  ///< all as "train/loss", "test/loss", "validation/loss"
};
/// A wait is over that should have ended before: to be told and counted.
struct DeadlineExpired {
  std::string text;
};
/// The job goes on from this checkpoint.
struct Resumed {
  CheckpointInfo checkpoint;
};
/// A line for the user: what died and why, a failed checkpoint.
struct Notice {
  std::string text;
  ActorId actor{};  ///< whom it is about, if it is about one
};
/// Training goes on after a fault (or a widening). Times are the driver's `now` at each event.
struct Recovered {
  Generation generation;
  std::string cause;         ///< "trainer 3 died: signal 9", "trainer 5 joined"
  bool fault = true;         ///< false for a widening
  Instant detected{};        ///< the driver knew
  Instant left{};            ///< the last survivor had left the collective
  Instant training_again{};  ///< a step of the new generation was applied
  int trainers = 0;          ///< in the new generation
};
/// The state that a job ended with.
struct EndState {
  std::int64_t steps = kNoState;
  Generation lineage;            ///< GenerationPlan::lineage
  std::vector<PartHash> parts;   ///< hash_parts: what every holder said of it
  std::vector<ActorId> holders;  ///< the last members: no other trainer is known to hold it
  bool in_shards = false;        ///< each of them, in rank order, holds its own; else all of it
};
/// The job holds after an epoch: its members have this state until GoOn or StopRequested.
struct Held {
  EndState state;  ///< no parts: nobody hashed them
  std::string history;
};
struct JobDone {
  StateHash hash;  ///< empty: stopped while no trainer could say it
  std::int64_t steps = 0;
  bool stopped = false;             ///< ended early by StopRequested
  bool stopped_early = false;       ///< ended early by StopEarly
  bool stopped_not_finite = false;  ///< ended by NotFinite::kStop
  std::int64_t begun_at = 0;        ///< steps of earlier runs
  int failed_checkpoints = 0;       ///< that could not be written
  std::int64_t saved = kNoState;    ///< steps in the newest checkpoint
  std::string history;              ///< of the state it ends with
  double best_metric = 0;           ///< of keep_best; meaningful with a best checkpoint
  std::string best_checkpoint;      ///< path of its manifest; empty: none
  EndState state;                   ///< nobody's, where `hash` is empty
};
struct JobFailed {
  std::string reason;
  std::string todo;  ///< what the user can do, if it is known
};

/// A file that other trainers' states contradict: no run may go on from it.
struct DiscardCheckpoint {
  std::string path;  ///< of its manifest
};

using DriverAction = std::variant<SpawnActor, CancelSpawn, SendOrder, KillActor, CommitStep, RewindLedger,
                                  AcceptCheckpoint, DiscardCheckpoint, EpochDone, DeadlineExpired, Resumed,
                                  Notice, Recovered, Held, JobDone, JobFailed>;
using DriverActions = std::vector<DriverAction>;

/// "120 s", "0.5 s".
std::string seconds_of(Duration duration);

}  // namespace troupe::train
