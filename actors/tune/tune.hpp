/// troupe::tune::run: a hyperparameter sweep over a training job's struct.
///
///     auto best = troupe::tune::run(session, Digits{folder}, {
///         .space = {{&Digits::lr, tune::log_uniform(1e-4, 1e-1)}}, .trials = 16,
///         .metric = "validation/accuracy", .scheduler = tune::Asha{}, .train = options});
///     std::cout << best.job.lr << " " << best.metric << "\n";
///
/// Each trial is a training run of the struct with the space's fields set. It reports after each epoch's
/// evaluation, and the scheduler decides there: it goes on, stops, pauses, or takes over another trial's
/// state. Trials share the cluster; one that fails is tried again, and never ends the others. Everything is
/// written down as it happens: a sweep whose program died is resumed with the same configs and decisions.
#pragma once

#include <string>
#include <utility>

#include "actors/tune/actor_trial.hpp"
#include "actors/tune/function_trial.hpp"
#include "actors/tune/space.hpp"
#include "actors/tune/sweep.hpp"

namespace troupe::tune {

template <class Job>
struct SweepOptions {
  Space<Job> space{};
  int trials = 1;              ///< configs to try; with grids alone: their points, where it is 0
  std::string metric{};        ///< "validation/accuracy", "test/loss": one that the job reports
  std::optional<Mode> mode{};  ///< which values are better; none: smaller ones of what ends in "loss"
  AnyScheduler scheduler = Fifo{};
  /// A scheduler of your own instead. It must be a function of its events and this context.
  std::function<std::unique_ptr<Scheduler>(const SchedulerContext&)> own_scheduler{};
  /// How each trial trains. epochs: at most. The sweep says what is shown and what a signal does; it keeps
  /// the best weights itself, so no checkpoint_folder. Files of events and metrics get ".trial-N" behind
  /// their names; TensorBoard's folder has one for each trial, with its hyperparameters (sweep_board.hpp).
  train::TrainOptions train{};
  /// Changes a trial's options, by its number or config. Must give the same for the same trial.
  Adjust adjust{};
  AnySearch search = RandomSearch{};  ///< grids, too; or Tpe{}, which learns from the trials before
  /// A search of your own instead. It must be a function of its calls, of the seed and these parameters.
  std::function<std::unique_ptr<Search>(const std::vector<Parameter>&, Mode, std::uint64_t seed)>
      own_search{};
  std::vector<Job> try_first{};  ///< the first trials have these jobs' fields, as far as the space names them
  /// Trials of each config, with train.seed, the next one and so on: then `trials` counts configs, and the
  /// best one has the best mean. With Fifo alone, since others judge single trials.
  int repeats = 1;
  std::optional<double> target{};  ///< a trial whose metric is as good as that has finished
  /// A trial that tells nothing for so long, no step and no report, counts as one that failed; 0: it may. Of
  /// run_actors from when its actor is there: not while it waits for room in the cluster.
  double silent_seconds = 3600;
  double max_seconds =
      0;  ///< then the sweep ends as at Ctrl-C, and may be resumed; 0: when all trials are over
  std::uint64_t seed = 0;  ///< of the configs and the scheduler's chance; weights and samples have train.seed
  /// Trials at a time; 0: as many as the cluster's CPUs allow when it begins, and as it began where it is
  /// resumed.
  int max_concurrent = 0;
  /// A trial trains in the processes of the one before it: they are loaded, and so are datasets that are the
  /// same (HasDataFields). What a struct keeps in statics stays there, too; false: each has its own.
  bool keep_processes = true;
  int retries = 2;                 ///< how often a trial that fails is tried again
  std::string name{};              ///< of the sweep, and of its folder; empty: the struct's name and the time
  std::string folder = "results";  ///< the sweep's records and weights are in folder/name
  bool resume = false;             ///< go on with the sweep of this name: it must be there, and be the same
  std::string report_json{};       ///< a file for a line of JSON a report; empty: none
  bool show_progress = true;       ///< a table on a terminal, lines elsewhere: on standard output
};

/// What tune::run returns.
template <class Job>
struct SweepResult : SweepOutcome {
  Job job;  ///< with the best config; as it was given, where there is no best
  /// The same of the sweep's, where the space names options, with the threads that were chosen; without
  /// adjust.
  train::TrainOptions train{};
};

namespace detail {

/// All but what the job is called and how a trial of it starts.
template <class Job>
SweepPlan plan_of(const Job& job, const SweepOptions<Job>& options) {
  SweepPlan plan;
  plan.space = options.space.to_text();
  plan.parameters = options.space.parameters();
  plan.sample = [space = options.space, job](Search& search) {
    return space.sample(job, [&](const Parameter& p) { return search.suggest(p); }).config;
  };
  plan.settle = [space = options.space, job](const Config& config) {
    return space.apply(job, config).config;
  };
  plan.swept_options = options.space.options();
  if (!plan.swept_options.empty())
    plan.set_options = [space = options.space, job](const Config& config, train::TrainOptions& train) {
      space.apply(job, config, &train);
    };
  plan.trials = options.trials;
  plan.metric = options.metric;
  plan.mode = options.mode;
  plan.scheduler = options.scheduler;
  plan.own_scheduler = options.own_scheduler;
  plan.train = options.train;
  plan.adjust = options.adjust;
  plan.search = options.search;
  plan.own_search = options.own_search;
  for (const Job& each : options.try_first) {
    train::TrainOptions its = options.train;  // which functions of the space change
    plan.first.push_back(options.space.config_of(each, &its));
  }
  plan.target = options.target;
  plan.repeats = options.repeats;
  plan.silent_seconds = options.silent_seconds;
  plan.max_seconds = options.max_seconds;
  plan.seed = options.seed;
  plan.max_concurrent = options.max_concurrent;
  plan.retries = options.retries;
  plan.keep_processes = options.keep_processes;
  plan.name = options.name;
  plan.folder = options.folder;
  plan.resume = options.resume;
  plan.report_json = options.report_json;
  plan.show_progress = options.show_progress;
  return plan;
}

inline ActorTrialOptions actor_options(const train::TrainOptions& of) {
  return {of.epochs,         of.trainer_cpus,      of.trainer_gpus,  of.title,
          of.trainer_memory, of.trainer_resources, of.trainer_labels};
}

template <class Job>
SweepResult<Job> run_plan(const DriverSession& session, const Job& job, const SweepOptions<Job>& options,
                          SweepPlan plan) {
  SweepResult<Job> result{run_sweep(session, std::move(plan)), job, options.train};
  if (result.best < 0) return result;
  result.job = options.space.apply(job, result.config, &result.train).job;
  if (result.train.threads == 0) result.train.threads = result.threads;
  return result;
}

}  // namespace detail

/// Runs the sweep until every trial is over, or a signal interrupts it (see SweepOutcome::signal; a second
/// one ends the program). Throws BadConfig for options that make no sense, those of `train` with what
/// train::run says of them, before a trial starts; and for a metric that the first
/// report does not have, Refused where a sweep of that name exists, runs, or is another one, TaskFailed where
/// every trial failed or the scheduler threw, IoError where the records cannot be written.
template <class Job>
SweepResult<Job> run(const DriverSession& session, const Job& job, const SweepOptions<Job>& options) {
  (void)&train::JobEntry<Job>::registered;
  SweepPlan plan = detail::plan_of(job, options);
  plan.job_type = train::JobEntry<Job>::kId;
  plan.job_name = train::JobRegistry::instance().find(train::JobEntry<Job>::kId).name;
  plan.job = train::JobRegistry::instance().find(train::JobEntry<Job>::kId).describe(wire::encode(job));
  plan.start = [&](const Config& config, const train::TrainOptions& train, const train::Snapshot* from,
                   const train::Workers& workers) {
    const Job trial = options.space.apply(job, config).job;
    return std::make_unique<TrainingTrial>(train::start_in(workers, session, trial, train, from));
  };
  return detail::run_plan(session, job, options, std::move(plan));
}

/// The same with trials that are actors of class T, made from a Job each (actor_trial.hpp). Of `train` count
/// epochs (how often a trial steps), and what its actor holds: trainer_cpus, trainer_gpus, trainer_memory,
/// trainer_resources and trainer_labels. Throws BadConfig for a scheduler that
/// pauses or copies trials (HyperBand, MedianStopping, Pbt) where T has no save() and load().
///     auto best = tune::run_actors<Pendulum>(session, Settings{}, {.space = ..., .metric = "reward"});
template <class T, class Job>
requires TrialActor<T, Job> SweepResult<Job> run_actors(const DriverSession& session, const Job& job,
                                                        const SweepOptions<Job>& options) {
  SweepPlan plan = detail::plan_of(job, options);
  plan.trains = false;
  plan.saves = Saves<T>;
  plan.job_name = std::string(troupe::detail::pretty_part(troupe::detail::type_signature<T>()));
  plan.job = plan.job_name;
  train::describe(plan.job, job);
  plan.start = [&](const Config& config, const train::TrainOptions& train, const train::Snapshot* from,
                   const train::Workers&) {
    return std::make_unique<ActorTrial<T, Job>>(session, options.space.apply(job, config).job,
                                                detail::actor_options(train), from);
  };
  return detail::run_plan(session, job, options, std::move(plan));
}

/// The same with trials that are calls of a function (function_trial.hpp). It ends when it returns, so of
/// `train` counts what trials hold alone, as above; schedulers count its reports. Throws BadConfig for a
/// scheduler that pauses or copies trials where it has no state to go on from.
///     auto best = tune::run_function<&objective>(session, Settings{}, {.space = ..., .metric = "loss"});
template <auto F, class Job>
requires TrialFunction<F, Job> SweepResult<Job> run_function(const DriverSession& session, const Job& job,
                                                             const SweepOptions<Job>& options) {
  using Run = ActorTrial<detail::FunctionActor<F>, detail::FunctionJob<Job>>;
  SweepPlan plan = detail::plan_of(job, options);
  plan.train.epochs = SweepPlan::kItsOwnEnd;
  plan.trains = false;
  plan.saves = Saves<detail::FunctionActor<F>>;
  plan.job_name = std::string(troupe::detail::method_name<F>());
  plan.job = plan.job_name;
  train::describe(plan.job, job);
  plan.start = [&](const Config& config, const train::TrainOptions& train, const train::Snapshot* from,
                   const train::Workers&) {
    return std::make_unique<Run>(
        session, detail::FunctionJob<Job>{options.space.apply(job, config).job, options.metric},
        detail::actor_options(train), from);
  };
  return detail::run_plan(session, job, options, std::move(plan));
}

/// Goes on with the sweep of that name: trials that are over are not run again, and what is decided next is
/// what an undisturbed sweep would have decided.
template <class Job>
SweepResult<Job> resume(const DriverSession& session, const Job& job, SweepOptions<Job> options) {
  options.resume = true;
  return run(session, job, options);
}

}  // namespace troupe::tune
