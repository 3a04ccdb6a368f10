#include "runtime/core/held_port.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cerrno>

namespace troupe {
namespace {

/// Whether a socket may listen there: a bind beside one that listens fails, a bind of a socket that will not
/// does not.
bool may_listen(std::uint16_t port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  return fd && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 &&
         ::listen(fd.get(), 1) == 0;
}

}  // namespace

Result<HeldPort> HeldPort::hold(std::uint16_t port) {
  HeldPort held;
  held.fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!held.fd_) return io_error("cannot make a socket for MASTER_PORT", errno, "raise ulimit -n");
  const int on = 1;
  ::setsockopt(held.fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  socklen_t size = sizeof at;
  if (::bind(held.fd_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      ::getsockname(held.fd_.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0 ||
      (port != 0 && !may_listen(port))) {
    return ErrorInfo{ErrorCode::kUnavailable, "cannot use port " + std::to_string(port) + " for rank 0",
                     io_error("", errno).why, "leave --master-port out, or give another"};
  }
  held.port_ = ntohs(at.sin_port);
  return held;
}

}  // namespace troupe
