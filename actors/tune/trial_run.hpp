/// A trial under way, whatever it is: a training run, or an actor of the user's.
#pragma once

#include <memory>
#include <optional>

#include "actors/report/events.hpp"
#include "actors/train/api/run.hpp"
#include "actors/train/snapshot.hpp"

namespace troupe::tune {

/// Holds after each epoch but the last, until go_on() or stop(). Any function may throw: that is the trial's
/// failure. Ends what it runs when it goes. Not thread-safe.
class TrialRun {
 public:
  TrialRun() = default;
  TrialRun(const TrialRun&) = delete;
  TrialRun& operator=(const TrialRun&) = delete;
  virtual ~TrialRun() = default;

  /// The next one that has happened; does not wait.
  virtual std::optional<report::Event> next_event() = 0;
  /// Not while it waits for room in the cluster, where that can be told.
  virtual bool has_begun() const { return true; }
  /// Every event was given, and no more comes.
  virtual bool is_over() const = 0;
  /// What came of it, once it is over.
  virtual train::RunResult wait() = 0;
  /// How it computes (numerics.hpp), once it has reported; empty: nobody knows.
  virtual std::string numerics() { return {}; }
  /// Its state, while it holds.
  virtual train::Snapshot snapshot() = 0;
  /// The same of one that others may go on from while it does.
  virtual train::Snapshot share() { return snapshot(); }
  virtual void go_on() = 0;
  virtual void stop() = 0;
  /// Its processes, for the next trial; it must not be used any more. None where they end with it.
  virtual train::Workers release() { return {}; }
};

class TrainingTrial final : public TrialRun {
 public:
  explicit TrainingTrial(train::Run run) : run_(std::move(run)) {}
  std::optional<report::Event> next_event() override {
    auto event = run_.next_event(Duration(0));
    has_begun_ = has_begun_ || (event && !std::holds_alternative<report::JobStarted>(*event) &&
                                !std::holds_alternative<report::Warning>(*event));
    return event;
  }
  bool has_begun() const override { return has_begun_; }
  bool is_over() const override { return run_.is_over(); }
  train::RunResult wait() override { return run_.wait(); }
  std::string numerics() override { return run_.numerics(); }
  train::Snapshot snapshot() override { return run_.snapshot(); }
  train::Snapshot share() override { return run_.share(); }
  train::Workers release() override { return run_.release(); }
  void go_on() override { run_.go_on(); }
  void stop() override { run_.stop(); }

 private:
  train::Run run_;
  bool has_begun_ = false;
};

}  // namespace troupe::tune
