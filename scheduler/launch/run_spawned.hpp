/// The other end of launch::spawn: what its processes do.
#pragma once

#include "runtime/link/socket/socket_link.hpp"

namespace troupe::launch {

/// Runs the function that comes over the link, says how it went, and returns the process's exit code.
int run_spawned(SocketLink link);

}  // namespace troupe::launch
