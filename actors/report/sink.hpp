/// What takes a job's events: a terminal, a file of JSON lines, of CSV, of TensorBoard's.
#pragma once

#include "actors/report/events.hpp"
#include "runtime/core/result.hpp"

namespace troupe::report {

/// Not thread-safe.
class Sink {
 public:
  virtual ~Sink() = default;
  /// An error is told once; later events are dropped, and training goes on.
  virtual Result<void> take(const Event& event) = 0;
};

}  // namespace troupe::report
