#include "actors/tune/sweep.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <deque>
#include <map>
#include <thread>

#include "actors/report/format.hpp"
#include "actors/report/log_file.hpp"
#include "actors/train/api/interrupts.hpp"
#include "actors/tune/states.hpp"
#include "actors/tune/table.hpp"
#include "runtime/core/escape.hpp"

namespace troupe::tune {
namespace {

constexpr Duration kLookForEvents = std::chrono::milliseconds(5);
/// What was decided survives this program at once, and the machine after so long.
constexpr Duration kSync = std::chrono::milliseconds(200);

[[noreturn]] void refuse(const std::string& why, const std::string& todo) {
  throw BadConfig("cannot tune", why, todo);
}

bool can_be_folder(const std::string& name) {
  return !name.starts_with('.') && name.size() <= 200 && std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < ' ' || c == 0x7f;
  });
}

void check(const DriverSession& session, const SweepPlan& plan) {
  if (plan.parameters.empty() && plan.space.empty())
    refuse("the space is empty",
           "name the fields to sweep: .space = {{&Job::lr, tune::log_uniform(1e-4, 1)}}");
  if (plan.trials < 1 || plan.trials > 1'000'000)
    refuse("trials = " + std::to_string(plan.trials), "use 1 to 1,000,000");
  if (plan.metric.empty()) refuse("no metric is named", "name one, such as \"validation/accuracy\"");
  if (plan.train.max_steps > 0) refuse("train.max_steps: trials are compared after epochs", "use epochs");
  if (plan.retries < 0) refuse("retries = " + std::to_string(plan.retries), "use 0 or more");
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
  train::check_options(session, plan.job_type, plan.train);
}

Mode mode_of(const SweepPlan& plan) {
  return plan.mode.value_or(plan.metric.ends_with("loss") ? Mode::kMin : Mode::kMax);
}

/// "digits-20261125-041530"
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

SweepIdentity identity_of(const SweepPlan& plan) {
  const auto& train = plan.train;
  return {{"job", plan.job},
          {"space", plan.space},
          {"scheduler", plan.own_scheduler ? "the program's own" : to_text(plan.scheduler)},
          {"search", to_text(plan.search)},
          {"metric", plan.metric + (mode_of(plan) == Mode::kMax ? " (more is better)" : " (less is better)")},
          {"trials", std::to_string(plan.trials)},
          {"epochs", std::to_string(train.epochs)},
          {"seed", std::to_string(plan.seed)},
          {"training", std::to_string(train.logical_ranks) + " logical ranks x batch " +
                           std::to_string(train.micro_batch) + ", seed " + std::to_string(train.seed)}};
}

std::unique_ptr<SweepMachine> machine_of(const SweepPlan& plan, int places) {
  const SchedulerContext context{mode_of(plan), plan.seed, plan.parameters};
  return std::make_unique<SweepMachine>(
      SweepConfig{.trials = plan.trials,
                  .max_concurrent = places,
                  .epochs = plan.train.epochs,
                  .retries = plan.retries,
                  .metric = plan.metric,
                  .mode = mode_of(plan),
                  .ask_late = !std::holds_alternative<RandomSearch>(plan.search)},
      plan.own_scheduler ? plan.own_scheduler(context) : make_scheduler(plan.scheduler, context),
      make_search(plan.search, plan.parameters, mode_of(plan), plan.seed), plan.sample);
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Of "what: why" the whole, in one line.
std::string in_a_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return report::without_controls(std::move(text));
}

}  // namespace

int places_for(const std::vector<cluster::NodeInfo>& nodes, const train::TrainOptions& trial) {
  double cpus = 0, gpus = 0;
  for (const auto& node : nodes) {
    cpus += static_cast<double>(node.cpu_e4) / 10'000;
    gpus += static_cast<double>(node.gpus.size());
  }
  double places = cpus / (trial.trainers * std::max(trial.trainer_cpus, static_cast<double>(trial.threads)));
  if (trial.trainer_gpus > 0) places = std::min(places, gpus / (trial.trainers * trial.trainer_gpus));
  return static_cast<int>(std::clamp(std::floor(places + 1e-9), 1.0, 1000.0));
}

