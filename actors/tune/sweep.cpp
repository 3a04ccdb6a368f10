#include "actors/tune/sweep.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <thread>

#include "actors/report/format.hpp"
#include "actors/report/log_file.hpp"
#include "actors/train/api/interrupts.hpp"
#include "actors/tune/spare_workers.hpp"
#include "actors/tune/states.hpp"
#include "actors/tune/sweep_board.hpp"
#include "actors/tune/sweep_numerics.hpp"
#include "actors/tune/sweep_plan.hpp"
#include "actors/tune/table.hpp"
#include "actors/tune/words.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/whole_file.hpp"

namespace troupe::tune {
namespace {

constexpr Duration kLookForEvents = std::chrono::milliseconds(5);
/// What was decided survives this program at once, and the machine after so long.
constexpr Duration kSync = std::chrono::milliseconds(200);

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

/// Carries out what the machine says.
class Sweep {
 public:
  Sweep(const DriverSession& session, SweepPlan plan)
      : plan_(std::move(plan)),
        folder_(plan_.folder + "/" + plan_.name),
        first_(cluster_of(plan_, session.nodes())),
        records_(records_of(plan_, folder_, first_)),
        machine_(machine_of(plan_, first_.places)),
        states_(folder_),
        spare_(session),
        of_{plan_.metric, plan_.train.epochs == SweepPlan::kItsOwnEnd ? 0 : plan_.train.epochs,
            plan_.trials * plan_.repeats},
        table_(output(), of_) {
    if (!plan_.report_json.empty()) reports_ = report::LogFile::open(plan_.report_json).value();
    if (const std::string& folder = plan_.train.tensorboard_folder; !folder.empty())
      board_ =
          SweepBoard::open(folder, {plan_.name, plan_.parameters, plan_.metric, plan_.repeats, !plan_.trains},
                           [] { return static_cast<double>(now_ms()) / 1000; })
              .value();
  }

  SweepOutcome run() {
    say("sweep " + plan_.name + ": " + count_of(plan_.trials * plan_.repeats, "trial") + " of " + plan_.job +
        ", " + std::to_string(first_.places) + " at a time, " + plan_.metric + ", " +
        (plan_.own_scheduler ? "a scheduler of its own" : to_text(plan_.scheduler)) +
        (plan_.trains && plan_.train.threads == 0
             ? ", " + count_of(train::threads_of(plan_.train, first_.cpus), "thread") + " a trainer"
             : "") +
        "; records in " + records_.path());
    begin();
    while (!machine_->is_over()) {
      time_is_up_ = plan_.max_seconds > 0 && to_seconds(now() - began_at_) >= plan_.max_seconds;
      if (interrupts_.signal() != 0 || time_is_up_) feed(SweepInterrupted{});
      const bool news = look_at_runs();
      if (now() - synced_at_ >= kSync) sync();
      spare_.end_idle(now());
      if (plan_.show_progress) table_.update(*machine_, now());
      if (!news) std::this_thread::sleep_for(kLookForEvents);
    }
    runs_.clear();
    spare_.end_all();
    sync();
    return outcome();
  }

