#include "actors/tune/sweep_plan.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "runtime/core/count.hpp"
#include "runtime/core/escape.hpp"
#include "runtime/wire/resources.hpp"

namespace troupe::tune {
namespace {

constexpr const char* kTrialAgain = "TROUPE_TRIAL";

bool can_be_folder(const std::string& name) {
  return !name.starts_with('.') && name.size() <= 200 && std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < ' ' || c == 0x7f;
  });
}

cluster::OtherResources other_resources_of(const train::TrainOptions& trial) {
  return cluster::other_resources(trial.trainer_memory, trial.trainer_resources, trial.trainer_labels);
}

Mode mode_of(const SweepPlan& plan) {
  return plan.mode.value_or(plan.metric.ends_with("loss") ? Mode::kMin : Mode::kMax);
}

/// What a trial cannot change of how it trains: where its state comes from, goes to, and what it is compared
/// by.
void check_swept_options(const SweepPlan& plan) {
  for (const std::string& name : plan.swept_options) {
    if (!plan.trains)
      refuse("the space names train." + name + ", and the trials train no net", "name fields of the struct");
    for (const char* fixed : {"max_steps", "checkpoint_folder", "resume", "from", "hold", "keep_best"}) {
      if (name == fixed) refuse("the space names train." + name + ", which the sweep sets", "leave it out");
    }
    const auto* pbt = std::get_if<Pbt>(&plan.scheduler);
    if (pbt == nullptr || plan.own_scheduler) continue;
    const auto& mutations = pbt->mutations;
    const bool changes = mutations.empty() ? pbt->custom_explore == nullptr
                                           : std::any_of(mutations.begin(), mutations.end(),
                                                         [&](const Mutation& m) { return m.name == name; });
    const bool is_fixed = name == "logical_ranks" || name == "micro_batch" || name == "seed";
    if (changes && is_fixed)
      refuse("PBT would change train." + name + " of a trial that goes on from another's state",
             "name the fields that it may change: Pbt{.mutations = {&Job::lr}}");
  }
}

/// What else the bits and figures of trials depend on, where it is not as it is by default.
std::string computing_of(const train::TrainOptions& o) {
  std::string text;
  const auto add = [&](const std::string& one) { text += (text.empty() ? "" : ", ") + one; };
  if (o.threads != 1) add(o.threads == 0 ? "threads of its share" : count_of(o.threads, "thread"));
  if (o.trainer_gpus > 0) add("on GPUs");
  if (!o.exact) add("not exact");
  if (o.not_finite == train::NotFinite::kSkip) add("steps without a finite loss left out");
  if (o.not_finite == train::NotFinite::kStop) add("ends at a loss that is not finite");
  if (!o.evaluate) add("no evaluation");
  if (o.evaluate_every > 0) add("evaluated every " + count_of(o.evaluate_every, "step"));
  if (o.evaluation_samples > 0) add(count_of(o.evaluation_samples, "sample") + " evaluated");
  if (!o.stop_early.metric.empty())
    add("stops early by " + o.stop_early.metric + " after " + std::to_string(o.stop_early.patience) +
        (o.stop_early.min_delta == 0 ? "" : " within " + to_text(Value(o.stop_early.min_delta))));
  if (!o.from.empty()) add("begins with " + o.from);
  return text;
}

SweepIdentity identity_of(const SweepPlan& plan) {
  const auto& train = plan.train;
  SweepIdentity identity{
      {"job", plan.job},
      {"space", plan.space},
      {"scheduler", plan.own_scheduler ? "the program's own" : to_text(plan.scheduler)},
      {"search", plan.own_search ? "the program's own" : to_text(plan.search)},
      {"metric", plan.metric + (mode_of(plan) == Mode::kMax ? " (more is better)" : " (less is better)")},
      {"trials", std::to_string(plan.trials * plan.repeats)},
      {"epochs", train.epochs == SweepPlan::kItsOwnEnd ? "its own" : std::to_string(train.epochs)},
      {"seed", std::to_string(plan.seed)},
      {"training", std::to_string(train.logical_ranks) + " logical ranks x batch " +
                       std::to_string(train.micro_batch) + ", seed " + std::to_string(train.seed)}};
  if (const std::string how = computing_of(train); plan.trains && !how.empty())
    identity.emplace_back("computing", how);
  std::string first;
  for (const Config& config : plan.first) first += (first.empty() ? "" : "; ") + to_text(config);
  if (!first.empty()) identity.emplace_back("first", first);
  if (plan.repeats > 1) identity.emplace_back("repeats", std::to_string(plan.repeats));
  if (plan.target) identity.emplace_back("target", to_text(Value(*plan.target)));
  return identity;
}

