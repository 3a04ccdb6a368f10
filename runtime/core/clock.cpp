#include "runtime/core/clock.hpp"

#include <ctime>

#include "runtime/core/thread_floor.hpp"

namespace troupe {

Instant MonotonicClock::now() const {
  if (ThreadFloor* floor = ThreadFloor::current()) return floor->now();
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec);
}

}  // namespace troupe
