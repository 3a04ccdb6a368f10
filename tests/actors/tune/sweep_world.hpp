/// Trials without processes: what a sweep's shell would do, in memory and in any order.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/tune/records.hpp"
#include "actors/tune/sweep_machine.hpp"
#include "runtime/core/random.hpp"

namespace troupe::tune {

inline const std::vector<Parameter>& parameters() {
  static const std::vector<Parameter> all{{"lr", log_uniform(1e-4, 1).domain, false}};
  return all;
}

inline SweepMachine machine_of(SweepConfig config, const AnyScheduler& scheduler, std::uint64_t seed) {
  return {config, make_scheduler(scheduler, {config.mode, seed, parameters()}),
          make_search(RandomSearch{}, parameters(), config.mode, seed), [](Search& search) {
            return Config{{{"lr", search.suggest(parameters().front())}}};
          }};
}

inline double lr_of(const Trial& trial) {
  return number_of(*trial.config.find("lr"));
}
/// Learning curves that cross, without chance: the best rates are near 0.03.
inline double accuracy(double lr, int epoch) {
  const double off = std::log10(lr) + 1.5;
  return 0.9 - 0.1 * off * off - 0.5 / (epoch + 1) + 1e-4 * std::sin(1e5 * lr);
}

/// A sweep's runs, as its machine orders them; `random` says whose turn it is.
struct World {
  World(SweepConfig of, const AnyScheduler& scheduler, std::uint64_t seed)
      : World(of, machine_of(of, scheduler, seed)) {}
  World(SweepConfig of, SweepMachine its) : config(of), machine(std::move(its)) { take(machine.start()); }

  struct Run {
    int epoch = 0;  ///< that it has done
    bool holds = false;
    bool stops = false;
  };
  SweepConfig config;
  SweepMachine machine;
  std::map<int, Run> runs;
  std::map<StateNumber, int> states;  ///< the epoch of each
  std::vector<std::string> records;
  std::vector<std::string> lines;  ///< of the file: those of events, and those behind them
  std::vector<SweepEvent> events;
  std::vector<TrialFailed> refused;  ///< to be told of
  std::map<int, int> ended;          ///< how often each trial was
  int starts = 0;
  int told = 0;
  std::optional<ErrorInfo> error;
  bool over = false;
  std::function<double(const Trial&, int epoch)> metric = [](const Trial& trial, int epoch) {
    return accuracy(lr_of(trial), epoch);
  };

  void act(const StartTrial& a) {
    if (const auto& why = machine.refusal_of(a.trial); !why.empty())
      return refused.push_back({a.trial, why, true});
    REQUIRE_FALSE(runs.contains(a.trial));
    if (a.from) REQUIRE(states.contains(*a.from));
    runs[a.trial] = {a.from ? states.at(*a.from) : 0, false, false};
    ++starts;
    REQUIRE(static_cast<int>(runs.size()) <= config.max_concurrent);
  }
  void act(const GoOnTrial& a) {
    REQUIRE(runs.at(a.trial).holds);
    runs.at(a.trial).holds = false;
  }
  void act(const StopTrial& a) { runs.at(a.trial).stops = true; }
  void act(const PauseTrial& a) {
    states[a.state] = runs.at(a.trial).epoch;
    REQUIRE(runs.erase(a.trial) == 1);
  }
  void act(const DropTrial& a) { REQUIRE(runs.erase(a.trial) == 1); }
  void act(const SaveState& a) { states[a.state] = runs.at(a.trial).epoch; }
  void act(const TellUser&) { ++told; }
  void act(const SweepOver& a) {
    if (a.failed) error = a.error;
    over = true;
  }
  void take(const SweepStep& step) {
    for (const SweepAction& action : step.actions) std::visit([this](const auto& a) { act(a); }, action);
    std::erase_if(states, [&](const auto& s) { return !machine.states_needed().contains(s.first); });
  }
  void feed(const SweepEvent& event, int trial) {
    const Trial before = machine.trials()[static_cast<std::size_t>(trial)];
    const SweepStep step = machine.step(event);
    if (!step.decision.empty() && step.decision != "again") {
      const auto written = record_lines(event, before, step);
      records.push_back(written.front());
      lines.insert(lines.end(), written.begin(), written.end());
      events.push_back(event);
    }
    const Trial& after = machine.trials()[static_cast<std::size_t>(trial)];
    if (after.is_over() && !before.is_over()) ++ended[trial];
    take(step);
  }
  const Trial& trial(int number) const { return machine.trials()[static_cast<std::size_t>(number)]; }

  /// The next thing that happens to a run; false: it holds, and nobody may forget it.
  void advance(int number) {
    Run& run = runs.at(number);
    REQUIRE((!run.holds || run.stops));
    if (run.stops || run.epoch == config.epochs) {
      runs.erase(number);
      return feed(TrialEnded{number, "hash-" + std::to_string(number)}, number);
    }
    run.holds = ++run.epoch < config.epochs;
    report(number, metric(trial(number), run.epoch));
  }
  void report(int number, double value) {
    feed(TrialReported{number, runs.at(number).epoch, {{"accuracy", value}, {"train/loss", 1}}}, number);
  }
  void fail(int number, const std::string& error_text) {
    runs.erase(number);
    feed(TrialFailed{number, error_text}, number);
  }
  /// Until the end, whoever's turn it is; each step fails with `failures` in 1000.
  void run(Random& random, std::uint64_t failures = 0) {
    for (int steps = 0; !over; ++steps) {
      REQUIRE(steps < 100'000);
      if (!refused.empty()) {
        const TrialFailed failed = refused.front();
        refused.erase(refused.begin());
        feed(failed, failed.trial);
        continue;
      }
      REQUIRE_FALSE(runs.empty());
      auto at = runs.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random.next() % runs.size()));
      if (random.next() % 1000 < failures)
        fail(at->first, "killed");
      else
        advance(at->first);
    }
  }
};

}  // namespace troupe::tune
