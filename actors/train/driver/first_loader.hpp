/// How long the job's first loader may take, which finds out how much data there is, and whether another one
/// is tried when it dies: the driver's machine begins once that is known.
#pragma once

#include <optional>
#include <string>

#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

/// Pure: time and events come in. Not thread-safe.
class FirstLoader {
 public:
  FirstLoader(Deadlines deadlines, RestartPolicy restart) : deadlines_(deadlines), restart_(restart) {}

  /// It is being started: its constructor runs the job's dataset().
  void starts(Instant now) { since_ = now, reads_ = false; }
  /// It is up, and reads the first batch.
  void reads(Instant now) { since_ = now, reads_ = true; }
  void heard(const Progress& progress, Instant now);
  /// The data are known, or the job is over.
  void done() { since_.reset(); }
  /// Why it is given up now, if it is.
  std::optional<std::string> overdue(Instant now) const;
  /// The job's code threw while it read: whether it is asked again, as later ones are for a batch.
  bool read_again() { return ++throws_ < kTries; }
  /// It died: whether another one may do better.
  bool try_again(const std::string& how);
  /// How long to wait before it is.
  Duration pause() const;

 private:
  static constexpr int kTries = 3;
  Deadlines deadlines_;
  RestartPolicy restart_;
  std::optional<Instant> since_;  ///< the last sign of progress, while it is waited for
  bool reads_ = false;
  Progress progress_;
  int deaths_ = 0;
  int throws_ = 0;
};

}  // namespace troupe::train
