/// The part of tune::run that does not depend on the job's type: a SweepMachine, carried out with training
/// runs, records and a table.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "actors/report/terminal.hpp"
#include "actors/train/api/train.hpp"
#include "actors/tune/records.hpp"
#include "actors/tune/sweep_machine.hpp"
#include "actors/tune/trial_run.hpp"

namespace troupe::tune {

/// How a trial trains: its number, its config, and the options to change for it.
using Adjust = std::function<void(const Trial& trial, train::TrainOptions& options)>;

/// What a sweep came to.
struct SweepOutcome {
  std::vector<Trial> trials;
  int best = -1;                 ///< its number; -1: no trial came to its end
  Config config;                 ///< of the best
  double metric = 0;             ///< that it reported last; meaningful with a best
  std::vector<Repeats> repeats;  ///< with repeats: one for each config
  int epochs = 0;                ///< that it ran
  int threads = 0;               ///< of its trainers, also where the options let the sweep choose
  std::string state_hash;        ///< that it ended with: a run of its config with so many epochs has the same
  std::string
      checkpoint;    ///< its weights, a safetensors file; empty: return_weights was false, or they were lost
  std::string name;  ///< of the sweep
  std::string folder;  ///< with its records
  int signal = 0;      ///< that interrupted it
  double seconds = 0;

  /// The best trial's weights in a module like the one that was trained. Throws BadConfig where there are
  /// none.
  ///     ConvNet trained = best.load(best.job.model());
  template <class Net>
  Net load(Net net, const std::string& module = {}) const {
    if (checkpoint.empty())
      throw BadConfig("the sweep has no weights to load", "no trial came to its end with its weights",
                      "leave return_weights = false out, or resume a sweep that was interrupted");
    return train::load_weights(checkpoint, std::move(net), module);
  }
  /// What main should return: 128 and the signal's number, or 0.
  int exit_code() const { return signal != 0 ? 128 + signal : 0; }
};

/// What a sweep is to do, without the job's type.
struct SweepPlan {
  std::uint64_t job_type = 0;  ///< in the job registry
  std::string job_name;        ///< its type
  std::string job;             ///< for people, and to tell sweeps apart
  std::string space;
  SweepMachine::Sample sample;
  SweepMachine::Settle settle;
  std::vector<std::string> swept_options{};  ///< settings that are fields of TrainOptions
  std::function<void(const Config&, train::TrainOptions&)> set_options{};  ///< these; null: there are none
  std::vector<Parameter> parameters;
  /// Begins a trial.
  std::function<std::unique_ptr<TrialRun>(const Config&, const train::TrainOptions&,
                                          const train::Snapshot* from, const train::Workers&)>
      start;
  /// train.epochs of trials that end by themselves.
  static constexpr int kItsOwnEnd = std::numeric_limits<int>::max();
  bool trains = true;  ///< trials are training runs: `train` is checked as theirs
  bool saves = true;   ///< a trial's state can be saved

  int trials = 1;
  std::string metric;
  std::optional<Mode> mode;
  AnyScheduler scheduler;
  std::function<std::unique_ptr<Scheduler>(const SchedulerContext&)> own_scheduler;
  train::TrainOptions train;
  Adjust adjust;
  AnySearch search;
  std::function<std::unique_ptr<Search>(const std::vector<Parameter>&, Mode, std::uint64_t)> own_search;
  std::vector<Config> first;
  std::optional<double> target;
  int repeats = 1;
  double max_seconds = 0;
  double silent_seconds = 0;
  std::uint64_t seed = 0;
  int max_concurrent = 0;
  int retries = 2;
  bool keep_processes = true;
  std::string name;
  std::string folder;
  bool resume = false;
  std::string report_json;
  bool show_progress = true;
};

/// Runs it. Throws as tune::run().
SweepOutcome run_sweep(const DriverSession& session, SweepPlan plan);

/// How many trials run at a time where the user does not say: as many as the CPUs, and GPUs, allow; at least
/// one.
int places_for(const std::vector<cluster::NodeInfo>& nodes, const train::TrainOptions& trial);

}  // namespace troupe::tune
