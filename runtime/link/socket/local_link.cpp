#include "runtime/link/socket/local_link.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/core/assert.hpp"

namespace troupe::transport {
namespace {

constexpr int kBufferBytes = 4 << 20;
constexpr int kSendWaitMs = 10'000;

}  // namespace

Result<std::pair<LocalLink, LocalLink>> LocalLink::pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return io_error("cannot make a socket pair", errno, "raise ulimit -n");
  }
  for (const int end : ends) {
    ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes);
    ::setsockopt(end, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof kBufferBytes);
  }
  return std::pair{LocalLink(UniqueFd(ends[0])), LocalLink(UniqueFd(ends[1]))};
}

LinkStatus LocalLink::send(std::span<const std::byte> head, std::span<const std::byte> body, std::span<const int> fds,
                           bool block) {
  TROUPE_ASSERT(head.size() + body.size() <= kPacketMax && fds.size() <= kPacketFdsMax, "the layer above fragments");
  iovec parts[2] = {{const_cast<std::byte*>(head.data()), head.size()}, {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPacketFdsMax)] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return LinkStatus::kOk;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != ENOBUFS) return LinkStatus::kClosed;
    if (!block) return LinkStatus::kWouldBlock;
    pollfd wait{fd(), POLLOUT, 0};
    if (::poll(&wait, 1, kSendWaitMs) == 0) return LinkStatus::kWouldBlock;
  }
}

LinkStatus LocalLink::receive(Packet& packet, bool block) {
  packet.fds.clear();
  packet.bytes.resize(kPacketMax);
  iovec part{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPacketFdsMax)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(fd(), &message, MSG_CMSG_CLOEXEC | (block ? 0 : MSG_DONTWAIT));
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return LinkStatus::kWouldBlock;
  for (cmsghdr* header = got >= 0 ? CMSG_FIRSTHDR(&message) : nullptr; header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof received);
      packet.fds.emplace_back(received);
    }
  }
  if (got <= 0 || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return LinkStatus::kClosed;
  packet.bytes.resize(static_cast<std::size_t>(got));
  return LinkStatus::kOk;
}

bool LocalLink::peer_is_us() const {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

void LocalLink::shutdown() { ::shutdown(fd(), SHUT_RDWR); }

}  // namespace troupe::transport
