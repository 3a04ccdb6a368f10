/// A wait for one descriptor.
#pragma once

#include "runtime/core/clock.hpp"

namespace troupe {

/// Waits until `fd` is readable, has an error or is hung up: of a pidfd, until its process has ended. False
/// after `timeout`, or at once if it is no descriptor. A signal does not cut it short.
bool wait_readable(int fd, Duration timeout);

}  // namespace troupe
