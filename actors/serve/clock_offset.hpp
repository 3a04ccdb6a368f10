/// How another process's clock stands to ours. Pure.
#pragma once

#include <algorithm>

#include "runtime/core/clock.hpp"

namespace troupe::serve {

/// Its clock minus ours, or more, by at most the shortest time that it took to hear its own: what is due by
/// that is due too late there rather than too early. Not thread-safe.
class ClockOffset {
 public:
  bool is_known() const { return known_; }
  /// `theirs`: what its clock said between `asked` and `now` of ours, which never goes back.
  void heard(Instant asked, Instant theirs, Instant now) {
    const Duration most = theirs - asked + drift(now - asked);
    const Duration before = offset(now);
    // A clock that stood still with its host, which was suspended, makes what was known wrong for good.
    const bool holds = known_ && before >= theirs - now;
    offset_ = holds ? std::min(before, most) : most;
    heard_ = now;
    known_ = true;
  }
  /// Of no meaning unless it is known.
  Duration offset(Instant now) const { return offset_ + drift(now - heard_); }

 private:
  /// By how much two clocks go apart at most in that time: NTP turns each by 500 millionths.
  static Duration drift(Duration time) { return time / 1000; }

  Duration offset_{};
  Instant heard_{};
  bool known_ = false;
};

}  // namespace troupe::serve