SweepIdentity first_record_of(const SweepPlan& plan, const FirstCluster& first) {
  std::error_code none;
  std::string again = "cd " + shell_word(std::filesystem::current_path(none).string()) + " && " +
                      kTrialAgain + "=" + shell_word(plan.name + ":TRIAL");
  std::ifstream file("/proc/self/cmdline");
  for (std::string word; std::getline(file, word, '\0');) again += " " + shell_word(word);
  SweepIdentity identity = identity_of(plan);
  identity.emplace_back("again", again);
  identity.emplace_back(kCpus, to_text(Value(first.cpus)));
  identity.emplace_back(kPlaces, std::to_string(first.places));
  return identity;
}

}  // namespace

void refuse(const std::string& why, const std::string& todo) {
  throw BadConfig("cannot tune", why, todo);
}

void check(const DriverSession& session, const SweepPlan& plan) {
  if (plan.parameters.empty() && plan.space.empty())
    refuse("the space is empty",
           "name the fields to sweep: .space = {{&Job::lr, tune::log_uniform(1e-4, 1)}}");
  if (plan.repeats < 1 || plan.repeats > 1000)
    refuse("repeats = " + std::to_string(plan.repeats), "use 1 to 1000");
  if (plan.trials < 1 || plan.trials > 1'000'000 / plan.repeats)
    refuse("trials = " + std::to_string(plan.trials), "use 1 to 1,000,000");
  if (plan.metric.empty()) refuse("no metric is named", "name one, such as \"validation/accuracy\"");
  if (plan.train.max_steps > 0) refuse("train.max_steps: trials are compared after epochs", "use epochs");
  if (!(plan.train.trainer_cpus >= 0 && plan.train.trainer_cpus <= 1e6) ||
      !(plan.train.trainer_gpus >= 0 && plan.train.trainer_gpus <= 1e6))
    refuse("train.trainer_cpus = " + std::to_string(plan.train.trainer_cpus) +
               ", train.trainer_gpus = " + std::to_string(plan.train.trainer_gpus),
           "use 0 to 1,000,000");
  if (const auto wrong = cluster::wrong_about(other_resources_of(plan.train)); !wrong.empty())
    refuse("train.trainer_memory, trainer_resources, trainer_labels: " + wrong, "name what nodes have");
  if (plan.retries < 0) refuse("retries = " + std::to_string(plan.retries), "use 0 or more");
  if (!(plan.max_seconds >= 0))
    refuse("max_seconds = " + to_text(Value(plan.max_seconds)), "use seconds above 0, or 0 for no limit");
  if (plan.repeats > 1 && (plan.own_scheduler || !std::holds_alternative<Fifo>(plan.scheduler)))
    refuse("repeats = " + std::to_string(plan.repeats) + " with a scheduler that judges single trials",
           "use Fifo, or repeat the best config afterwards");
  const AnyScheduler& scheduler = plan.scheduler;
  if (!plan.saves && !plan.own_scheduler &&
      (std::holds_alternative<HyperBand>(scheduler) || std::holds_alternative<MedianStopping>(scheduler) ||
       std::holds_alternative<Pbt>(scheduler)))
    refuse(
        "the scheduler pauses or copies trials, and their actor has no save() and load() (a function: no "
        "state)",
        "give it these, or take Fifo, Asha or one of Optuna's pruners");
  if (plan.target && std::isnan(*plan.target)) refuse("target = nan", "use a number, or leave it out");
  if (plan.first.size() > static_cast<std::size_t>(plan.trials))
    refuse("try_first has " + std::to_string(plan.first.size()) + " configs for " +
               count_of(plan.trials, "trial"),
           "use as many trials or more");
  if (plan.max_concurrent < 0)
    refuse("max_concurrent = " + std::to_string(plan.max_concurrent), "use 0 (what the CPUs allow) or more");
  if (!plan.train.checkpoint_folder.empty())
    refuse("train.checkpoint_folder = " + plan.train.checkpoint_folder + " would be shared by all trials",
           "leave it out: a sweep keeps the best trial's weights, and is resumed from its records");
  if (!plan.train.keep_best.empty())
    refuse("train.keep_best = " + plan.train.keep_best + " is of checkpoints, which trials have none of",
           "leave it out: a sweep keeps the weights of its best trial");
  if (plan.train.resume)
    refuse("train.resume takes up checkpoints, which trials have none of",
           "leave it out: `.resume = true` of the sweep goes on with it");
  if (!can_be_folder(plan.name))
    refuse("the name '" + escape_name(plan.name) + "' cannot be a folder's",
           "use a plain name of at most 200 bytes, without a slash and without control characters");
  if (plan.resume && plan.name.empty()) refuse("resume without a name", "name the sweep to go on with");
  check_swept_options(plan);
  if (!(plan.silent_seconds >= 0))
    refuse("silent_seconds = " + to_text(Value(plan.silent_seconds)),
           "use seconds above 0, or 0 for no limit");
  if (plan.trains) return train::check_options(session, plan.job_type, plan.train);
  if (plan.train.epochs < 1) refuse("train.epochs = " + std::to_string(plan.train.epochs), "use 1 or more");
}

