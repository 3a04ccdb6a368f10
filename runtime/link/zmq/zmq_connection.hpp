/// What libzmq does not offer for one connection of a server: whose it is, how much came, and closing it. By
/// the descriptor, which libzmq may have closed since we heard of it: every function looks first that it is a
/// connection to our own `port`. Internal to zmq/.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::zmq_link {

/// The address at the other end, for the log.
std::string peer_address(int fd);
/// libzmq sees the end and lets go of it.
void close_connection(int fd, std::uint16_t port);
/// Bytes that TCP has received on it; 0 when that cannot be known.
std::uint64_t received_bytes(int fd, std::uint16_t port);

}  // namespace troupe::zmq_link