/// Carries out what the machine says.
class Sweep {
 public:
  Sweep(const DriverSession& session, SweepPlan plan)
      : plan_(std::move(plan)),
        folder_(plan_.folder + "/" + plan_.name),
        places_(plan_.max_concurrent > 0 ? plan_.max_concurrent : places_for(session.nodes(), plan_.train)),
        machine_(machine_of(plan_, places_)),
        records_(plan_.resume ? RecordFile::open(folder_, identity_of(plan_)).value()
                              : RecordFile::create(folder_, identity_of(plan_)).value()),
        states_(folder_),
        of_{plan_.metric, plan_.train.epochs},
        table_(output(), of_) {
    if (!plan_.report_json.empty()) reports_ = report::LogFile::open(plan_.report_json).value();
  }

  SweepOutcome run() {
    say("sweep " + plan_.name + ": " + std::to_string(plan_.trials) + " trials of " + plan_.job + ", " +
        std::to_string(places_) + " at a time, " + plan_.metric + ", " +
        (plan_.own_scheduler ? "a scheduler of its own" : to_text(plan_.scheduler)) + "; records in " +
        records_.path());
    begin();
    while (!machine_->is_over()) {
      if (interrupts_.signal() != 0) feed(SweepInterrupted{});
      const bool news = look_at_runs();
      if (now() - synced_at_ >= kSync) sync();
      if (plan_.show_progress) table_.update(*machine_, now());
      if (!news) std::this_thread::sleep_for(kLookForEvents);
    }
    runs_.clear();
    sync();
    return outcome();
  }

 private:
  static Instant now() { return MonotonicClock().now(); }
  static report::Output& output() {
    static report::FdOutput standard(STDOUT_FILENO);
    return standard;
  }
  void say(const std::string& text) {
    if (plan_.show_progress) table_.line(in_a_line(text));
  }

  /// From the records, as far as they go.
  void begin() {
    const SweepStep first = machine_->start();
    if (records_.lines().empty()) return carry_out(first);
    std::size_t number = 1;
    for (const std::string& line : records_.lines()) replay(line, ++number);
    say("resumed after " + std::to_string(records_.lines().size()) + " events");
    if (machine_->is_over()) return;
    for (const StartTrial& start : machine_->running()) act(start);
  }
  void replay(const std::string& line, std::size_t number) {
    const SweepEvent event = read_record(line).value();
    const int trial = std::visit([](const auto& e) { return trial_of(e); }, event);
    if (trial < 0 || static_cast<std::size_t>(trial) >= machine_->trials().size())
      refuse("line " + std::to_string(number) + " of " + records_.path() + " is of a trial that there is not",
             "begin the sweep anew under another name");
    const Trial before = machine_->trials()[static_cast<std::size_t>(trial)];
    const SweepStep step = machine_->step(event);
    const std::string ours = record_line(event, before, step);
    if (ours != without_times(line))
      refuse("line " + std::to_string(number) + " of " + records_.path() + " is\n  " + line +
                 "\nand this program decides\n  " + ours,
             "resume the sweep with the program that began it, or begin it anew under another name");
    report(event, line);
  }
  static int trial_of(const SweepInterrupted&) { return -1; }
  template <class E>
  static int trial_of(const E& e) {
    return e.trial;
  }

  // What happens.

  /// Whether something did.
  bool look_at_runs() {
    std::vector<int> running;
    for (const auto& [number, run] : runs_) running.push_back(number);
    bool news = !failures_.empty();
    for (const int number : running) news = look_at(number) || news;
    while (!failures_.empty() && !machine_->is_over()) {
      const TrialFailed failed = failures_.front();
      failures_.pop_front();
      feed(failed);
    }
    return news;
  }

  /// The run of a trial, until it has nothing to tell.
  bool look_at(int number) {
    bool news = false;
    const std::uint64_t which = begun_.at(number).which;
    const auto same = [&] { return runs_.contains(number) && begun_.at(number).which == which; };
    while (same()) {
      const auto event = of_trial(number, [](train::Run& run) { return run.next_event(Duration(0)); });
      if (!event) return true;  // it failed
      if (!*event) break;
      news = true;
      hear(number, **event);
    }
    if (!same() || !runs_.at(number).is_over()) return news;
    const auto result = of_trial(number, [](train::Run& run) { return run.wait(); });
    runs_.erase(number);
    if (!result) return true;
    if (result->state_hash.empty()) {
      failures_.push_back({number, "it was stopped before it held a state"});
      return true;
    }
    keep_weights(number, result->weights);
    feed(TrialEnded{number, result->state_hash});
    return true;
  }
  /// What `ask` gives; nothing where it throws, which is then the trial's failure, and no one else's.
  template <class Ask>
  auto of_trial(int number, Ask ask) -> std::optional<std::invoke_result_t<Ask, train::Run&>> {
    try {
      return ask(runs_.at(number));
    } catch (const Error& error) {
      runs_.erase(number);
      failures_.push_back({number, error.what()});
      return std::nullopt;
    }
  }

