/// What follows from a SweepPlan before a trial starts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "actors/tune/sweep.hpp"

namespace troupe::tune {

/// Throws BadConfig: "cannot tune", why and what to do.
[[noreturn]] void refuse(const std::string& why, const std::string& todo);
/// Throws BadConfig for what makes no sense.
void check(const DriverSession& session, const SweepPlan& plan);

/// "digits-20261125-041530"
std::string name_now(const std::string& job);
/// What a sweep chooses by the cluster that it begins on, and keeps wherever it is resumed.
struct FirstCluster {
  double cpus = 0;  ///< threads = 0 are a trainer's share of them
  int places = 1;   ///< trials at a time: which trial begins when, and what a search knows by then
};
FirstCluster cluster_of(const SweepPlan& plan, const std::vector<cluster::NodeInfo>& nodes);

/// Made, or opened where the plan resumes: `first` is then what it began with. Its first line says what the
/// sweep is, what trains one of its trials again, and `first`. Throws BadConfig where the plan wants another
/// number of trials at a time than it began with.
RecordFile records_of(const SweepPlan& plan, const std::string& folder, FirstCluster& first);
std::unique_ptr<SweepMachine> machine_of(const SweepPlan& plan, int places);

/// The trial that TROUPE_TRIAL=NAME:NUMBER in the environment wants trained again; the plan is then of the
/// sweep NAME, which is there. None, and the plan resumes its own sweep, where that has another name and both
/// are there. Throws BadConfig for what is no such text, or of a sweep that is not there.
std::optional<int> trial_again(SweepPlan& plan);
/// A program that was started again (TROUPE_RESUME=auto) resumes the sweep of that name, where it had begun
/// it.
void go_on_if_started_again(SweepPlan& plan);

}  // namespace troupe::tune
