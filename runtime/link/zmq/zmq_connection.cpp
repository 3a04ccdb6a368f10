#include "runtime/link/zmq/zmq_connection.hpp"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace troupe::zmq_link {
namespace {

std::uint16_t local_port(int fd) {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) != 0) return 0;
  if (at.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(at).sin_port);
  if (at.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6&>(at).sin6_port);
  return 0;
}

}  // namespace

std::string peer_address(int fd) {
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  char host[NI_MAXHOST];
  const bool known = ::getpeername(fd, reinterpret_cast<sockaddr*>(&from), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<sockaddr*>(&from), length, host, sizeof host, nullptr, 0,
                                   NI_NUMERICHOST) == 0;
  return known ? host : "an address that is gone";
}

void close_connection(int fd, std::uint16_t port) {
  if (local_port(fd) == port) ::shutdown(fd, SHUT_RDWR);
}

std::uint64_t received_bytes(int fd, std::uint16_t port) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (local_port(fd) != port || ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  const bool is_told = length >= offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received;
  return is_told ? info.tcpi_bytes_received : 0;
}

}  // namespace troupe::zmq_link
