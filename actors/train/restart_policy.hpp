/// How often what died is tried again.
#pragma once

#include "runtime/core/clock.hpp"

namespace troupe::train {

/// Failures are answered with a pause that doubles, and a bounded number of times.
struct RestartPolicy {
  int budget = 16;  ///< in a row without progress, whatever caused them, before it gives up
  /// At one step, of those that the job's own code is blamed for (ended_by_itself, a hang, a standstill),
  /// before the job fails.
  int at_one_step = 3;
  Duration first_pause = std::chrono::milliseconds(100);
  Duration longest_pause = std::chrono::seconds(10);
  /// Before the next try after so many failures in a row.
  Duration pause_after(int failures) const;
};

}  // namespace troupe::train
