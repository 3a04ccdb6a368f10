#include "runtime/link/zmq/zmq_strangers.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

namespace troupe::zmq_link {
namespace {

constexpr std::size_t kFewest = 64;
constexpr std::size_t kMost = 4096;

/// Who is at the other end of a connection, for the log.
std::string peer_address(int fd) {
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  char host[NI_MAXHOST];
  const bool known = ::getpeername(fd, reinterpret_cast<sockaddr*>(&from), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<sockaddr*>(&from), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0;
  return known ? host : "an address that is gone";
}

std::uint16_t local_port(int fd) {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) != 0) return 0;
  if (at.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(at).sin_port);
  if (at.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6&>(at).sin6_port);
  return 0;
}

}  // namespace

void close_connection(int fd, std::uint16_t port) {
  if (local_port(fd) == port) ::shutdown(fd, SHUT_RDWR);
}

std::size_t Strangers::most() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewest;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, kFewest, kMost);
}

void Strangers::accepted(int fd, std::uint16_t port, Instant now) {
  from_[fd] = peer_address(fd);
  oldest_first_.push_back(fd);
  while (!oldest_first_.empty() && (from_.size() > most() || !from_.contains(oldest_first_.front()))) {
    const int oldest = oldest_first_.front();
    oldest_first_.pop_front();
    if (from_.erase(oldest) == 0) continue;
    noise_("closed a connection: more than " + std::to_string(most()) + " have not finished their handshake", now);
    close_connection(oldest, port);
  }
}

void Strangers::closed(int fd, Instant now) {
  const auto stranger = from_.extract(fd);
  if (!stranger) return;
  if (refused_ > 0) {
    --refused_;
  } else {
    noise_("closed a connection from " + stranger.mapped() + ": no handshake of ours came from there", now);
  }
}

}  // namespace troupe::zmq_link
