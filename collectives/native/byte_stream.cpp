#include "collectives/native/byte_stream.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace troupe::collectives {
namespace {

constexpr std::size_t kMaxPieces = 16;  // of one sendmsg

}  // namespace

SocketStream::SocketStream(UniqueFd fd, Duration patience) : fd_(std::move(fd)) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
  const auto set = [&](int level, int option, int value) {  // fails on a Unix socket, which has none of it
    ::setsockopt(fd_.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 6);  // seconds
  set(IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  const auto longest = std::chrono::hours(24) / std::chrono::milliseconds(1);
  const auto limit = std::clamp<std::int64_t>(patience / std::chrono::milliseconds(1), 1000, longest);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit));
}

std::size_t SocketStream::write(std::span<const std::span<const std::byte>> pieces) {
  if (!broken_.empty()) return 0;
  std::array<iovec, kMaxPieces> parts{};
  const std::size_t n = std::min(pieces.size(), kMaxPieces);
  for (std::size_t i = 0; i < n; ++i) {
    parts[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = n;
  while (true) {
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EINTR) continue;
    // What the peer said before it went may still be in the socket: read finds the end.
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EPIPE && errno != ECONNRESET) {
      broken_ = std::strerror(errno);
    }
    return 0;
  }
}

std::size_t SocketStream::read(std::span<std::byte> into) {
  if (!broken_.empty() || into.empty()) return 0;
  while (true) {
    const ssize_t got = ::recv(fd_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    // A reset is how a close looks of which the peer had not read all that was sent to it.
    broken_ = got == 0 || errno == ECONNRESET ? "it closed the connection" : std::strerror(errno);
    return 0;
  }
}

void SocketStream::end() {
  ::shutdown(fd_.get(), SHUT_WR);
}

std::size_t RingStream::write(std::span<const std::span<const std::byte>> pieces) {
  std::size_t written = 0;
  for (const auto piece : pieces) {
    const std::size_t fit = out_.put(piece);
    written += fit;
    if (fit != piece.size()) break;
  }
  if (written != 0) out_.publish_written();
  return written;
}

std::size_t RingStream::read(std::span<std::byte> into) {
  const std::size_t got = in_.take(into);
  if (in_.lies()) broken_ = "its ring in shared memory is not in order";
  return got;
}

}  // namespace troupe::collectives
