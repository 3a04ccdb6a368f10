/// How a connection to another host finds out that nobody is there any more.
#pragma once

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

/// Of a TCP socket: sends what is written at once, and ends it when the other host has been silent for about
/// 15 s, or has taken nothing of what was sent for `patience` (1 s to a day). Does nothing to other sockets.
void watch_silence(int fd, Duration patience = std::chrono::seconds(15));

}  // namespace troupe::collectives
