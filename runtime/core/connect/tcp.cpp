#include "runtime/core/connect/tcp.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace troupe {
namespace {

constexpr int kBacklog = 4096;

}  // namespace

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  }
  return text;
}

Result<SocketAddress> socket_address(const Endpoint& endpoint) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (::inet_pton(AF_INET, endpoint.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(endpoint.port);
    address.length = sizeof v4;
    return address;
  }
  if (::inet_pton(AF_INET6, endpoint.host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(endpoint.port);
    address.length = sizeof v6;
    return address;
  }
  return ErrorInfo{ErrorCode::kBadConfig, "cannot use '" + endpoint.host + "' for connections between ranks",
                   "it is not a numeric address", "give an IPv4 or IPv6 address of the machine"};
}

std::string peer_name(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return "?";
  if (storage.ss_family == AF_UNIX) {
    ucred peer{};
    socklen_t size = sizeof peer;
    ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    return "pid " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid) + " on this host";
  }
  if (storage.ss_family != AF_INET && storage.ss_family != AF_INET6) return "?";
  const auto port = storage.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(storage).sin_port
                                                 : reinterpret_cast<const sockaddr_in6&>(storage).sin6_port;
  return to_string(Endpoint{address_text(reinterpret_cast<const sockaddr*>(&storage)), ntohs(port)});
}

Result<UniqueFd> dial(const Endpoint& at, Duration limit, bool* refused) {
  const auto set_refused = [refused](bool value) {
    if (refused != nullptr) *refused = value;
  };
  set_refused(false);
  const auto address = socket_address(at);
  if (!address) return address.error();
  UniqueFd fd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return io_error("cannot make a socket", errno, "raise ulimit -n");
  int error = 0;
  if (::connect(fd.get(), address->get(), address->length) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      pollfd ready{fd.get(), POLLOUT, 0};
      const MonotonicClock clock;
      const Instant until = clock.now() + limit;
      int n = 0;
      do {
        n = ::poll(&ready, 1, poll_millis(until - clock.now()));
      } while (n < 0 && errno == EINTR);
      if (n == 0) {
        return ErrorInfo{ErrorCode::kTimeout, "cannot connect to " + to_string(at), "it does not answer", ""};
      }
      socklen_t size = sizeof error;
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error != 0) {
    set_refused(error == ECONNREFUSED);
    return ErrorInfo{ErrorCode::kUnavailable, "cannot connect to " + to_string(at), std::strerror(error), ""};
  }
  // A port that is free and asked for over loopback can be connected with itself.
  sockaddr_storage own{};
  socklen_t own_length = sizeof own;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
      own_length == address->length && std::memcmp(&own, &address->storage, own_length) == 0) {
    set_refused(true);
    return ErrorInfo{ErrorCode::kUnavailable, "cannot connect to " + to_string(at), "nobody listens", ""};
  }
  return fd;
}

Result<DataListener> DataListener::bind(const Endpoint& at) {
  auto address = socket_address(at);
  if (!address) return address.error();
  DataListener listener;
  listener.fd_ =
      UniqueFd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.fd_) return io_error("cannot make a socket", errno, "raise ulimit -n");
  // A port that was asked for is free as soon as nobody listens; any port need not be one that was in use.
  const int reuse = at.port != 0 ? 1 : 0;
  ::setsockopt(listener.fd_.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  if (::bind(listener.fd_.get(), address->get(), address->length) != 0 ||
      ::listen(listener.fd_.get(), kBacklog) != 0) {
    return io_error("cannot listen for data connections at " + to_string(at), errno,
                    "give an address of this machine, and port 0 for a free port");
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(listener.fd_.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return io_error("cannot read the address of a socket", errno);
  }
  listener.endpoint_ = at;
  listener.endpoint_.port =
      ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                       : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
  return listener;
}

}  // namespace troupe