std::string name_now(const std::string& job) {
  char text[64];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::strftime(text, sizeof text, "-%Y%m%d-%H%M%S", &utc);
  std::string name = job.substr(job.find_last_of(':') == std::string::npos ? 0 : job.find_last_of(':') + 1);
  for (char& c : name)
    c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '-';
  return name + text;
}

FirstCluster cluster_of(const SweepPlan& plan, const std::vector<cluster::NodeInfo>& nodes) {
  return {train::cpus_of(nodes),
          plan.max_concurrent > 0 ? plan.max_concurrent : places_for(nodes, plan.train)};
}

RecordFile records_of(const SweepPlan& plan, const std::string& folder, FirstCluster& first) {
  (void)machine_of(plan, first.places);  // what that refuses has left no records
  const SweepIdentity identity = first_record_of(plan, first);
  RecordFile records =
      plan.resume ? RecordFile::open(folder, identity).value() : RecordFile::create(folder, identity).value();
  if (const std::string cpus = records.recorded(kCpus); !cpus.empty())
    first.cpus = std::strtod(cpus.c_str(), nullptr);
  const std::string places = records.recorded(kPlaces);
  if (places.empty()) return records;
  int was = 0;
  std::from_chars(places.data(), places.data() + places.size(), was);
  if (was < 1) refuse("'" + records.path() + "' says max_concurrent = " + escape_name(places), "restore it");
  if (plan.max_concurrent > 0 && was != plan.max_concurrent)
    refuse("the sweep began with max_concurrent = " + places + ", this one's is " +
               std::to_string(plan.max_concurrent),
           "leave it out: a resume has the number that the sweep began with");
  first.places = was;
  return records;
}

std::unique_ptr<SweepMachine> machine_of(const SweepPlan& plan, int places) {
  const SchedulerContext context{mode_of(plan), plan.seed, plan.parameters};
  return std::make_unique<SweepMachine>(
      SweepConfig{.trials = plan.trials * plan.repeats,
                  .max_concurrent = places,
                  .epochs = plan.train.epochs,
                  .retries = plan.retries,
                  .metric = plan.metric,
                  .mode = mode_of(plan),
                  .ask_late = plan.own_search || !std::holds_alternative<RandomSearch>(plan.search),
                  .first = plan.first,
                  .target = plan.target,
                  .repeats = plan.repeats},
      plan.own_scheduler ? plan.own_scheduler(context) : make_scheduler(plan.scheduler, context),
      plan.own_search ? plan.own_search(plan.parameters, mode_of(plan), plan.seed)
                      : make_search(plan.search, plan.parameters, mode_of(plan), plan.seed),
      plan.sample, plan.settle);
}