  /// Trains one of its trials again, whose records are there: to the same state.
  SweepOutcome again(int number) {
    machine_->start();
    for (std::size_t at = 0; at < records_.lines().size();) at += replay(at);
    const std::string who = "trial " + std::to_string(number);
    if (number < 0 || static_cast<std::size_t>(number) >= machine_->trials().size())
      refuse("there is no " + who, "see troupe tune show " + plan_.name);
    const Trial& trial = machine_->trials()[static_cast<std::size_t>(number)];
    if (trial.state_hash.empty() || !trial.value || std::isnan(*trial.value))
      refuse(who + " has come to no end that another run could come to", "name one that finished or stopped");
    if (!trial.clones.empty())
      refuse(who + " went on from the state of trial " + std::to_string(trial.clones.back().donor) +
                 ", which its config alone does not make",
             "take its weights, or name a trial without a clone");
    // As long as in the sweep, and stopped where that stopped it: a schedule has the whole run's length.
    train::TrainOptions options = options_of(trial);
    options.show_progress = plan_.show_progress;
    options.handle_signals = plan_.train.handle_signals;
    const train::RunResult result =
        run_to(trial, options.epochs, *plan_.start(trial.config, options, nullptr, {}));
    if (result.signal == 0 && result.state_hash != trial.state_hash)
      throw_error({ErrorCode::kTaskFailed, who + " came to another state than in the sweep",
                   "the sweep's is " + trial.state_hash + ", this one's " + result.state_hash,
                   "is it the same program, on the same data?"});
    if (result.signal == 0) say(who + " again: the state " + result.state_hash + ", as in the sweep");
    SweepOutcome out;
    out.trials = machine_->trials();
    out.best = number;
    out.config = trial.config;
    out.metric = *trial.value;
    out.epochs = trial.epoch;
    out.state_hash = result.state_hash;
    if (::access(weights_of(number).c_str(), R_OK) == 0) out.checkpoint = weights_of(number);
    out.name = plan_.name;
    out.folder = folder_;
    out.signal = result.signal;
    out.seconds = result.seconds;
    return out;
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

  static train::RunResult run_to(const Trial& trial, int epochs, TrialRun& run) {
    while (!run.is_over()) {
      const auto event = run.next_event();
      const auto* epoch = event ? std::get_if<report::EpochDone>(&*event) : nullptr;
      const bool stops = epoch != nullptr && epoch->epoch >= trial.epoch && trial.epoch < epochs;
      if (epoch != nullptr) stops ? run.stop() : run.go_on();
      if (!event && !run.is_over()) std::this_thread::sleep_for(kLookForEvents);
    }
    return run.wait();
  }

  /// From the records, as far as they go.
  void begin() {
    const SweepStep first = machine_->start();
    if (records_.lines().empty()) return carry_out(first);
    for (std::size_t at = 0; at < records_.lines().size();) at += replay(at);
    say("resumed after " + count_of(static_cast<std::int64_t>(records_.lines().size()), "event"));
    if (machine_->is_over()) return;
    for (const StartTrial& start : machine_->running()) act(start);
  }
  /// How many lines the event at this one has.
  std::size_t replay(std::size_t at) {
    const std::string& line = records_.lines()[at];
    const SweepEvent event = read_record(line).value();
    const int trial = std::visit([](const auto& e) { return trial_of(e); }, event);
    if (trial < 0 || static_cast<std::size_t>(trial) >= machine_->trials().size())
      refuse("line " + std::to_string(at + 2) + " of " + records_.path() + " is of a trial that there is not",
             "begin the sweep anew under another name");
    const Trial before = machine_->trials()[static_cast<std::size_t>(trial)];
    const SweepStep step = machine_->step(event);
    decided_.push_back(event);
    const auto ours = record_lines(event, before, step);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (at + i == records_.lines().size()) {  // it died while it wrote the rest
        records_.append(with_times(ours[i], now_ms(), now_ms())).value();
      } else if (const std::string& its = records_.lines()[at + i]; ours[i] != without_times(its)) {
        refuse("line " + std::to_string(at + i + 2) + " of " + records_.path() + " is\n  " + its +
                   "\nand this program decides\n  " + ours[i],
               "resume the sweep with the program that began it, or begin it anew under another name");
      }
    }
    report(event, line);
    return ours.size();
  }
  static int trial_of(const SweepInterrupted&) { return -1; }
  template <class E>
  static int trial_of(const E& e) {
    return e.trial;
  }

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
      const auto event = of_trial(number, [](TrialRun& run) { return run.next_event(); });
      if (!event) return true;  // it failed
      if (!*event) break;
      news = true;
      begun_.at(number).heard_at = now();
      hear(number, **event);
    }
    if (same() && !runs_.at(number)->is_over() && is_silent(number)) {
      runs_.erase(number);
      failures_.push_back({number, "it has told nothing for " + to_text(Value(plan_.silent_seconds)) +
                                       " s (silent_seconds): it hangs, or takes longer"});
      return true;
    }
    if (!same() || !runs_.at(number)->is_over()) return news;
    const auto result = of_trial(number, [](TrialRun& run) { return run.wait(); });
    if (!result) return true;
    end_run(number);
    if (result->state_hash.empty()) {
      failures_.push_back({number, "it was stopped before it held a state"});
      return true;
    }
    if (begun_.at(number).ended_not_finite()) {
      feed(TrialEnded{number, result->state_hash, result->steps});
      return true;
    }
    keep_weights(number, result->weights);
    feed(TrialEnded{number, result->state_hash});
    return true;
  }
  bool is_silent(int number) {
    if (!runs_.at(number)->has_begun()) begun_.at(number).heard_at = now();
    return plan_.silent_seconds > 0 && to_seconds(now() - begun_.at(number).heard_at) > plan_.silent_seconds;
  }
  /// What `ask` gives; nothing where it throws, which is then the trial's failure, and no one else's.
  template <class Ask>
  auto of_trial(int number, Ask ask) -> std::optional<std::invoke_result_t<Ask, TrialRun&>> {
    try {
      return ask(*runs_.at(number));
    } catch (const Error& error) {
      ErrorInfo why = error.info();
      why.origin.clear();  // the trial is named, and its actor is gone
      runs_.erase(number);
      failures_.push_back({number, why.message(), why.code == ErrorCode::kBadConfig});
      return std::nullopt;
    } catch (const std::exception& error) {
      runs_.erase(number);
      failures_.push_back({number, error.what()});
      return std::nullopt;
    }
  }

