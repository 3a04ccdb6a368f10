/// A sweep on the simulated cluster: trials are actors in processes of their own, which the driver program
/// steps as tune::run does; what was decided outlives the program, on a disk of its own.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/tune/records.hpp"
#include "actors/tune/sweep_machine.hpp"
#include "actors/tune/trial_run.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

struct Driver;

struct SweepScenario {
  tune::SweepConfig config;
  tune::AnyScheduler scheduler;
  std::uint64_t seed = 0;
  /// Decisions do not depend on the order of reports: neither does the best.
  bool any_order = false;
};
SweepScenario draw_sweep(std::uint64_t seed, int most_places);

/// What a trial comes to, and where it has been: a function of its configs.
struct Walk {
  int epoch = 0;
  std::uint64_t path = 0;
  void step(double lr);
  double value() const;
};

/// What outlives the program, and what must hold of it.
class SweepReferee {
 public:
  SweepReferee(World& world, const SweepScenario& scenario);

  std::vector<std::string> lines;  ///< of the records
  std::map<tune::StateNumber, train::Snapshot> states;

  /// An event was decided on: nothing counts twice, and every report is what its configs make.
  void decided(const tune::SweepEvent& event, const tune::Trial& before, const tune::SweepStep& step);
  /// All trials are over, and the best is the undisturbed sweep's.
  void over(const tune::SweepMachine& machine);

  int reports = 0;
  int failures = 0;
  int clones = 0;

 private:
  World& world_;
  const SweepScenario& scenario_;
  std::map<int, std::map<int, Walk>> walks_;          ///< by trial and epoch
  std::set<std::tuple<int, std::size_t, int>> told_;  ///< trial, clones made of it, epoch
  std::set<int> ended_;
};

/// The program's part.
class SweepProgram {
 public:
  explicit SweepProgram(Driver& driver);
  ~SweepProgram();
  /// Until it is over; false: the program has died, or lost its node.
  bool run();

 private:
  bool goes_on() const;
  void replay();
  bool look_at(int trial);
  void feed(const tune::SweepEvent& event);
  bool write(const std::vector<std::string>& lines);
  bool save(int trial, tune::StateNumber number);
  void forget_last_step();
  void act(const tune::StartTrial& a);
  void act(const tune::GoOnTrial& a);
  void act(const tune::StopTrial& a);
  void act(const tune::PauseTrial& a) { runs_.erase(a.trial); }
  void act(const tune::DropTrial& a) { runs_.erase(a.trial); }
  template <class Other>
  void act(const Other& /*nothing to do*/) {}
  void carry_out(const tune::SweepStep& step);

  Driver& driver_;
  SweepReferee& disk_;
  const SweepScenario& scenario_;
  std::unique_ptr<tune::SweepMachine> machine_;
  std::vector<tune::SweepEvent> decided_;
  std::map<int, std::unique_ptr<tune::TrialRun>> runs_;
  std::vector<tune::TrialFailed> failures_;
};

}  // namespace troupe::sim
