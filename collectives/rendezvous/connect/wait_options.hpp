/// How long to wait for the other ranks while a group is formed.
#pragma once

#include <functional>

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

struct WaitOptions {
  Duration timeout = std::chrono::minutes(5);
  std::function<bool()> aborted = [] { return false; };
  int abort_fd = -1;  ///< readable once `aborted` is true; -1: `aborted` is asked every 50 ms
};

}  // namespace troupe::collectives
