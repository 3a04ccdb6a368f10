/// A Unix socket with a name, in the abstract space: no file, gone with its last descriptor. For processes
/// that were not started with a link of their own. Whoever knows the name can connect: both ends check the
/// other's user (SocketLink::peer_is_us).
#pragma once

#include <string>

#include "runtime/link/socket/socket_link.hpp"

namespace troupe {

/// Non-blocking; readable when somebody has connected. Errors: kIo.
Result<UniqueFd> listen_by_name(const std::string& name);
/// The next connection. Errors: kUnavailable (nobody waits), kIo.
Result<SocketLink> accept_by_name(const UniqueFd& listening);
/// Errors: kUnavailable (nobody listens there), kRefused (another user does), and, unless it `waits` for room
/// among those that wait there, kTimeout.
Result<SocketLink> connect_by_name(const std::string& name, bool waits = true);

}  // namespace troupe
