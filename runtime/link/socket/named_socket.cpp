#include "runtime/link/socket/named_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace troupe {
namespace {

/// As SocketLink::pair has it: a packet of 64 KiB fits several times.
constexpr int kNamedBufferBytes = 1 << 20;
constexpr int kBacklog = 16;

Result<socklen_t> fill(sockaddr_un& address, const std::string& name) {
  if (name.empty() || name.size() + 1 > sizeof address.sun_path)
    return ErrorInfo{ErrorCode::kBadConfig, "cannot use a socket",
                     "'" + name.substr(0, 120) + "' is no name of one", ""};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // after a zero byte: no file
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

void widen(int fd) {
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kNamedBufferBytes, sizeof kNamedBufferBytes);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kNamedBufferBytes, sizeof kNamedBufferBytes);
}

}  // namespace

Result<UniqueFd> listen_by_name(const std::string& name) {
  sockaddr_un address{};
  const auto length = fill(address, name);
  if (!length) return length.error();
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), *length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0)
    return io_error("cannot listen for a job's drivers", errno, "raise ulimit -n");
  return fd;
}

Result<SocketLink> accept_by_name(const UniqueFd& listening) {
  UniqueFd fd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED || errno == EINTR))
    return ErrorInfo{ErrorCode::kUnavailable, "no connection", "nobody waits", ""};
  if (!fd) return io_error("cannot accept a job's driver", errno, "raise ulimit -n");
  widen(fd.get());
  return SocketLink(std::move(fd));
}

Result<SocketLink> connect_by_name(const std::string& name, bool waits) {
  const std::string what = "cannot join the cluster through the node that runs this job";
  sockaddr_un address{};
  const auto length = fill(address, name);
  if (!length) return length.error();
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), 0));
  if (!fd) return io_error(what, errno, "raise ulimit -n");
  widen(fd.get());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), *length) != 0) {
    if (!waits && (errno == EAGAIN || errno == EWOULDBLOCK))
      return ErrorInfo{ErrorCode::kTimeout, what, "too many wait there already", ""};
    return ErrorInfo{ErrorCode::kUnavailable, what,
                     std::string("its socket is gone: ") + std::strerror(errno),
                     "the job has ended: run the program by itself, or submit it again"};
  }
  SocketLink link(std::move(fd));
  if (!link.peer_is_us())
    return ErrorInfo{ErrorCode::kRefused, what, "another user listens there", "unset TROUPE_NODE_SOCKET"};
  return link;
}

}  // namespace troupe