  void hear(int number, const report::Event& event) {
    const std::string who = "trial " + std::to_string(number) + ": ";
    if (const auto* epoch = std::get_if<report::EpochDone>(&event))
      feed(TrialReported{number, epoch->epoch, epoch->metrics});
    if (const auto* fault = std::get_if<report::Fault>(&event)) say(who + report::fault_line(*fault));
    // What a job says of its stop, the table says better.
    const bool ends = machine_->trials()[static_cast<std::size_t>(number)].state == TrialState::kEnding;
    if (const auto* warning = std::get_if<report::Warning>(&event); warning != nullptr && !ends)
      say(who + warning->text);
  }

  /// A state that is saved is there before the line that says so.
  void feed(const SweepEvent& event) {
    const int trial = std::visit([](const auto& e) { return trial_of(e); }, event);
    const Trial before = trial < 0 ? Trial() : machine_->trials()[static_cast<std::size_t>(trial)];
    const SweepStep step = machine_->step(event);
    const bool saved = save_states(step);
    if (trial >= 0 && !step.decision.empty() && step.decision != "again") {
      const auto begun = begun_.find(trial);
      const auto began_ms = begun == begun_.end() ? now_ms() : begun->second.at_ms;
      const std::string line = with_times(record_line(event, before, step), began_ms, now_ms());
      records_.append(line).value();
      report(event, line);
    }
    carry_out(step);
    if (saved) states_.keep(machine_->states_needed());
    if (trial < 0 || !machine_->trials()[static_cast<std::size_t>(trial)].is_over() || before.is_over())
      return;
    say(trial_line(machine_->trials()[static_cast<std::size_t>(trial)], of_));
  }
  void report(const SweepEvent& event, const std::string& line) {
    if (!reports_ || !std::holds_alternative<TrialReported>(event)) return;
    if (const auto wrote = reports_->write(line + "\n"); !wrote) say(wrote.error().message());
  }
  void sync() {
    records_.sync().value();
    synced_at_ = now();
  }

  // What is done.

  bool save_states(const SweepStep& step) {
    bool any = false;
    for (const SweepAction& action : step.actions) {
      const auto* save = std::get_if<SaveState>(&action);
      const auto* pause = std::get_if<PauseTrial>(&action);
      if (save == nullptr && pause == nullptr) continue;
      any = true;
      const int trial = save != nullptr ? save->trial : pause->trial;
      const auto state = of_trial(trial, [](train::Run& run) { return run.snapshot(); });
      if (state) states_.add(save != nullptr ? save->state : pause->state, *state).value();
    }
    return any;
  }
  void carry_out(const SweepStep& step) {
    for (const SweepAction& action : step.actions) std::visit([this](const auto& a) { act(a); }, action);
  }
  void act(const StartTrial& start) {
    const Trial& trial = machine_->trials()[static_cast<std::size_t>(start.trial)];
    train::TrainOptions options = plan_.train;
    options.hold = true;
    options.show_progress = options.handle_signals = false;
    options.title = "trial " + std::to_string(start.trial);
    const std::string suffix = ".trial-" + std::to_string(start.trial);
    for (std::string* file : {&options.events_json, &options.metrics_csv, &options.tensorboard_folder}) {
      if (!file->empty()) *file += suffix;
    }
    if (plan_.adjust) plan_.adjust(trial, options);
    begun_[start.trial] = {++begun_count_, now_ms()};
    try {
      const train::Snapshot* from = start.from ? states_.find(*start.from).value() : nullptr;
      runs_.insert_or_assign(start.trial, plan_.start(trial.config, options, from));
    } catch (const BadConfig&) {
      throw;  // no trial of these options can begin
    } catch (const Error& error) {
      failures_.push_back({start.trial, error.what()});
    }
  }
  void act(const GoOnTrial& go_on) {
    with_run(go_on.trial, [](train::Run& run) { run.go_on(); });
  }
  void act(const StopTrial& stop) {
    with_run(stop.trial, [](train::Run& run) { run.stop(); });
  }
  void act(const PauseTrial& pause) { runs_.erase(pause.trial); }
  void act(const DropTrial& drop) { runs_.erase(drop.trial); }
  void act(const SaveState&) {}  // done before
  void act(const TellUser& tell) { say(tell.text); }
  void act(const SweepOver& over) {
    if (over.failed) error_ = over.error;
  }
  template <class Do>
  void with_run(int trial, Do what) {
    if (const auto at = runs_.find(trial); at != runs_.end()) what(at->second);
  }

