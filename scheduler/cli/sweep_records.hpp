/// What a sweep has written down (results/NAME/results.jsonl), for people: the program that sweeps reads its
/// own file back elsewhere (actors/tune/records.hpp, where the format stands).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::cli {

/// A trial went on from another one's state.
struct CloneRecord {
  int from = 0;
  int epoch = 0;  ///< of that state
  nlohmann::ordered_json config;
  // What the trial was before.
  nlohmann::ordered_json old_config;
  int old_epoch = 0;
  std::optional<double> old_value{};
};

struct TrialRecord {
  int number = 0;
  nlohmann::ordered_json config;
  std::string state;  ///< "running", "paused", "stopping", "waiting", "finished", "stopped", "failed"
  int epoch = 0;      ///< the last that it reported, or of the state that it copied
  /// Of the sweep's metric, then; NaN is worst. None where it has reported nothing under its config.
  std::optional<double> value{};
  std::vector<CloneRecord> clones{};
  std::string why{};
  std::string state_hash{};

  bool has_ended() const { return state == "finished" || state == "stopped" || state == "failed"; }
};

/// The trials of one config, in a sweep that repeats each.
struct RepeatsRecord {
  int first = 0;  ///< trial
  nlohmann::ordered_json config;
  int trials = 0;        ///< that ended with a value
  double mean = 0;       ///< of their values; meaningful with trials
  double deviation = 0;  ///< of a sample; 0 of one trial
};

struct SweepRecords {
  std::string name;
  std::string path;
  std::vector<nlohmann::ordered_json> lines;  ///< the first says what the sweep is
  std::vector<TrialRecord> trials;            ///< that have reported, by number
  std::string metric;
  bool more_is_better = true;
  int wanted = 0;               ///< trials, in all
  int repeats = 1;              ///< so many trials in a row have one config
  int pid = 0;                  ///< of the program that sweeps; 0: none does
  std::int64_t changed_ms = 0;  ///< the last event, since 1970; 0: not known

  /// Of those that finished or were stopped; the first of equals. With repeats of those whose config has the
  /// best mean. Null: none.
  const TrialRecord* best() const;
  /// One for each config that has reported, in their order; none where nothing is repeated.
  std::vector<RepeatsRecord> repeated() const;
  /// The one with the best mean; none: nothing is repeated, or none has a value.
  std::optional<RepeatsRecord> best_repeated() const;
  bool is_better(const TrialRecord& a, const TrialRecord& b) const;
  bool is_better(const RepeatsRecord& a, const RepeatsRecord& b) const;
  int ended() const;
  /// "running", "done" or "interrupted".
  std::string state() const;
};

/// Total. Errors: kRefused where there is no such sweep; kCorrupt, with the line; kIo. A last line that is
/// not whole is left out, as the sweep does itself.
Result<SweepRecords> read_sweep(const std::string& folder, const std::string& name);

/// The sweeps in the folder, by name; what is no sweep is left out.
std::vector<std::string> sweeps_in(const std::string& folder);

/// The process that holds a lock on the file, as /proc/locks says; 0: none that can be seen.
int holder_of_lock(const std::string& path);

}  // namespace troupe::cli
