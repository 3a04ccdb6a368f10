/// Names and addresses of machines, for a rendezvous.
#pragma once

#include <string>

#include "runtime/core/connect/tcp.hpp"

namespace troupe::collectives {

/// "pid 4711 on host", as ranks are called in errors.
std::string who_we_are();

/// The numeric address of a host name (IPv4 before IPv6); numbers and "localhost" need no look-up. Errors:
/// kUnavailable where nobody knows the name, kTimeout after `limit`.
Result<std::string> resolve(const std::string& host, Duration limit);

/// A name in the abstract namespace of Unix sockets, which leaves nothing behind. At most 64 characters.
SocketAddress abstract_address(const std::string& name);
/// Whether the other end of a Unix socket is, or was made by, a process of this user.
bool is_same_user(int fd);
/// A connection to an abstract Unix socket of this user in this network namespace. Errors: kUnavailable.
Result<UniqueFd> dial_abstract(const std::string& name);

/// The numeric address of this machine's end of a connection; empty: it is a Unix socket.
Result<std::string> own_address(int fd);

/// Processes for which this is the same can share memory and meet at an abstract socket: the machine's boot,
/// the network namespace and the user.
std::string host_identity();

}  // namespace troupe::collectives
