/// How often a run that lost its driver goes on. Pure.
#pragma once

#include <cstdint>

namespace troupe::train {

class RunLosses {
 public:
  explicit RunLosses(int most) : most_(most) {}

  /// So many steps are committed.
  void reached(std::int64_t steps) {
    if (steps <= furthest_) return;
    furthest_ = steps;
    in_a_row_ = 0;
  }
  /// The driver is lost. False: for the last time, since no new highest step was reached in between.
  bool goes_on() { return ++in_a_row_ < most_; }

  std::int64_t furthest() const { return furthest_; }
  int in_a_row() const { return in_a_row_; }

 private:
  const int most_;
  std::int64_t furthest_ = 0;
  int in_a_row_ = 0;
};

}  // namespace troupe::train
