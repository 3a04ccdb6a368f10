/// What all schedulers share: which trial is in which state, and the choice of the first that waits.
#pragma once

#include <cmath>
#include <map>
#include <set>

#include "actors/tune/scheduler.hpp"

namespace troupe::tune {

enum class TrialStatus : std::uint8_t { kPending, kRunning, kPaused, kEnded, kFailed };

/// Trials in the order they were added; a retried one moves to the end.
class TrialList {
 public:
  void add(int trial);
  void set(int trial, TrialStatus state);
  TrialStatus state(int trial) const;
  bool waits(int trial) const;  ///< pending or paused
  bool any_waits() const { return !pending_.empty() || !paused_.empty(); }
  /// Those that are not kEnded: a trial that failed for good stays.
  bool is_live(int trial) const { return state(trial) != TrialStatus::kEnded; }
  /// The first pending one, else the first paused one.
  std::optional<int> first_waiting() const;
  std::vector<int> in_order() const;

 private:
  struct Entry {
    std::int64_t place = 0;
    TrialStatus state = TrialStatus::kPending;
  };
  std::int64_t next_place_ = 0;
  std::map<int, Entry> entries_;
  std::map<std::int64_t, int> places_;
  std::map<std::int64_t, int> pending_;  // by place
  std::map<std::int64_t, int> paused_;
};

/// Keeps the list in step with events and decisions. The hooks see a Reported trial as running.
class TrialScheduler : public Scheduler {
 public:
  explicit TrialScheduler(Mode mode) : mode_(mode) {}
  Decision step(const Event& event) final;

 protected:
  virtual Decision added(const Added&) { return {}; }
  virtual Decision choose();
  virtual Decision reported(const Reported&) { return {}; }
  /// The trial is kEnded already (kFailed after a Failed without retry).
  virtual Decision completed(const Completed&) { return {}; }
  virtual Decision failed(const Failed&) { return {}; }
  virtual Decision removed(const Removed&) { return {}; }

  /// Larger is better.
  double score(double metric) const { return mode_ == Mode::kMax ? metric : -metric; }
  Mode mode() const { return mode_; }
  const TrialList& trials() const { return trials_; }

 private:
  Mode mode_;
  TrialList trials_;
};

std::unique_ptr<Scheduler> make(const Fifo&, SchedulerContext, std::shared_ptr<Draws>);
std::unique_ptr<Scheduler> make(const Asha&, SchedulerContext, std::shared_ptr<Draws>);
std::unique_ptr<Scheduler> make(const HyperBand&, SchedulerContext, std::shared_ptr<Draws>);
std::unique_ptr<Scheduler> make(const MedianStopping&, SchedulerContext, std::shared_ptr<Draws>);
std::unique_ptr<Scheduler> make(const Pbt&, SchedulerContext, std::shared_ptr<Draws>);
std::unique_ptr<Scheduler> make(const PercentilePruner&, SchedulerContext, std::shared_ptr<Draws>);
std::unique_ptr<Scheduler> make(const MedianPruner&, SchedulerContext, std::shared_ptr<Draws>);
std::unique_ptr<Scheduler> make(const SuccessiveHalvingPruner&, SchedulerContext, std::shared_ptr<Draws>);
std::unique_ptr<Scheduler> make(const HyperbandPruner&, SchedulerContext, std::shared_ptr<Draws>);

/// Throws BadConfig about an option unless `holds`.
void require(bool holds, const char* option, const char* why);

}  // namespace troupe::tune