std::optional<int> trial_again(SweepPlan& plan) {
  const char* given = std::getenv(kTrialAgain);
  if (given == nullptr || *given == '\0') return std::nullopt;
  const std::string text = given;
  const auto colon = std::min(text.rfind(':'), text.size());
  const char* end = text.data() + text.size();
  int number = -1;
  const auto read = std::from_chars(std::min(text.data() + colon + 1, end), end, number);
  if (read.ec != std::errc() || read.ptr != end || number < 0)
    refuse(std::string(kTrialAgain) + " is '" + escape_name(text) + "'",
           "give it NAME:NUMBER, as troupe tune best prints it");
  const std::string name = text.substr(0, colon);
  const auto is_there = [&](const std::string& sweep) {
    std::error_code none;
    return std::filesystem::exists(plan.folder + "/" + sweep + "/results.jsonl", none);
  };
  const std::string asks = std::string(kTrialAgain) + " names the sweep '" + escape_name(name) + "'";
  const std::string folder = "not in '" + escape_name(plan.folder) + "'";
  const bool is_other = !plan.name.empty() && plan.name != name;
  if (!is_there(name))
    refuse(asks + ", which is " + folder +
               (is_other ? ", and this one is '" + escape_name(plan.name) + "'" : std::string()),
           "unset it, or start the program as troupe tune best prints it");
  plan.resume = true;
  if (!is_other) {
    plan.name = name;
    return number;
  }
  // A program may have several sweeps: this one is over, and says again what it came to.
  if (!is_there(plan.name))
    refuse(asks + ", and this one is '" + escape_name(plan.name) + "', which is " + folder,
           "give it a name that is the same in each run, or unset " + std::string(kTrialAgain));
  return std::nullopt;
}

void go_on_if_started_again(SweepPlan& plan) {
  if (plan.resume || !can_be_folder(plan.name) || plan.name.empty() || !train::is_started_again()) return;
  std::error_code none;
  const auto bytes = std::filesystem::file_size(plan.folder + "/" + plan.name + "/results.jsonl", none);
  plan.resume = !none && bytes > 0;
}

int places_for(const std::vector<cluster::NodeInfo>& nodes, const train::TrainOptions& trial) {
  const auto asked = other_resources_of(trial);
  cluster::ResourceAmounts there;
  double cpus = 0, gpus = 0;
  for (const auto& node : nodes) {
    if (!cluster::has_labels(node.other.labels, asked.labels)) continue;
    cluster::add_amounts(there, node.other.amounts, 1);
    cpus += static_cast<double>(node.cpu_e4) / 10'000;
    gpus += static_cast<double>(node.gpus.size());
  }
  auto threads = static_cast<double>(trial.threads);
  // 0: of the CPUs that a trainer holds, or of its share of all, and one on a GPU.
  if (trial.threads == 0 && trial.trainer_cpus < 1)
    threads = trial.trainer_gpus > 0 ? 1 : std::max(cpus / trial.trainers, 1.0);
  double places = cpus / (trial.trainers * std::max(trial.trainer_cpus, threads));
  if (trial.trainer_gpus > 0) places = std::min(places, gpus / (trial.trainers * trial.trainer_gpus));
  for (const auto& [name, amount] : asked.amounts)
    places = std::min(places, static_cast<double>(cluster::amount_of(there, name)) /
                                  (trial.trainers * static_cast<double>(amount)));
  return static_cast<int>(std::clamp(std::floor(places + 1e-9), 1.0, 1000.0));
}

}  // namespace troupe::tune
