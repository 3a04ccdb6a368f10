#include "runtime/core/clock.hpp"

#include <ctime>

namespace troupe {

Instant MonotonicClock::now() const {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec);
}

}  // namespace troupe
