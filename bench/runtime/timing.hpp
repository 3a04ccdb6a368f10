/// What this folder's benchmarks measure by.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "runtime/core/clock.hpp"

namespace bench {

inline double seconds_of(const std::function<void()>& work) {
  const troupe::MonotonicClock clock;
  const troupe::Instant begin = clock.now();
  work();
  return troupe::to_seconds(clock.now() - begin);
}

/// REQUIRES: some.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace bench
