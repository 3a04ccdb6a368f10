/// troupe::train::run: data-parallel training of a user's struct on a cluster.
///
///     auto result = troupe::train::run(session, Digits{folder}, {.logical_ranks = 4, .micro_batch = 25,
///     .epochs = 3,
///                                                                .trainers = 2, .loaders = 1, .seed = 7});
///
/// It shows its progress and a summary on standard output, ends after the current step at Ctrl-C, and a
/// second Ctrl-C ends the program. `start` does the same through a handle (run.hpp).
///
/// The struct has model(), optimizer(net), criterion(output, batch) or loss(net, batch), and dataset(split);
/// see actors/train/job/model.hpp.
/// It crosses processes, so its fields are data. The result depends on the struct, the logical ranks, the
/// micro-batch and the seed alone: not on how many trainers ran, which died, or when they were replaced.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/report/events.hpp"
#include "actors/train/api/run.hpp"
#include "actors/train/api/weights.hpp"
#include "actors/train/deadlines.hpp"
#include "actors/train/driver/history.hpp"
#include "actors/train/job/job_registry.hpp"
#include "actors/train/not_finite.hpp"
#include "actors/train/settings.hpp"
#include "scheduler/init/init.hpp"

namespace troupe::train {

struct RunOptions;  // of the driver (train_driver.hpp)

struct TrainOptions {
  int logical_ranks = 1;          ///< L: part of the job's identity. Global batch = L x micro_batch
  std::int64_t micro_batch = 32;  ///< samples a logical rank a step
  int epochs = 1;
  std::int64_t max_steps = 0;  ///< the job ends after so many steps, whatever `epochs` says; 0: these do
  int trainers = 1;            ///< processes that compute; at most L
  int loaders = 1;             ///< processes that read
  std::uint64_t seed = 0;      ///< of weights, order of samples and dropout
  /// Test and validation set after every epoch and at the job's end, each sample once.
  bool evaluate = true;
  std::int64_t evaluate_every = 0;      ///< steps: then, too; stop_early and keep_best see it
  std::int64_t evaluation_samples = 0;  ///< of each set the first so many; 0: all
  std::string checkpoint_folder{};      ///< empty: none
  std::int64_t checkpoint_every = 0;    ///< steps; 0: at each epoch's end
  int keep_checkpoints = 3;             ///< older ones go once this run has written so many
  /// Fewer do not train: the job waits for more (Deadlines::gather), then fails. At its start so many that
  /// hold CPUs or GPUs get their room together: a job that does not fit holds none, says why, and waits.
  int min_trainers = 1;
  PlacementStrategy trainer_strategy =
      PlacementStrategy::kPack;  ///< how these lie; later ones do as they can
  /// Intra-op threads of a trainer; other numbers give other bits. 0: the whole CPUs that it holds
  /// (trainer_cpus), or else its share of the cluster's CPUs, and 1 on a GPU; the first line shown says how
  /// many. A checkpoint, a snapshot and a sweep keep that number: who goes on with them has it, too.
  int threads = 1;
  /// The same bits on every trainer: one whose processor or LibTorch gives other bits is refused, algorithms
  /// are deterministic, and trainers' states are compared. false: none of that, and the result is one
  /// trainer's.
  bool exact = true;
  /// Each trainer computes its first leaf of a few steps (the 2nd, 5th, 17th, 65th and so on, and the last)
  /// again on a fresh copy of the state, to find what changes and is in no state. For that it runs model()
  /// again and holds the state twice; false: it does neither, and such a job goes on in silence. The result
  /// is the same.
  bool rehearse = true;
  bool encrypt_data_plane = false;  ///< gradients between hosts, where they are else authenticated alone
  Deadlines deadlines{};            ///< how long to wait, from the last progress
  bool resume = false;              ///< take up at the newest checkpoint in the folder: it must have one
  /// Begin with what another job left on disk: the manifest or the folder of its checkpoints (the newest), a
  /// safetensors file, or a state dict that torch.save wrote. Its weights, from step 0 on.
  std::string from{};
  bool from_state = false;    ///< the whole state and the steps instead; the job's own rates and schedules
  bool from_partial = false;  ///< weights that it lacks stay as the seed makes them; what that is, is told
  /// CPUs that a trainer reserves on its node. A trainer that finds none free waits until another one has
  /// gone. 0: it reserves none, so that any number runs on any machine.
  double trainer_cpus = 0;
  /// GPUs that a trainer holds on its node, and computes on: 0 (the CPU), 1, or a part of one that trainers
  /// share. A trainer that finds none free waits; the job says what it waits for, and trains meanwhile if
  /// min_trainers are there. Part of the numerics, not of the job's identity.
  double trainer_gpus = 0;
  /// Beside these, as actors ask for them (docs/placement.md): bytes of memory (a trainer that has more is
  /// ended when its node is short of memory), custom resources that a trainer holds ({{"tpu", 1}}), and
  /// labels of the nodes that trainers may be on ({{"zone", "a"}}).
  std::int64_t trainer_memory = 0;
  std::map<std::string, double> trainer_resources{};
  std::map<std::string, std::string> trainer_labels{};
  /// Shard::kOptimizer: each trainer keeps what optimizers keep for its share of the parameters, and steps
  /// these alone (ZeRO-1). Shard::kGradients: its shards of the gradients, too (ZeRO-2). Shard::kParameters:
  /// its shards of the parameters, of which one unit at a time is whole (ZeRO-3). The same bits; a death goes
  /// back to the last checkpoint. docs/sharding.md.
  Shard shard = Shard::kNothing;
  /// Of kGradients and kParameters: a module with so many elements, that are in no unit inside of it, is a
  /// unit (FsdpOptions::min_num_params); 0: those in shard_units alone.
  std::int64_t shard_min_num_params = std::int64_t{1} << 20;
  /// Modules that are units whatever their size, by their names in the job ("layers.0"; of a named module
  /// "generator.layers.0").
  std::vector<std::string> shard_units{};
  /// The unit that the step before used next is on its way while one computes: a unit more is whole at a time
  /// (FsdpOptions::prefetch). The same bits.
  bool shard_prefetch = false;
  /// A step whose loss is NaN or infinite is applied as any other (kGoOn), left out (kSkip), or left out and
  /// the last (kStop). RunResult::not_finite counts them.
  NotFinite not_finite = NotFinite::kGoOn;
  /// {.metric = "validation/loss", .patience = 3}: end when it gets no better.
  StopEarly stop_early{};
  /// After each epoch but the last the job waits for Run::go_on(), stop() or pause(): whoever holds it
  /// decides.
  bool hold = false;
  /// "validation/accuracy", or "test/accuracy" for a job without a validation set: the checkpoint of the
  /// epoch with the best value stays, however old it is (RunResult::best_checkpoint).
  std::string keep_best{};
  Mode keep_best_mode = Mode::kAuto;  ///< which values of it are better
  std::vector<ChaosStep> chaos{};     ///< faults on purpose

