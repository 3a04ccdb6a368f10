#include "actors/train/api/train.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/report/csv_log.hpp"
#include "actors/report/json_log.hpp"
#include "actors/report/reporter.hpp"
#include "actors/report/tensorboard_log.hpp"
#include "actors/report/terminal.hpp"
#include "actors/train/api/begin_from.hpp"
#include "actors/train/driver/take_up.hpp"
#include "actors/train/driver/train_driver.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/engine/state_parts.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/random.hpp"
#include "runtime/security/secret.hpp"
#include "runtime/wire/resources.hpp"
#include "scheduler/init/embedded_cluster.hpp"

namespace troupe::train {
namespace {

[[noreturn]] void refuse(const std::string& why, const std::string& todo) {
  throw BadConfig("cannot train", why, todo);
}

constexpr int kMostThreads = 1024;

constexpr const char* kNameOther =
    "name what nodes have: .trainer_memory = 512 << 20, .trainer_resources = {{\"tpu\", 1}}, "
    ".trainer_labels = {{\"zone\", \"a\"}}";

/// "auto": a run goes on where its folder has checkpoints, and begins where it has none. Nodes set it for the
/// second attempt of a job on.
constexpr const char* kResumeVariable = "TROUPE_RESUME";

/// Heartbeats come every second: less than a few of them tells nothing.
constexpr Duration kShortest = std::chrono::seconds(3);

void check(const Deadlines& d) {
  for (const auto& [name, value] : {std::pair{"hang", d.hang}, std::pair{"spawn", d.spawn},
                                    std::pair{"gather", d.gather}, std::pair{"stop", d.stop}}) {
    if (value >= kShortest) continue;
    refuse(std::string("deadlines.") + name + " = " + seconds_of(value),
           "use at least " + seconds_of(kShortest));
  }
  if (d.collective != Duration{0} && d.collective < d.hang) {
    refuse("deadlines.collective = " + seconds_of(d.collective) +
               " is shorter than deadlines.hang = " + seconds_of(d.hang) +
               ": those who wait for a slow rank would give up before it is known to hang",
           "use 0 (30 s more than hang), or at least hang");
  }
}

Duration collective_timeout(const Deadlines& d) {
  return d.collective != Duration{0} ? d.collective : d.hang + std::chrono::seconds(30);
}

void check(const TrainOptions& o) {
  if (o.logical_ranks < 1 || o.logical_ranks > 4096)
    refuse("logical_ranks = " + std::to_string(o.logical_ranks), "use 1 to 4096");
  if (o.trainers < 1) refuse("trainers = " + std::to_string(o.trainers), "use at least 1");
  if (o.trainers > o.logical_ranks) {
    refuse(std::to_string(o.trainers) + " trainers for " + std::to_string(o.logical_ranks) +
               " logical ranks: some would have nothing to do",
           "use at most as many trainers as logical ranks");
  }
  if (o.min_trainers < 1 || o.min_trainers > o.trainers) {
    refuse("min_trainers = " + std::to_string(o.min_trainers),
           "use 1 to trainers = " + std::to_string(o.trainers));
  }
  if (o.threads < 0 || o.threads > kMostThreads)
    refuse("threads = " + std::to_string(o.threads),
           "use 1 to " + std::to_string(kMostThreads) + ", or 0 for a trainer's share of the CPUs");
  if (!(o.trainer_cpus >= 0 && o.trainer_cpus <= 1e6)) {  // a NaN is refused, too
    refuse("trainer_cpus = " + std::to_string(o.trainer_cpus), "use 0 (none are reserved) to 1,000,000");
  }
  if (!(o.trainer_gpus >= 0 && o.trainer_gpus <= 1)) {  // a NaN is refused, too
    refuse("trainer_gpus = " + std::to_string(o.trainer_gpus) + ": a trainer computes on one GPU",
           "use 0, 1 or a part of one, and more trainers for more GPUs");
  }
  if (const auto wrong = cluster::wrong_about(
          cluster::other_resources(o.trainer_memory, o.trainer_resources, o.trainer_labels));
      !wrong.empty())
    refuse("trainer_memory, trainer_resources, trainer_labels: " + wrong, kNameOther);
  check(o.deadlines);
  if (o.loaders < 1 || o.loaders > 256) refuse("loaders = " + std::to_string(o.loaders), "use 1 to 256");
  if (o.epochs < 1) refuse("epochs = " + std::to_string(o.epochs), "use at least 1");
  for (const auto& [name, steps] :
       {std::pair("max_steps", o.max_steps), std::pair("evaluate_every", o.evaluate_every),
        std::pair("evaluation_samples", o.evaluation_samples)}) {
    if (steps < 0) refuse(std::string(name) + " = " + std::to_string(steps), "use 0 (no limit) or a number");
  }
  if (o.evaluate_every > 0 && !o.evaluate)
    refuse("evaluate_every of a run without an evaluation", "leave evaluate = false out");
  if (o.micro_batch < 1) refuse("a batch of " + std::to_string(o.micro_batch), "use at least 1");
  if (o.checkpoint_every < 0)
    refuse("checkpoint_every = " + std::to_string(o.checkpoint_every),
           "use 0 (each epoch) or a number of steps");
  if (o.keep_checkpoints < 1)
    refuse("keep_checkpoints = " + std::to_string(o.keep_checkpoints), "keep at least 1");
  if (o.resume && o.checkpoint_folder.empty())
    refuse("resume without a checkpoint folder", "name the folder");
  if (!o.stop_early.metric.empty() && o.stop_early.patience < 1)
    refuse("stop_early.patience = " + std::to_string(o.stop_early.patience), "use at least 1 epoch");
  if (has_units(o.shard)) {
    const std::string shard = o.shard == Shard::kGradients ? "Shard::kGradients" : "Shard::kParameters";
    if (o.find_unused_parameters)
      refuse(shard + " with find_unused_parameters: all leaves use the same units",
             "leave one of them out, or use Shard::kOptimizer");
    if (o.shard_min_num_params < 0)
      refuse("shard_min_num_params = " + std::to_string(o.shard_min_num_params),
             "use 0 (named units alone) or a number of elements");
  }
  if (const char* of_units = !o.shard_units.empty() ? "shard_units"
                             : o.shard_prefetch     ? "shard_prefetch"
                                                    : nullptr;
      of_units != nullptr && !has_units(o.shard))
    refuse(std::string(of_units) + " with " +
               (o.shard == Shard::kOptimizer ? "Shard::kOptimizer, which knows no units" : "no shard"),
           "leave it out, or use Shard::kGradients or kParameters");
  if (!o.keep_best.empty() && o.checkpoint_folder.empty())
    refuse("keep_best = " + o.keep_best + " without a checkpoint folder", "name the folder");
}

/// What can be known of a metric's name before the job has run an epoch.
void check_metrics(const JobType& job, const TrainOptions& o) {
  for (const auto& metric : {o.stop_early.metric, o.keep_best}) {
    if (metric.empty()) continue;
    const bool validation = metric.starts_with("validation/");
    if ((metric.starts_with("test/") || validation) && !o.evaluate)
      refuse("the metric " + metric + " of a run without an evaluation", "leave evaluate = false out");
    if (validation && !job.has_validation)
      refuse("the metric " + metric + " of " + job.name + ", which has no validation set",
             "say `static constexpr bool kHasValidation = true;` in the job, and return samples for "
             "Split::kValidation in its dataset()");
    const bool known = metric == "train/loss" || metric == "test/loss" || metric == "test/accuracy" ||
                       metric == "validation/loss" || metric == "validation/accuracy";
    const bool counted =
        job.counts_figures && (metric.starts_with("train/") || metric.starts_with("test/") || validation);
    if (known || counted) continue;
    refuse("there is no metric '" + metric + "': the job has train/loss, test/loss, test/accuracy" +
               (job.has_validation ? ", validation/loss, validation/accuracy" : "") +
               (job.counts_figures ? ", and what it counts as train/NAME and test/NAME" : ""),
           "name one of them in stop_early or keep_best, or count it: loss() and evaluate() may take a Leaf");
  }
}

/// A head and nodes that others use are not this job's to kill.
void check_chaos(const std::vector<ChaosStep>& chaos, bool embedded) {
  for (const ChaosStep& step : chaos) {
    if (embedded || (step.what != ChaosStep::What::kKillNode && step.what != ChaosStep::What::kKillHead))
      continue;
    refuse("kill-node and kill-head are for a cluster of the program's own, and it has joined another one",
           "leave them out, or leave the address out");
  }
}

/// Of trainers that have computed what the run goes on with; none: it begins, or its checkpoints are no good.
std::optional<int> threads_before(const RunPlan& plan) {
  if (plan.from) return threads_in(plan.from->place.job.numerics);
  if (!plan.options.resume) return std::nullopt;
  checkpoint::PosixFileSystem files;
  const auto listed = checkpoint::CheckpointStore(files, {plan.options.checkpoint_folder}).list();
  if (!listed) return std::nullopt;
  const auto newest =
      std::find_if(listed->rbegin(), listed->rend(), [](const auto& one) { return one.manifest.ok(); });
  return newest == listed->rend() ? std::nullopt : threads_in(newest->manifest->job.numerics);
}

/// "Digits: 4 logical ranks x batch 25, 2 trainers, 1 loader, 1 node, seed 7"
std::string title_of(const DriverSession& session, std::uint64_t job_type, const TrainOptions& o) {
  const auto nodes = session.nodes();  // the one that only carries this program is none to its user
  const std::string what = o.title.empty() ? JobRegistry::instance().find(job_type).name : o.title;
  return what + ": " + count_of(o.logical_ranks, "logical rank") + " x batch " +
         std::to_string(o.micro_batch) + ", " + count_of(o.trainers, "trainer") +
         (o.threads == 1 ? "" : " of " + count_of(o.threads, "thread")) + ", " +
         count_of(o.loaders, "loader") + ", " +
         count_of(std::count_if(nodes.begin(), nodes.end(), [](const auto& node) { return !node.gateway; }),
                  "node") +
         ", seed " + std::to_string(o.seed);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Everything that the options name, opened: a file that cannot be written is told before anything starts.
Run::Reporting reporting_of(const TrainOptions& options) {
  static const MonotonicClock clock;
  static report::FdOutput output(STDOUT_FILENO);
  Run::Reporting reporting;
  reporting.on_event = options.on_event;
  auto& sinks = reporting.sinks;
  if (options.show_progress) sinks.push_back(std::make_unique<report::Reporter>(output, clock));
  if (!options.events_json.empty()) {
    sinks.push_back(
        std::make_unique<report::JsonLog>(report::LogFile::open(options.events_json).value(), clock));
  }
  if (!options.metrics_csv.empty()) {
    sinks.push_back(std::make_unique<report::CsvLog>(
        report::LogFile::open(options.metrics_csv, options.resume).value(), clock));
  }
  if (!options.tensorboard_folder.empty()) {
    sinks.push_back(std::make_unique<report::TensorBoardLog>(
        report::TensorBoardLog::open(options.tensorboard_folder, seconds_since_1970).value()));
  }
  return reporting;
}

/// "run-12ab (pid 77 on host a)"
std::string this_run(const RunSettings& settings) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return settings.run + " (pid " + std::to_string(::getpid()) + " on host " + host.data() + ")";
}

/// Whether this program was started again, and the run that it had begun has left checkpoints.
bool goes_on(const TrainOptions& options) {
  if (options.resume || options.checkpoint_folder.empty() || !is_started_again()) return false;
  checkpoint::PosixFileSystem files;
  const auto listed = checkpoint::CheckpointStore(files, {options.checkpoint_folder}).list();
  return listed && !listed->empty();
}

/// Makes sure that checkpoints can be written, and finds those to take up. Never none where one was asked
/// for. Adds warnings to `told`, and takes the folder's lock if the run does not have it.
void find_checkpoints(const TrainOptions& options, TakeUp how, RunOptions& run,
                      std::optional<checkpoint::FolderLock>& folder, std::vector<report::Event>& told) {
  if (options.checkpoint_folder.empty()) return;
  checkpoint::PosixFileSystem files;
  checkpoint::CheckpointStore store(files, {options.checkpoint_folder});
  store.prepare().value();
  if (!folder)
    folder = checkpoint::FolderLock::take(options.checkpoint_folder, this_run(run.settings)).value();
  if (folder->is_held()) run.settings.folder_lock = folder->who();
  const auto listed = store.list().value();
  if (listed.empty() && how == TakeUp::kOwn && !options.resume) return;
  if (!options.resume && how == TakeUp::kAsAsked) {
    if (listed.empty()) return;
    refuse("'" + options.checkpoint_folder + "' holds checkpoints of an earlier run, the newest is " +
               listed.back().manifest_path,
           "resume from them, or name another folder: a new run would let them go");
  }
  TakenUp taken = take_up(listed, job_identity(run.settings));
  if (taken.checkpoints.empty()) {
    refuse(taken.bad.empty() ? "there is no checkpoint in '" + options.checkpoint_folder + "' to resume from"
                             : "no checkpoint in '" + options.checkpoint_folder + "' is usable: " + taken.bad,
           "name the folder of an earlier run, or start without resuming");
  }
  if (!taken.bad.empty()) told.push_back(report::Warning{"passed over: " + taken.bad});
  run.resume = std::move(taken.checkpoints);
  run.resumed_job = std::move(taken.job);
}

/// What the state came to goes on with it, for schedules that look at that. When a job stops, and what its
/// best checkpoint is, another job finds for itself.
std::string history_for_another(const std::string& text) {
  auto history = decode_history(text);
  if (!history) return {};
  history->patience = history->kept = {};
  history->epoch_figures.clear();
  return encode_history(*history);
}

/// The snapshot takes its place among the checkpoints: what is newer was written by this run, later.
void add_snapshot(const RunPlan& plan, RunOptions& run) {
  if (!plan.from) return;
  const JobPlace& place = plan.from->place;
  const StateHash state_hash =
      plan.from->state == nullptr ? plan.from->file.hash : hash_of_bytes(*plan.from->state);
  const auto insert = [&](const std::string& history) {
    const auto later = std::find_if(run.resume.begin(), run.resume.end(),
                                    [&](const CheckpointInfo& c) { return c.step > place.step; });
    run.resume.insert(later, {kSnapshotPath, place.step, state_hash, history, true});
  };
  if (!plan.from_path.empty()) run.settings.new_options = true;  // rates of this run, which is known there
  if (place.job.job_sha256.empty()) return insert({});           // weights alone: no job's steps or data
  if (plan.from->job_type != plan.job_type)
    refuse("the snapshot is of another type of job", "clone a run with the same struct");
  checkpoint::JobIdentity of = place.job;
  bool another = !plan.from_path.empty();
  if (plan.clone) {
    const auto ours = job_identity(run.settings);
    another = another || of.job_sha256 != ours.job_sha256 || of.seed != ours.seed;
    run.settings.new_options = run.settings.new_options || of.job_sha256 != ours.job_sha256;
    of.job = ours.job;
    of.job_sha256 = ours.job_sha256;
    of.seed = ours.seed;
  }
  if (const auto other = difference(of, job_identity(run.settings)))
    refuse("the snapshot does not fit: " + *other,
           plan.clone ? "clone with as many logical ranks and as large a batch"
                      : "resume the same job, or clone");
  if (!run.resumed_job) run.resumed_job = of;
  insert(another ? history_for_another(place.history) : place.history);
}

}  // namespace

bool is_started_again() {
  const char* value = std::getenv(kResumeVariable);
  if (value == nullptr || *value == 0) return false;
  if (std::string_view(value) != "auto")
    throw BadConfig(
        "cannot go on", std::string(kResumeVariable) + "=" + value + " is not auto",
        "unset it, or set it to auto: go on with what the program began, where there is something");
  return true;
}

void check_options(const DriverSession& session, std::uint64_t job_type, const TrainOptions& options) {
  check(options);
  check_metrics(JobRegistry::instance().find(job_type), options);
  check_chaos(options.chaos, session.embedded() != nullptr);
}

RunOptions run_options(const DriverSession& session, const RunPlan& plan, TakeUp take_up,
                       std::optional<checkpoint::FolderLock>& folder, std::vector<report::Event>& told) {
  const TrainOptions& options = plan.options;
  const JobType& job = JobRegistry::instance().find(plan.job_type);
  check_options(session, plan.job_type, options);
  RunOptions run;
  run.settings.job_type = plan.job_type;
  run.settings.job = plan.job;
  run.settings.job_text = job.describe(run.settings.job);
  run.settings.run = "run-" + to_hex(SystemRandom().next());
  const auto key = JobKey::generate();
  run.settings.key.assign(key.reveal().begin(), key.reveal().end());
  run.settings.logical_ranks = options.logical_ranks;
  run.settings.micro_batch = options.micro_batch;
  run.settings.seed = options.seed;
  run.settings.epochs = options.epochs;
  run.settings.max_steps = options.max_steps;
  run.settings.evaluates = plan.evaluates;
  run.settings.evaluation_samples = options.evaluation_samples;
  run.settings.find_unused_parameters = options.find_unused_parameters;
  run.settings.exact = options.exact;
  run.settings.rehearse = options.rehearse;
  run.settings.threads = options.threads;
  run.settings.trainer_gpus = options.trainer_gpus;
  run.settings.sharding.what = options.shard;
  run.settings.sharding.min_num_params = options.shard_min_num_params;
  run.settings.sharding.units = options.shard_units;
  run.settings.sharding.prefetch = options.shard_prefetch;
  run.settings.not_finite = options.not_finite;
  run.settings.encrypt_data_plane = options.encrypt_data_plane;
  run.settings.group_timeout_s = to_seconds(collective_timeout(options.deadlines));
  run.settings.checkpoint_folder = options.checkpoint_folder;
  run.keep_checkpoints = options.keep_checkpoints;
  find_checkpoints(options, take_up, run, folder, told);
  add_snapshot(plan, run);
  run.trainers = options.trainers;
  run.min_trainers = options.min_trainers;
  run.deadlines = options.deadlines;
  run.loaders = options.loaders;
  run.evaluations = {options.evaluate, options.evaluate_every, job.looks_at_metrics};
  run.hold = options.hold;
  run.checkpoint_every = options.checkpoint_every;
  run.trainer_room = {options.trainer_cpus, options.trainer_memory, options.trainer_resources,
                      options.trainer_labels};
  run.trainer_strategy = options.trainer_strategy;
  run.stop_early = options.stop_early;
  run.keep_best = options.keep_best;
  run.keep_best_mode = options.keep_best_mode;
  run.chaos = options.chaos;
  if (const auto* cluster = session.embedded()) {
    for (const auto pid : cluster->node_pids()) run.embedded.node_pids.push_back(pid);
    run.embedded.head_pid = cluster->head_pid();
  }
  return run;
}

double cpus_of(const std::vector<cluster::NodeInfo>& nodes) {
  double cpus = 0;
  for (const auto& node : nodes) {
    if (!node.gateway) cpus += static_cast<double>(node.cpu_e4) / cluster::kCpu;
  }
  return cpus;
}

int threads_of(const TrainOptions& o, double cpus) {
  if (o.threads > 0) return o.threads;
  if (o.trainer_gpus > 0) return 1;
  const double share = o.trainer_cpus >= 1 ? o.trainer_cpus : cpus / o.trainers;
  return std::clamp(static_cast<int>(share), 1, kMostThreads);
}

Run start_training(const DriverSession& session, RunPlan plan) {
  if (!plan.evaluates && !plan.from && goes_on(plan.options)) {
    plan.options.resume = true;
    plan.options.from.clear();  // the run has begun with that already
    plan.options.from_state = plan.options.from_partial = false;
  }
  check_options(session, plan.job_type, plan.options);
  if (!plan.evaluates) begin_from(plan);
  // For good: other nodes have other CPUs.
  if (plan.options.threads == 0)
    plan.options.threads = threads_before(plan).value_or(threads_of(plan.options, cpus_of(session.nodes())));
  Run::Reporting reporting = reporting_of(plan.options);
  const report::JobStarted started{title_of(session, plan.job_type, plan.options), plan.options.epochs};
  return {session, std::move(plan), std::move(reporting), started};
}

}  // namespace troupe::train
