/// The deadlines that a user may set.
#pragma once

#include "runtime/core/clock.hpp"

namespace troupe::train {

/// How long a job waits. Each is measured from the last progress, so that what goes on slowly goes on. One
/// that expires is told as a warning, and counted.
struct Deadlines {
  /// A trainer or loader that computes and shows no progress is killed: longer than any leaf (forward and
  /// backward of one micro-batch), apply() or get().
  Duration hang = std::chrono::seconds(120);
  Duration spawn = std::chrono::seconds(90);  ///< a trainer or loader that has not started is given up
  Duration gather =
      std::chrono::seconds(120);  ///< without enough trainers, or without a loader: the job fails
  /// A collective in which no rank moved is given up. 0: 30 s more than `hang`, so that whoever hangs is
  /// found first.
  Duration collective{0};
  Duration stop = std::chrono::seconds(30);  ///< after Ctrl-C: without progress, the job ends as it is
};

}  // namespace troupe::train
