/// A sweep as a pure state machine: which trial starts, goes on, pauses, stops, copies another, is tried
/// again. Events in, actions and a reason out; no I/O, no clock. Its state is a function of its events in
/// their order: who steps the recorded ones again has the same sweep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "actors/report/events.hpp"
#include "actors/tune/scheduler.hpp"
#include "actors/tune/search.hpp"
#include "runtime/core/error.hpp"

namespace troupe::tune {

enum class TrialState : std::uint8_t {
  kWaiting,   ///< it has not begun, or is paused, or waits to go on from another's state
  kRunning,   ///< its processes are there
  kEnding,    ///< its fate is decided, its processes still there
  kFinished,  ///< it ran all its epochs
  kStopped,   ///< early, by the scheduler
  kFailed,    ///< more often than it is tried again
};
/// "waiting", "running", ...
std::string_view name_of(TrialState state);

/// A trial went on from another one's saved state, with a config of its own: what it reported before was of
/// another config.
struct Clone {
  int trial = 0;
  int donor = 0;
  int epoch = 0;  ///< of the state
  Config config{};
};

/// What is known of a trial.
struct Trial {
  int number = 0;
  Config config{};  ///< that it runs with, or will
  TrialState state = TrialState::kWaiting;
  int epoch = 0;  ///< the last that it reported, or of the state that it copied; 0: none
  /// Of the sweep's metric, then; NaN is worst. None, too, while it has reported nothing under its config.
  std::optional<double> value{};
  report::Metrics metrics{};  ///< all that it reported then
  std::string why{};          ///< of the last decision on it
  int failures = 0;
  std::string error{};          ///< of the last failure
  std::string state_hash{};     ///< that it ended with; empty: it has not, or failed
  std::vector<Clone> clones{};  ///< that it was made, the first one first

  bool is_over() const {
    return state == TrialState::kFinished || state == TrialState::kStopped || state == TrialState::kFailed;
  }
};

/// A config's trials, which differ in the seed of their training.
struct Repeats {
  Config config{};
  int trials = 0;        ///< that have a value and did not fail
  double mean = 0;       ///< of their values; meaningful with trials
  double deviation = 0;  ///< of a sample; 0 of one trial
};
/// One for each config, in their order.
std::vector<Repeats> repeats_of(const std::vector<Trial>& trials, int repeats);

struct SweepConfig {
  int trials = 1;
  int max_concurrent = 1;
  int epochs = 1;      ///< of a trial that nothing stops
  int retries = 2;     ///< of a trial that fails, in all
  std::string metric;  ///< "validation/accuracy"
  Mode mode = Mode::kMax;
  /// A trial gets its config when there is a place for it: for a search that learns from those before.
  bool ask_late = false;
  std::vector<Config> first{};     ///< the first configs, instead of the search's
  std::optional<double> target{};  ///< a trial whose metric is as good as that has finished
  int repeats = 1;                 ///< so many trials in a row have one config; the search counts configs
};

// Events.

/// A trial's job came to the end of an epoch (from 1). A trial that was started again reports old epochs once
/// more.
struct TrialReported {
  int trial = 0;
  int epoch = 0;
  report::Metrics metrics;
};
/// Its job is over: it ran all its epochs, was told to stop, or a loss that is no finite number ended it.
struct TrialEnded {
  int trial = 0;
  std::string state_hash;
  std::int64_t not_finite_step = 0;  ///< where NotFinite::kStop ended it; 0: it did not
};
struct TrialFailed {
  int trial = 0;
  std::string error;
  bool is_final = false;  ///< another try would fail alike
};
/// Ctrl-C.
struct SweepInterrupted {};
using SweepEvent = std::variant<TrialReported, TrialEnded, TrialFailed, SweepInterrupted>;

// Actions, to be carried out in their order.

/// States that were saved are numbered through the sweep.
using StateNumber = int;

/// From the beginning, or from a state that was saved, of whatever trial. See refusal_of().
struct StartTrial {
  int trial = 0;
  std::optional<StateNumber> from{};
};
struct GoOnTrial {
  int trial = 0;
};
/// TrialEnded follows.
struct StopTrial {
  int trial = 0;
};
/// Save its state under this number, end its processes.
struct PauseTrial {
  int trial = 0;
  StateNumber state = 0;
};
/// End its processes; its state is not wanted.
struct DropTrial {
  int trial = 0;
};
/// It goes on afterwards.
struct SaveState {
  int trial = 0;
  StateNumber state = 0;
};
/// A line for the user.
struct TellUser {
  std::string text;
};
/// Nothing runs any more.
struct SweepOver {
  bool failed = false;  ///< as a whole
  ErrorInfo error{};
};
using SweepAction =
    std::variant<StartTrial, GoOnTrial, StopTrial, PauseTrial, DropTrial, SaveState, TellUser, SweepOver>;

/// "tpe of n_startup_trials 10, ..."
std::string to_text(const AnySearch& search);
/// "asha of max_t 100, grace_period 1, ...": two sweeps of one scheduler have the same.
std::string to_text(const AnyScheduler& scheduler);

struct SweepStep {
  std::vector<SweepAction> actions;
  std::string decision;  ///< "continue", "stop", "pause", "exploit", "retry", "fail", "again"; or empty
  std::string reason;    ///< of it, in words
  // What else became of trials, of whom no event follows that says so.
  std::vector<Clone> clones{};
  std::vector<Trial> stopped{};  ///< while they waited
};

/// Not thread-safe.
class SweepMachine {
 public:
  /// Gives a trial its config by asking the search. Throws BadTrial for one that no job can have.
  using Sample = std::function<Config(Search&)>;
  /// What a job has of a config: functions of others computed again, without what conditions refuse. The
  /// same.
  using Settle = std::function<Config(const Config&)>;

