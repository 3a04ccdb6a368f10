/// Time, as one of the four seams. Nothing below actors/ reads the time except through a Clock, and decisions
/// take `now` as an argument. Only monotonic time exists here: wall-clock jumps have no effect.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace troupe {

/// Nanoseconds. Instants count from an arbitrary start that all processes of one machine share.
using Duration = std::chrono::nanoseconds;
using Instant = std::chrono::nanoseconds;

inline double to_seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}
inline double to_millis(Duration d) {
  return to_seconds(d) * 1e3;
}

/// What to tell poll of so long: rounded up, an hour at most.
inline int poll_millis(Duration left) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(
                              std::clamp<Duration>(left, Duration::zero(), std::chrono::hours(1)))
                              .count());
}

/// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant now() const = 0;
};

/// CLOCK_MONOTONIC.
class MonotonicClock final : public Clock {
 public:
  Instant now() const override;
};

/// A clock that moves only when told to. Not thread-safe: simulations run in one thread.
class ManualClock final : public Clock {
 public:
  Instant now() const override { return now_; }
  void set(Instant now) { now_ = now; }
  void advance(Duration by) { now_ += by; }

 private:
  Instant now_{0};
};

}  // namespace troupe
