/// The driver of a job as a pure state machine: deals logical ranks, opens generations, commits steps, runs
/// recovery. Events in, actions out; no clock, no I/O. docs/step-commit.md draws it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/train/driver_types.hpp"
#include "actors/train/ledger.hpp"
#include "actors/train/mutations.hpp"

namespace troupe::train {

/// Not thread-safe.
class DriverMachine {
 public:
  enum class State : std::uint8_t {
    kGathering,  ///< not enough trainers: the first ones start, or too few survived
    kQuiescing,  ///< a new generation is open; waits for what everyone holds
    kForming,    ///< the plan is out; waits for the group and the state on every member
    kRunning,    ///< steps run and commit
    kErrand,     ///< at a barrier: evaluation, checkpoint or final hash
    kDone,
    kFailed,
  };

  /// REQUIRES: 1 <= min_trainers <= trainers <= logical_ranks, 1 <= loaders, epochs, steps_per_epoch.
  explicit DriverMachine(DriverConfig config, Mutations mutations = {});

  /// The first actions: the spawns. Call once.
  std::vector<DriverAction> start(Instant now);
  /// Call with DriverTick about ten times a second. `now` never goes back.
  std::vector<DriverAction> on(const DriverEvent& event, Instant now);

  State state() const { return state_; }
  Generation generation() const { return generation_; }
  const Ledger& ledger() const { return ledger_; }
  /// Steps committed.
  std::int64_t committed() const { return ledger_.committed(); }
  /// Why the last event was ignored; empty if it was not.
  const std::string& ignored() const { return ignored_; }

 private:
  DriverConfig config_;
  Mutations mutations_;
  State state_ = State::kGathering;
  Generation generation_;
  Ledger ledger_;
  std::string ignored_;
};

}  // namespace troupe::train