  /// REQUIRES: trials, max_concurrent, epochs >= 1. No `settle`: configs are as they come.
  SweepMachine(SweepConfig config, std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Search> search,
               Sample sample, Settle settle = {});

  /// The first actions. Call once.
  SweepStep start();
  SweepStep step(const SweepEvent& event);

  const std::vector<Trial>& trials() const { return trials_; }
  bool is_over() const { return over_; }
  /// The trial with the best value among those that finished or were stopped; the first of equals. With
  /// repeats the best of those whose config has the best mean. Null: none.
  const Trial* best() const;
  /// The best of those that may be best() instead of `trial` once it has ended, for their own values: all, or
  /// with repeats those of its config. Null: none.
  const Trial* best_beside(const Trial& trial) const;
  /// As best(), among all that have reported and did not fail: for people, meanwhile.
  const Trial* best_so_far() const;
  /// Whether `a` is better than `b`; NaN is worse than any number.
  bool is_better(double a, double b) const;
  /// Why no job can have the trial's config: instead of a start it fails for good. Empty: it can.
  const std::string& refusal_of(int trial) const { return plans_[static_cast<std::size_t>(trial)].refused; }
  /// Starts what runs, as of now: for a shell that replayed a sweep's events without carrying anything out.
  std::vector<StartTrial> running() const;
  /// The saved states that some trial may still begin from.
  std::set<StateNumber> states_needed() const;

 private:
  /// Known of a trial to the machine alone.
  struct Plan {
    TrialState fate = TrialState::kFinished;  ///< while it is ending
    std::optional<StateNumber> from{};        ///< what it begins from, when it is started
    std::optional<StateNumber> saved{};       ///< what others may go on from
    int saved_epoch = 0;
    std::string refused{};            ///< why no job can have its config
    bool stops = false;               ///< it was told to, before its last epoch
    std::optional<Ended::How> how{};  ///< it ended, for the search
  };

  void on(const TrialReported& e, SweepStep& out);
  void on(const TrialEnded& e, SweepStep& out);
  void on(const TrialFailed& e, SweepStep& out);
  void on(const SweepInterrupted& e, SweepStep& out);
  bool add_trial(SweepStep& out);
  void decide(Trial& trial, SweepStep& out);
  bool reached_target(Trial& trial, SweepStep& out);
  bool check_metric(const TrialReported& e, SweepStep& out);
  void carry_out(const Decision& decision, SweepStep& out);
  StateNumber save(const Trial& trial);
  void complete(Trial& trial, TrialState fate, SweepStep& out);
  void fill(SweepStep& out);
  void finish(SweepStep& out);
  void fail(SweepStep& out, ErrorInfo error);
  void drop_all(SweepStep& out);
  void set_config(Trial& trial, const std::function<Config()>& make);
  void stop_waiting(Trial& trial, std::string why, SweepStep& out);
  void take_out(const Trial& trial, SweepStep& out);
  void tell_search(const Trial& trial, Ended::How how);
  Trial* find(int number);
  Plan& plan_of(const Trial& trial) { return plans_[static_cast<std::size_t>(trial.number)]; }
  template <class Filter>
  const Trial* best_of(Filter filter) const;
  const Trial* best_of_config(int which) const;
  int places_taken() const;

  SweepConfig config_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Search> search_;
  Sample sample_;
  Settle settle_;
  std::vector<Trial> trials_;
  std::vector<Plan> plans_;
  StateNumber last_state_ = 0;
  bool metric_known_ = false;
  bool told_of_nan_ = false;
  bool over_ = false;
};

}  // namespace troupe::tune