  /// A parameter that the loss of a leaf does not depend on counts as zeros there; otherwise it is an error
  /// that names it. Costs one small reduction a step. Jobs whose nets train in turns need it.
  bool find_unused_parameters = false;
  bool return_weights = true;  ///< RunResult::load() works; a copy of the weights in this process

  std::string title{};        ///< the first line shown; empty: the struct's name, the ranks and trainers
  bool show_progress = true;  ///< a bar on a terminal, lines elsewhere, a summary: on standard output
  std::string events_json{};  ///< a file for every event as a line of JSON; empty: none
  std::string metrics_csv{};  ///< a file for every figure as a row; a resumed run adds rows; empty: none
  std::string tensorboard_folder{};  ///< empty: none
  /// SIGINT and SIGTERM end the job after the current step, with a checkpoint where those are kept, as soon
  /// as somebody waits for the run; a second one ends the program. That holds from start() until the job is
  /// over. A signal that the program handles itself is left alone.
  bool handle_signals = true;
  /// Told of everything that happens, in the thread that waits for the run. If it throws, the job ends and
  /// the exception goes on to who waits.
  std::function<void(const report::Event&)> on_event{};
};

/// What a run is to do, without the job's type.
struct RunPlan {
  std::uint64_t job_type = 0;
  wire::Bytes job;
  TrainOptions options;
  std::optional<Snapshot> from{};   ///< begins with this state
  bool clone = false;               ///< that state may be of another struct and seed
  std::string from_path{};          ///< the file that it was read from; empty: from none
  std::vector<std::string> told{};  ///< warnings of its begin
  bool evaluates = false;           ///< and trains no step
  Workers workers{};                ///< of a run of the same kind: the first driver's
  bool is_released = false;         ///< Run::release() ends it: workers outlive its result
};

/// What a driver may take up from the checkpoint folder.
enum class TakeUp : std::uint8_t {
  kAsAsked,  ///< what the options say: what is there, or nothing, and then there must be nothing
  kOwn,      ///< what this very run has left there; from the beginning if it has left nothing
};

/// What a driver is started with. Throws BadConfig for options that make no sense, and for checkpoints that
/// do not fit; takes the checkpoint folder's lock if `folder` is empty, and adds what is to be told.
RunOptions run_options(const DriverSession& session, const RunPlan& plan, TakeUp take_up,
                       std::optional<checkpoint::FolderLock>& folder, std::vector<report::Event>& told);

/// Throws BadConfig where no run of a job of that type can have these options.
void check_options(const DriverSession& session, std::uint64_t job_type, const TrainOptions& options);

/// CPUs of the nodes that run actors.
double cpus_of(const std::vector<cluster::NodeInfo>& nodes);
/// TrainOptions::threads or, where that is 0, what a trainer has room for on a cluster of so many CPUs.
int threads_of(const TrainOptions& options, double cpus);
/// Whether TROUPE_RESUME=auto is in the environment: this program was started again, and goes on with what it
/// had begun. Throws BadConfig for another value.
bool is_started_again();

/// The part of start() that does not depend on the job's type.
Run start_training(const DriverSession& session, RunPlan plan);

/// The part of evaluate() that does not depend on the job's type. `bytes`: of a safetensors file, where
/// `path` is empty.
report::Metrics evaluate_weights(const DriverSession& session, RunPlan plan, const std::string& path,
                                 std::span<const std::byte> bytes);

/// Begins to train. Throws BadConfig for options that make no sense, IoError for a file that cannot be
/// written. `session` must outlive the run.
template <class Job>
Run start(const DriverSession& session, const Job& job, const TrainOptions& options) {
  (void)&JobEntry<Job>::registered;
  return start_training(session, {JobEntry<Job>::kId, wire::encode(job), options});
}

/// The same from the state of another run: a clone of it (Run::clone).
template <class Job>
Run start(const DriverSession& session, const Job& job, const TrainOptions& options, const Snapshot& from) {
  (void)&JobEntry<Job>::registered;
  return start_training(session, {JobEntry<Job>::kId, wire::encode(job), options, from, true});
}

/// In workers that are there (Run::release), and that its own release() gives back. `from`: null, or as
/// above.
template <class Job>
Run start_in(const Workers& workers, const DriverSession& session, const Job& job,
             const TrainOptions& options, const Snapshot* from) {
  (void)&JobEntry<Job>::registered;
  RunPlan plan{JobEntry<Job>::kId, wire::encode(job), options};
  if (from != nullptr) plan.from = *from;
  plan.clone = from != nullptr;
  plan.workers = workers;
  plan.is_released = true;
  return start_training(session, std::move(plan));
}

/// Trains, and returns what came of it. Throws as start() and Run::wait().
template <class Job>
RunResult run(const DriverSession& session, const Job& job, const TrainOptions& options) {
  return start(session, job, options).wait();
}

/// What weights come to on the job's test and validation set, as after an epoch: "test/loss",
/// "test/accuracy". The figures do not depend on the number of trainers; those that die are replaced. Of
/// `options` counts what says how a job runs, not what it trains or keeps. `weights`: a path, as
/// TrainOptions::from. Throws as run().
///     auto metrics = train::evaluate(session, job, "digits.safetensors", {.logical_ranks = 2,
///                                                                         .trainers = 2});
template <class Job>
report::Metrics evaluate(const DriverSession& session, const Job& job, const std::string& weights,
                         const TrainOptions& options = {}) {
  (void)&JobEntry<Job>::registered;
  return evaluate_weights(session, {JobEntry<Job>::kId, wire::encode(job), options}, weights, {});
}
/// The same of what a run has trained. REQUIRES: it has its weights (return_weights).
template <class Job>
report::Metrics evaluate(const DriverSession& session, const Job& job, const RunResult& trained,
                         const TrainOptions& options = {}) {
  (void)&JobEntry<Job>::registered;
  return evaluate_weights(session, {JobEntry<Job>::kId, wire::encode(job), options}, "", trained.weights);
}

template <class Job>
Run Run::clone(const Job& job, const TrainOptions& options) const {
  (void)&JobEntry<Job>::registered;
  return start_clone({JobEntry<Job>::kId, wire::encode(job), options, {}, true});
}

}  // namespace troupe::train
