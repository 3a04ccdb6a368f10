/// Time in which a machine ran: what is due is due in that.
#pragma once

#include <optional>

#include "runtime/core/assert.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::cluster {

/// Time without the gaps in which whoever asks for it was stopped itself (SIGSTOP, a host that slept, a clock
/// that jumped): it can have heard and done nothing meanwhile, so nothing became due. Not thread-safe.
class RunningTime {
 public:
  /// Who asks for nothing for longer than `longest` was stopped. REQUIRES: it asks more often else.
  explicit RunningTime(Duration longest) : longest_(longest) {}

  /// REQUIRES: `now` does not go back.
  Instant at(Instant now) {
    const Duration gap = now - last_.value_or(now);
    TROUPE_ASSERT(gap >= Duration{0}, "time does not go back");
    if (gap > longest_) stopped_ += gap;
    last_ = now;
    return now - stopped_;
  }

 private:
  const Duration longest_;
  std::optional<Instant> last_;
  Duration stopped_{0};
};

}  // namespace troupe::cluster
