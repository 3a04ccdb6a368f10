/// Which trial runs, pauses, stops, or goes on from another's state. A scheduler is a state machine without
/// I/O: the tuner steps it with what happened and does what it decides.
///
///   auto scheduler = make_scheduler(Asha{.max_t = 81}, {.mode = Mode::kMax, .seed = 7});
///   Decision decision = scheduler->step(Reported{trial, epoch, accuracy});
///
/// Its state is a function of its events: who steps the same events again, in the same order and from the
/// same seed, has the same scheduler. Names, defaults and formulas are Ray Tune's (2.60) and Optuna's (5.0),
/// decision for decision.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "actors/tune/config.hpp"
#include "actors/tune/domain.hpp"
#include "actors/tune/mutation.hpp"

namespace troupe::tune {

/// Whether more of the metric is better.
enum class Mode : std::uint8_t { kMax, kMin };

// What happened. `t` is what options call time: epochs, steps or seconds of a trial, as the tuner counts.

/// A trial is there and waits. A second time, after a Failed with `retry`: it begins anew, at the end of the
/// list.
struct Added {
  int trial = 0;
  Config config{};
  bool saves = true;  ///< its state can be saved: PBT copies no other
};
/// A place is free: Decision::run says whose it is. Asked until that is empty.
struct Choose {};
/// A running trial reported. A time or metric that is missing is nullopt; NaN is the worst metric.
struct Reported {
  int trial = 0;
  std::optional<double> t;
  std::optional<double> metric;
};
/// A trial has ended, after a kStop or by itself, with its last report (again, if it was reported).
struct Completed {
  int trial = 0;
  std::optional<double> t{};
  std::optional<double> metric{};
  bool pruned = false;  ///< it did what a kStop told it
};
struct Failed {
  int trial = 0;
  bool retry = false;  ///< an Added of it follows
};
/// A trial is gone: taken out while it did not run, or (in a sweep) behind its last Failed, and behind a
/// Completed before its time. Nobody waits for it any more. Not for those in Decision::stop.
struct Removed {
  int trial = 0;
};
using Event = std::variant<Added, Choose, Reported, Completed, Failed, Removed>;

// What to do.

enum class Action : std::uint8_t {
  kContinue,
  kPause,    ///< save its state, free its resources; Decision::run resumes it
  kStop,     ///< end it; a Completed follows
  kExploit,  ///< it is in Decision::exploits: pause it without saving its state
};
std::string_view name_of(Action action);  ///< "continue"

/// PBT: a trial takes over another's state and a config made from the other's. It waits (its old state is
/// lost) until Decision::run names it.
struct Exploit {
  int trial = 0;
  int donor = 0;  ///< its state as it was saved last
  Config config;
};

struct Decision {
  Action action = Action::kContinue;  ///< for the trial of a Reported
  std::optional<int> run{};           ///< of a Choose: start it, or resume it from its saved state
  std::vector<int> stop{};            ///< these paused trials end, too; no event of theirs follows
  /// Save the state of these, before any exploit: others may copy it. A paused one's is saved.
  std::vector<int> save{};
  std::vector<Exploit> exploits{};
  std::optional<Config> config{};  ///< of an Added: its config with the settings that it lacked
  std::string reason{};            ///< in words
  /// The numbers behind it: {"rung", 9}, {"cutoff", 0.8}.
  std::vector<std::pair<std::string, double>> figures{};

  static Decision because(Action action, std::string reason) {
    return {.action = action, .reason = std::move(reason)};
  }
};

/// Chance, as a scheduler uses it: a seam of its own, since a recorded run has other numbers than a seed of
/// ours.
class Draws {
 public:
  virtual ~Draws() = default;
  virtual double uniform() = 0;                          ///< in [0, 1): ASHA's bracket, PBT's resampling
  virtual std::size_t choice(std::size_t count) = 0;     ///< in [0, count)
  virtual Value sample(const Parameter& parameter) = 0;  ///< a new value
};
std::unique_ptr<Draws> seeded_draws(std::uint64_t seed);

/// A user's own derives from it. Single-threaded. May throw: that ends the sweep, and no other trial's result
/// is lost.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual Decision step(const Event& event) = 0;
};

