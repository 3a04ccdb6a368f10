/// The way into the cluster of a program that one of its nodes started for a submitted job: through that
/// node.
#pragma once

#include <string>

#include "runtime/link/socket/socket_link.hpp"

namespace troupe {

/// The name of the socket on which the node waits for this job's drivers; empty in any other program.
std::string socket_of_this_job();
/// A link to the node, as a driver of it: with our executable, which it gives to other nodes. Throws
/// Unavailable (the job has ended), Refused (another user's socket), IoError.
SocketLink link_of_this_job(const std::string& socket);

}  // namespace troupe