  void hear(int number, const report::Event& event) {
    const std::string who = "trial " + std::to_string(number) + ": ";
    if (const auto* step = std::get_if<report::StepDone>(&event))
      begun_.at(number).is_finite = begun_.at(number).is_finite && std::isfinite(step->loss);
    // Behind a loss that ends the job comes one more evaluation, of a state that nobody asked for.
    const auto* epoch = std::get_if<report::EpochDone>(&event);
    if (epoch != nullptr && plan_.trains && plan_.train.exact &&
        !std::exchange(begun_.at(number).compared, true)) {
      if (const auto told = numerics_.compare(number, runs_.at(number)->numerics())) say(*told);
    }
    if (epoch != nullptr && !begun_.at(number).ended_not_finite())
      feed(TrialReported{number, epoch->epoch, epoch->metrics});
    if (const auto* fault = std::get_if<report::Fault>(&event)) say(who + report::fault_line(*fault));
    // What a job says of its stop, the table says better.
    const bool ends = machine_->trials()[static_cast<std::size_t>(number)].state == TrialState::kEnding;
    if (const auto* warning = std::get_if<report::Warning>(&event); warning != nullptr && !ends)
      say(who + warning->text);
  }

  /// A state that is saved is there before the line that says so. One that cannot be had is its trial's
  /// failure, and nothing was decided before that.
  void feed(const SweepEvent& event) {
    const int trial = std::visit([](const auto& e) { return trial_of(e); }, event);
    const Trial before = trial < 0 ? Trial() : machine_->trials()[static_cast<std::size_t>(trial)];
    const SweepStep step = machine_->step(event);
    bool saved = false;
    for (const SweepAction& action : step.actions) {
      const auto* save = std::get_if<SaveState>(&action);
      const auto* pause = std::get_if<PauseTrial>(&action);
      if (save == nullptr && pause == nullptr) continue;
      saved = true;
      const int of = save != nullptr ? save->trial : pause->trial;
      if (save_state(of, save != nullptr ? save->state : pause->state, save != nullptr)) continue;
      forget_last_step();
      const TrialFailed failed = failures_.back();
      std::erase_if(failures_, [&](const TrialFailed& each) { return each.trial == of; });
      feed(failed);
      if (of != trial) feed(event);
      return;
    }
    if (trial >= 0 && !step.decision.empty() && step.decision != "again") {
      const auto begun = begun_.find(trial);
      const auto began_ms = begun == begun_.end() ? now_ms() : begun->second.at_ms;
      std::vector<std::string> lines = record_lines(event, before, step);
      std::string text;
      for (std::string& line : lines)
        text += (text.empty() ? "" : "\n") + (line = with_times(std::move(line), began_ms, now_ms()));
      records_.append(text).value();
      decided_.push_back(event);
      report(event, lines.front());
      if (const auto* reported = std::get_if<TrialReported>(&event))
        on_board([&](SweepBoard& board) { return board.report(before, reported->epoch, reported->metrics); });
    }
    for (const Trial& stopped : step.stopped) end_on_board(stopped);
    carry_out(step);
    if (saved) states_.keep(states_needed());
    if (trial < 0 || !machine_->trials()[static_cast<std::size_t>(trial)].is_over() || before.is_over())
      return;
    end_on_board(machine_->trials()[static_cast<std::size_t>(trial)]);
    say(trial_line(machine_->trials()[static_cast<std::size_t>(trial)], of_));
  }
  /// What it cannot write is told once, and the sweep goes on.
  template <class Write>
  void on_board(Write write) {
    if (!board_) return;
    const auto wrote = write(*board_);
    if (wrote.ok()) return;
    say(wrote.error().message());
    board_.reset();
  }
  void end_on_board(const Trial& trial) {
    on_board([&](SweepBoard& board) { return board.end(trial); });
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

  /// False: the trial has failed instead.
  bool save_state(int trial, StateNumber number, bool shared) {
    auto state = of_trial(trial, [shared](TrialRun& run) { return shared ? run.share() : run.snapshot(); });
    if (!state) return false;
    std::erase_if(donors_, [&](const auto& donor) { return donor.second.trial == trial; });
    if (shared) donors_[number] = {trial, begun_.at(trial).which};
    if (!state->donor.who.empty())
      state->donor.who = "trial " + std::to_string(trial) + "'s " + state->donor.who;
    states_.add(number, std::move(*state)).value();
    return true;
  }
  /// Also those that runs began from: one whose trainers have died begins there again.
  std::set<StateNumber> states_needed() const {
    std::set<StateNumber> needed = machine_->states_needed();
    for (const auto& [number, run] : runs_) {
      if (const auto& from = begun_.at(number).from) needed.insert(*from);
    }
    return needed;
  }
  /// What a trial begins from; a donor that has gone on to other states is not asked.
  std::optional<train::Snapshot> state_of(const std::optional<StateNumber>& number) {
    if (!number) return std::nullopt;
    if (!plan_.trains) return states_.load(*number).value();
    train::Snapshot state = states_.find(*number).value();
    const auto donor = donors_.find(*number);
    if (donor == donors_.end() || !runs_.contains(donor->second.trial) ||
        begun_.at(donor->second.trial).which != donor->second.which)
      state.donor = {};
    return state;
  }
  /// Its processes may be the next trial's.
  void end_run(int trial) {
    const auto run = std::move(runs_.at(trial));
    runs_.erase(trial);
    if (plan_.keep_processes) spare_.add(begun_.at(trial).kind, run->release(), now());
  }
  /// The machine as it was before: a sweep is a function of what was decided.
  void forget_last_step() {
    machine_ = machine_of(plan_, first_.places);
    machine_->start();
    for (const SweepEvent& event : decided_) machine_->step(event);
  }
  void carry_out(const SweepStep& step) {
    for (const SweepAction& action : step.actions) std::visit([this](const auto& a) { act(a); }, action);
  }
  void act(const StartTrial& start) {
    const Trial& trial = machine_->trials()[static_cast<std::size_t>(start.trial)];
    Begun& begun = begun_[start.trial] = {++begun_count_, now_ms()};
    const auto fail = [&](const std::string& why, bool is_final) {
      failures_.push_back({start.trial, why, is_final});
    };
    if (const auto& refusal = machine_->refusal_of(start.trial); !refusal.empty()) return fail(refusal, true);
    try {
      const auto from = state_of(start.from);
      begun.from = start.from;
      const train::TrainOptions options = options_of(trial);
      begun.stops_not_finite = options.not_finite == train::NotFinite::kStop;
      begun.kind = kind_of(options);
      on_board([&](SweepBoard& board) { return board.begin(trial); });
      const train::Workers workers = spare_.take(begun.kind);
      try {
        runs_.insert_or_assign(start.trial,
                               plan_.start(trial.config, options, from ? &*from : nullptr, workers));
      } catch (...) {
        spare_.end(workers);
        throw;
      }
    } catch (const BadConfig& error) {  // what was asked of it makes no sense, and will make none
      fail(error.what(), true);
    } catch (const std::exception& error) {
      fail(error.what(), false);
    }
  }
  /// What processes must have in common to go from trial to trial.
  static std::string kind_of(const train::TrainOptions& o) {
    std::string kind;
    for (const double each :
         {double(o.trainers), o.trainer_cpus, o.trainer_gpus, double(o.threads), double(o.exact),
          double(o.loaders), double(o.trainer_strategy), double(o.trainer_memory)})
      kind += to_text(Value(each)) + " ";
    for (const auto& [name, amount] : o.trainer_resources) kind += name + "=" + to_text(Value(amount)) + " ";
    for (const auto& [key, value] : o.trainer_labels) kind.append(key).append("=").append(value).append(" ");
    return kind;
  }
  /// What the user's own function throws is this trial's.
  train::TrainOptions options_of(const Trial& trial) const {
    train::TrainOptions options = plan_.train;
    if (plan_.set_options) plan_.set_options(trial.config, options);  // what a sweep sets comes behind it
    options.seed += static_cast<std::uint64_t>(trial.number % plan_.repeats);
    options.title = "trial " + std::to_string(trial.number);
    // Before adjust: a trial that goes on with another number of trainers computes as it did.
    options.threads = train::threads_of(options, first_.cpus);
    const std::string suffix = ".trial-" + std::to_string(trial.number);
    for (std::string* file : {&options.events_json, &options.metrics_csv}) {
      if (!file->empty()) *file += suffix;
    }
    if (!options.tensorboard_folder.empty())
      options.tensorboard_folder += "/" + SweepBoard::session_of(trial);
    if (plan_.adjust) {
      try {
        plan_.adjust(trial, options);
      } catch (const std::exception& thrown) {
        throw BadConfig("the trial's options cannot be set", std::string("adjust threw: ") + thrown.what(),
                        "look at the sweep's adjust function");
      }
    }
    options.threads = train::threads_of(options, first_.cpus);
    if (options.epochs > plan_.train.epochs)
      throw BadConfig("the trial's options cannot be set",
                      "it has " + std::to_string(options.epochs) + " epochs, and the sweep has " +
                          std::to_string(plan_.train.epochs),
                      "give the sweep's train.epochs the most, and a trial fewer");
    options.hold = true;
    options.show_progress = options.handle_signals = false;
    return options;
  }
  void act(const GoOnTrial& go_on) {
    with_run(go_on.trial, [](TrialRun& run) { run.go_on(); });
  }
  void act(const StopTrial& stop) {
    with_run(stop.trial, [](TrialRun& run) { run.stop(); });
  }
  void act(const PauseTrial& pause) {
    if (runs_.contains(pause.trial)) end_run(pause.trial);
    if (board_) board_->pause(pause.trial);
  }
  void act(const DropTrial& drop) {
    if (runs_.contains(drop.trial)) end_run(drop.trial);
    if (board_) board_->pause(drop.trial);
  }
  void act(const SaveState&) {}  // done before
  void act(const TellUser& tell) { say(tell.text); }
  void act(const SweepOver& over) {
    if (over.failed) error_ = over.error;
  }
  template <class Do>
  void with_run(int trial, Do what) {
    if (const auto at = runs_.find(trial); at != runs_.end()) what(*at->second);
  }

  /// Before the line that makes it the best: of all, or with repeats of its config, since the best mean is
  /// known last.
  void keep_weights(int number, const wire::Bytes& weights) {
    const Trial& trial = machine_->trials()[static_cast<std::size_t>(number)];
    const Trial* best = machine_->best_beside(trial);
    if (weights.empty() || !trial.value) return;
    if (best != nullptr && !machine_->is_better(*trial.value, *best->value) &&
        !(number < best->number && !machine_->is_better(*best->value, *trial.value)))
      return;
    write_whole(weights_of(number), {weights}).value();
    if (best != nullptr) ::unlink(weights_of(best->number).c_str());
  }
  void drop_weights_but(int kept) {
    for (const Trial& trial : machine_->trials()) {
      if (trial.number != kept) ::unlink(weights_of(trial.number).c_str());
    }
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
    if (plan_.repeats > 1) {
      out.repeats = repeats_of(out.trials, plan_.repeats);
      for (const Repeats& each : out.repeats) say(repeats_line(each, plan_.metric));
    }
    const auto over = std::count_if(out.trials.begin(), out.trials.end(),
                                    [](const Trial& trial) { return trial.is_over(); });
    if (out.signal != 0 || time_is_up_)
      say(std::string(out.signal != 0 ? "interrupted" : "the time is up") + " with " + std::to_string(over) +
          " of " + std::to_string(out.trials.size()) + " trials over: go on with it by resume and the name " +
          plan_.name);
    const Trial* best = machine_->best();
    if (best == nullptr) {
      if (out.signal != 0 || time_is_up_) return out;
      throw_error({ErrorCode::kTaskFailed, "the sweep has no result",
                   "every trial failed, the last one: " + out.trials.back().error,
                   "look at the job's code and at the ranges of the space"});
    }
    out.best = best->number;
    out.config = best->config;
    out.metric = *best->value;
    out.epochs = best->epoch;
    if (plan_.trains) out.threads = options_of(*best).threads;
    out.state_hash = best->state_hash;
    if (::access(weights_of(best->number).c_str(), R_OK) == 0) out.checkpoint = weights_of(best->number);
    if (static_cast<std::size_t>(over) == out.trials.size()) drop_weights_but(best->number);
    states_.keep(machine_->states_needed());
    say(best_line(*best, of_));
    return out;
  }

  const SweepPlan plan_;
  const std::string folder_;
  FirstCluster first_;
  RecordFile records_;
  std::unique_ptr<SweepMachine> machine_;
  std::vector<SweepEvent> decided_;  ///< what the records have
  SweepNumerics numerics_{folder_};
  SavedStates states_;
  SpareWorkers spare_;
  struct Donor {
    int trial = 0;
    std::uint64_t which = 0;  ///< Begun::which
  };
  std::map<StateNumber, Donor> donors_;  ///< the last state of each that was shared
  const TableOf of_;
  SweepTable table_;
  train::Interrupts interrupts_;
  std::optional<report::LogFile> reports_;
  std::optional<SweepBoard> board_;
  std::map<int, std::unique_ptr<TrialRun>> runs_;
  struct Begun {
    std::uint64_t which = 0;  ///< of all runs: a trial may begin anew while it is looked at
    std::int64_t at_ms = 0;
    Instant heard_at = now();
    std::optional<StateNumber> from{};  ///< the state that it began from
    std::string kind{};                 ///< of its processes
    bool stops_not_finite = false;      ///< by a loss that is no finite number
    bool is_finite = true;              ///< every loss was, so far
    bool compared = false;              ///< how it computes, with the sweep
    bool ended_not_finite() const { return stops_not_finite && !is_finite; }
  };
  std::map<int, Begun> begun_;  ///< the last run of a trial
  std::uint64_t begun_count_ = 0;
  std::deque<TrialFailed> failures_;  ///< that the machine has not heard of
  std::optional<ErrorInfo> error_;
  const Instant began_at_ = now();
  bool time_is_up_ = false;
  Instant synced_at_ = now();
};

SweepOutcome run_sweep(const DriverSession& session, SweepPlan plan) {
  const bool all_grids =
      std::all_of(plan.parameters.begin(), plan.parameters.end(),
                  [](const Parameter& one) { return one.domain.kind == Domain::Kind::kGrid; });
  if (plan.trials == 0 && all_grids)
    plan.trials = static_cast<int>(grid_points(plan.parameters) + plan.first.size());
  const auto again = trial_again(plan);
  go_on_if_started_again(plan);
  check(session, plan);
  if (again) return Sweep(session, std::move(plan)).again(*again);
  if (plan.name.empty()) plan.name = name_now(plan.job_name);
  return Sweep(session, std::move(plan)).run();
}

}  // namespace troupe::tune