/// Every trial runs to its end, the first added first. Optuna: NopPruner.
struct Fifo {};

/// Asynchronous successive halving (Li et al. 2018). Ray Tune: ASHAScheduler, AsyncHyperBandScheduler.
struct Asha {
  double max_t = 100;
  double grace_period = 1;       ///< no trial stops before
  double reduction_factor = 4;   ///< the best 1/4 of those that came to a rung go on
  int brackets = 1;              ///< a bracket s begins with rung grace_period * reduction_factor^s
  bool stop_last_trials = true;  ///< at max_t
};

/// HyperBand (Li et al. 2016): trials pause at milestones until all of a bracket are there.
struct HyperBand {
  double max_t = 81;
  double reduction_factor = 3;
  bool stop_last_trials = true;
};

/// Google Vizier's rule (Golovin et al. 2017): a trial stops whose best is worse than the median of the
/// others' means.
struct MedianStopping {
  double grace_period = 60;
  int min_samples_required = 3;
  double min_time_slice = 0;
  bool hard_stop = true;  ///< false: pauses
};

/// Population-based training (Jaderberg et al. 2017): the worst go on from the state and the config of the
/// best, with the fields that `mutations` names changed.
struct Pbt {
  double perturbation_interval = 60;
  double burn_in_period = 0;
  double quantile_fraction = 0.25;
  double resample_probability = 0.25;
  std::vector<double> perturbation_factors{1.2, 0.8};
  /// {&Digits::lr, {&Digits::batch, choice({16, 32})}}: these fields, in this order. None named: all that the
  /// space draws (or none, where there is a custom_explore).
  std::vector<Mutation> mutations{};
  std::function<Config(Config)> custom_explore{};  ///< last, on the new config
  bool require_attrs = true;                       ///< a report without time or metric is an error
  bool synch = false;  ///< all wait for all at every interval: the same decisions in any order of reports
};

/// Optuna's pruners: every trial begins at once, its reports are judged as they come. kStop is
/// should_prune().
struct PercentilePruner {
  double percentile = 25;
  int n_startup_trials = 5;
  int n_warmup_steps = 0;
  int interval_steps = 1;
  int n_min_trials = 1;
};
struct MedianPruner {
  int n_startup_trials = 5;
  int n_warmup_steps = 0;
  int interval_steps = 1;
  int n_min_trials = 1;
};
struct SuccessiveHalvingPruner {
  std::optional<int> min_resource = 1;  ///< nullopt: "auto"
  int reduction_factor = 4;
  int min_early_stopping_rate = 0;
  int bootstrap_count = 0;
};
struct HyperbandPruner {
  int min_resource = 1;
  std::optional<int> max_resource{};  ///< nullopt: "auto"
  int reduction_factor = 3;
  int bootstrap_count = 0;
  std::string study_name = "study";  ///< a trial's bracket is drawn from it and its number
};

using AnyScheduler = std::variant<Fifo, Asha, HyperBand, MedianStopping, Pbt, PercentilePruner, MedianPruner,
                                  SuccessiveHalvingPruner, HyperbandPruner>;

struct SchedulerContext {
  Mode mode = Mode::kMax;
  std::uint64_t seed = 0;
  std::vector<Parameter> parameters{};  ///< the space's: what Pbt may change
};

/// Throws BadConfig for options that make no sense. Without `draws` they are seeded_draws(context.seed).
std::unique_ptr<Scheduler> make_scheduler(const AnyScheduler& options, SchedulerContext context,
                                          std::shared_ptr<Draws> draws = nullptr);

}  // namespace troupe::tune
