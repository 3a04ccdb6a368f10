/// TCP connections: who listens, and how to reach who does.
#pragma once

#include <sys/socket.h>

#include <string>

#include "runtime/core/clock.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/fd.hpp"

namespace troupe {

/// A numeric endpoint as the kernel takes it. Errors: kBadConfig.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
Result<SocketAddress> socket_address(const Endpoint& endpoint);

/// The number of an address, without its port; empty: it has none.
std::string address_text(const sockaddr* address);
/// The other end of a connection, for people: its address and port, or its process, or "?".
std::string peer_name(int fd);

/// A connected stream socket. `at.host` is numeric. Errors: kUnavailable where nobody listens or the host
/// cannot be reached, kTimeout after `limit`. `refused`, if given: whether the host says that nobody listens
/// there, and not that it, a way to it or a descriptor of this process is missing.
Result<UniqueFd> dial(const Endpoint& at, Duration limit, bool* refused = nullptr);

/// A listening socket, open before its address is told to anybody.
class DataListener {
 public:
  /// `at`: a numeric host (no name: looking one up has no deadline); port 0 takes a free one. Errors:
  /// kBadConfig for a name, kIo for an address in use or not of this machine.
  static Result<DataListener> bind(const Endpoint& at);
  /// Where it listens, with the port that was taken.
  const Endpoint& endpoint() const { return endpoint_; }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  Endpoint endpoint_;
};

}  // namespace troupe
