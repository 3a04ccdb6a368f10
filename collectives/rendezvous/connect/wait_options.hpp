/// How long to wait for the other ranks while a group is formed.
#pragma once

#include <algorithm>
#include <functional>

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

struct WaitOptions {
  Duration timeout = std::chrono::minutes(5);
  std::function<bool()> aborted = [] { return false; };
  int abort_fd = -1;  ///< readable once `aborted` is true; -1: `aborted` is asked every 50 ms
};

/// For poll, beside `abort_fd`: until `until`, or the next look at `aborted`.
inline int wait_ms(Instant now, Instant until, const WaitOptions& options) {
  if (options.abort_fd < 0) until = std::min(until, now + std::chrono::milliseconds(50));
  return poll_millis(until - now);
}

}  // namespace troupe::collectives