  /// Before the line that makes it the best.
  void keep_weights(int number, const wire::Bytes& weights) {
    const Trial& trial = machine_->trials()[static_cast<std::size_t>(number)];
    const Trial* best = machine_->best();
    if (weights.empty() || !trial.value) return;
    if (best != nullptr && !machine_->is_better(*trial.value, *best->value) &&
        !(number < best->number && !machine_->is_better(*best->value, *trial.value)))
      return;
    write_whole(weights_of(number), {weights}).value();
    if (best != nullptr) ::unlink(weights_of(best->number).c_str());
  }
  std::string weights_of(int number) const {
    return folder_ + "/trial-" + std::to_string(number) + ".safetensors";
  }

  // What came of it.

  SweepOutcome outcome() {
    table_.clear();
    SweepOutcome out;
    out.trials = machine_->trials();
    out.name = plan_.name;
    out.folder = folder_;
    out.seconds = to_seconds(now() - began_at_);
    out.signal = interrupts_.signal();
    if (error_) throw_error(*error_);
    say("all trials, the best first:");
    for (const std::string& line : final_table(*machine_, of_)) say(line);
    const auto over = std::count_if(out.trials.begin(), out.trials.end(),
                                    [](const Trial& trial) { return trial.is_over(); });
    if (out.signal != 0)
      say("interrupted with " + std::to_string(over) + " of " + std::to_string(out.trials.size()) +
          " trials over: go on with it by resume and the name " + plan_.name);
    const Trial* best = machine_->best();
    if (best == nullptr) {
      if (out.signal != 0) return out;
      throw_error({ErrorCode::kTaskFailed, "the sweep has no result",
                   "every trial failed, the last one: " + out.trials.back().error,
                   "look at the job's code and at the ranges of the space"});
    }
    out.best = best->number;
    out.config = best->config;
    out.metric = *best->value;
    out.epochs = best->epoch;
    out.state_hash = best->state_hash;
    if (::access(weights_of(best->number).c_str(), R_OK) == 0) out.checkpoint = weights_of(best->number);
    states_.keep(machine_->states_needed());
    say(best_line(*best, of_));
    return out;
  }

  const SweepPlan plan_;
  const std::string folder_;
  const int places_;
  const std::unique_ptr<SweepMachine> machine_;
  RecordFile records_;
  SavedStates states_;
  const TableOf of_;
  SweepTable table_;
  train::Interrupts interrupts_;
  std::optional<report::LogFile> reports_;
  std::map<int, train::Run> runs_;
  struct Begun {
    std::uint64_t which = 0;  ///< of all runs: a trial may begin anew while it is looked at
    std::int64_t at_ms = 0;
  };
  std::map<int, Begun> begun_;  ///< the last run of a trial
  std::uint64_t begun_count_ = 0;
  std::deque<TrialFailed> failures_;  ///< that the machine has not heard of
  std::optional<ErrorInfo> error_;
  const Instant began_at_ = now();
  Instant synced_at_ = now();
};

SweepOutcome run_sweep(const DriverSession& session, SweepPlan plan) {
  const bool all_grids =
      std::all_of(plan.parameters.begin(), plan.parameters.end(),
                  [](const Parameter& one) { return one.domain.kind == Domain::Kind::kGrid; });
  if (plan.trials == 0 && all_grids) plan.trials = static_cast<int>(grid_points(plan.parameters));
  check(session, plan);
  if (plan.name.empty()) plan.name = name_now(plan.job_name);
  return Sweep(session, std::move(plan)).run();
}

}  // namespace troupe::tune
