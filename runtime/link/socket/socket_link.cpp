#include "runtime/link/socket/socket_link.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>

#include "runtime/core/assert.hpp"
#include "runtime/link/fragment.hpp"
#include "runtime/link/socket/descriptors.hpp"

namespace troupe {
namespace {

constexpr std::size_t kPacketBytes = 64 * 1024;
constexpr int kBufferBytes = 4 << 20;
constexpr const char* kOtherEnded = "the other end of the socket closed";

enum class Wrote { kAll, kNoRoom, kBroken };

/// Writes one packet. ETOOMANYREFS: more descriptors are under way than the limit allows; they arrive, so it
/// passes.
Wrote write_packet(int socket, const Packet& packet, const std::vector<UniqueFd>& fds) {
  iovec parts[3];
  int count = 0;
  for (const wire::ByteView part : {wire::ByteView(packet.header), packet.head, packet.body}) {
    if (!part.empty()) parts[count++] = {const_cast<std::byte*>(part.data()), part.size()};
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<std::size_t>(count);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxMessageFds)] = {};
  if (!fds.empty()) {
    int numbers[kMaxMessageFds];
    std::transform(fds.begin(), fds.end(), numbers, [](const UniqueFd& fd) { return fd.get(); });
    attach_descriptors(message, control, std::span(numbers, fds.size()));
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Wrote::kAll;
    if (errno == EINTR) continue;
    const bool passes = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM ||
                        errno == ETOOMANYREFS;
    return passes ? Wrote::kNoRoom : Wrote::kBroken;
  }
}

}  // namespace

struct SocketLink::State {
  /// A message that waits, or the rest of one. `head` and `body` never move: the deque keeps its elements in
  /// place.
  struct Waiting {
    wire::HeaderBytes head;
    wire::Bytes body;
    std::vector<UniqueFd> fds;  ///< go with the next packet, which is the first
    Cutter cutter;

    std::size_t bytes() const { return head.size() + body.size(); }
  };

  UniqueFd socket;
  std::size_t queue_bytes = 0;

  // The receiving thread's alone:
  Joiner joiner;
  std::vector<std::byte> packet;
  std::vector<UniqueFd> fds;  ///< of the message that arrives

  mutable std::mutex mutex;  ///< guards all below
  std::deque<Waiting> queue;
  std::size_t waiting_bytes = 0;
  std::uint32_t last_number = 0;
  bool closed = false;
  std::string why;

  /// REQUIRES: mutex is held.
  void close(std::string_view reason) {
    if (!closed) why = reason;
    closed = true;
    queue.clear();
    waiting_bytes = 0;
  }
  /// Writes what the socket takes of one message. REQUIRES: mutex is held.
  Wrote write(Cutter& cutter, std::vector<UniqueFd>& with) {
    while (!cutter.done()) {
      const Wrote wrote = write_packet(socket.get(), cutter.next(), with);
      if (wrote != Wrote::kAll) return wrote;
      with.clear();
      cutter.advance();
    }
    return Wrote::kAll;
  }
  void end(std::string_view reason);
  bool receive_packet(std::size_t& size, bool& closed_now);
};

SocketLink::SocketLink() = default;
SocketLink::SocketLink(UniqueFd socket, std::size_t queue_bytes) : state_(std::make_unique<State>()) {
  state_->socket = std::move(socket);
  state_->queue_bytes = queue_bytes;
}
SocketLink::SocketLink(SocketLink&&) noexcept = default;
SocketLink& SocketLink::operator=(SocketLink&&) noexcept = default;
SocketLink::~SocketLink() = default;

Result<std::pair<SocketLink, SocketLink>> SocketLink::pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return io_error("cannot make a socket pair", errno, "raise ulimit -n");
  }
  for (const int end : ends) {
    ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof kBufferBytes);
    ::setsockopt(end, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof kBufferBytes);
  }
  return std::pair{SocketLink(UniqueFd(ends[0])), SocketLink(UniqueFd(ends[1]))};
}

Sent SocketLink::send(const wire::FrameHeader& header, wire::ByteView body, std::vector<UniqueFd>&& fds) {
  TROUPE_ASSERT(fds.size() <= kMaxMessageFds, "a message carries four descriptors at most");
  if (body.size() > wire::kMaxBodyBytes) return Sent::kTooLarge;
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.closed) return Sent::kClosed;
  if (s.waiting_bytes >= s.queue_bytes) return Sent::kFull;
  const wire::HeaderBytes head = wire::encode_header(header);
  Cutter cutter(s.last_number + 1, head, body, kPacketBytes);
  if (s.queue.empty()) {
    const Wrote wrote = s.write(cutter, fds);
    if (wrote == Wrote::kBroken) {
      s.close(kOtherEnded);
      return Sent::kClosed;
    }
    if (wrote == Wrote::kAll) {
      ++s.last_number;
      fds.clear();
      return Sent::kQueued;
    }
  }
  ++s.last_number;
  State::Waiting& waiting = s.queue.emplace_back(State::Waiting{head, {}, std::move(fds), {}});
  fds.clear();
  waiting.body.assign(body.begin(), body.end());
  const std::size_t sent = cutter.sent_bytes();
  waiting.cutter = Cutter(s.last_number, waiting.head, waiting.body, kPacketBytes);
  while (waiting.cutter.sent_bytes() < sent) waiting.cutter.advance();
  s.waiting_bytes += waiting.bytes();
  return Sent::kQueued;
}

bool SocketLink::wants_write() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->queue.empty();
}

bool SocketLink::has_room() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->closed && state_->waiting_bytes < state_->queue_bytes;
}

void SocketLink::flush() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  while (!s.queue.empty()) {
    State::Waiting& first = s.queue.front();
    const Wrote wrote = s.write(first.cutter, first.fds);
    if (wrote == Wrote::kNoRoom) return;
    if (wrote == Wrote::kBroken) {
      s.close(kOtherEnded);
      return;
    }
    s.waiting_bytes -= first.bytes();
    s.queue.pop_front();
  }
}

/// Receives one packet into `packet`. False: nothing is there, or the link is at its end.
bool SocketLink::State::receive_packet(std::size_t& size, bool& ended) {
  packet.resize(kPacketBytes);
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxMessageFds)];
  for (;;) {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) {
      // The peer closed with something of ours unread. It is told once; what the peer wrote before is still
      // there.
      if (errno == EINTR || errno == ECONNRESET) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      end(std::string("the socket failed: ") + std::strerror(errno));
      ended = true;
      return false;
    }
    take_descriptors(message, fds);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      end("descriptors that came with a message were lost: this process has as many open as it may (raise "
          "ulimit -n)");
    } else if (fds.size() > kMaxMessageFds) {
      end("a message with more than four descriptors came");
    } else if ((message.msg_flags & MSG_TRUNC) != 0) {
      end("a packet longer than 64 KiB came");
    } else if (got == 0) {
      const std::lock_guard lock(mutex);
      close(kOtherEnded);
    } else {
      size = static_cast<std::size_t>(got);
      return true;
    }
    ended = true;
    return false;
  }
}

SocketLink::Got SocketLink::receive(Message& message) {
  State& s = *state_;
  for (;;) {
    std::size_t size = 0;
    bool ended = false;
    if (!s.receive_packet(size, ended)) return ended ? Got::kClosed : Got::kNothing;
    const auto fed = s.joiner.feed(wire::ByteView(s.packet).first(size));
    if (!fed) {
      s.end(fed.error().why);
      return Got::kClosed;
    }
    if (*fed == Joiner::Fed::kGoodbye) {
      const std::lock_guard lock(s.mutex);
      s.close("the other end closed: " + s.joiner.reason());
      return Got::kClosed;
    }
    if (*fed != Joiner::Fed::kMessage) continue;
    message.header = s.joiner.header();
    message.body = s.joiner.take();
    message.fds = std::exchange(s.fds, {});
    return Got::kMessage;
  }
}

std::string SocketLink::why_closed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->why;
}

bool SocketLink::peer_is_us() const {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

int SocketLink::peer_pid() const {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

int SocketLink::fd() const {
  return state_ == nullptr ? -1 : state_->socket.get();
}
UniqueFd& SocketLink::socket() {
  return state_->socket;
}

/// Closes our side: the peer is told why, and hears the end after all that it has got.
void SocketLink::State::end(std::string_view reason) {
  const std::lock_guard lock(mutex);
  if (!closed) {
    // Packets of queued messages were not written: the number is that of the last one begun.
    const bool begun = queue.empty() || queue.front().cutter.sent_bytes() > 0;
    const auto unsent = static_cast<std::uint32_t>(queue.size()) - (begun && !queue.empty() ? 1U : 0U);
    const wire::Bytes goodbye = goodbye_packet(last_number - unsent, reason);
    Packet packet_out;
    std::copy_n(goodbye.begin(), kPacketHeaderBytes, packet_out.header.begin());
    packet_out.body = wire::ByteView(goodbye).subspan(kPacketHeaderBytes);
    write_packet(socket.get(), packet_out, {});
  }
  close(reason);
  ::shutdown(socket.get(), SHUT_RDWR);
}

void SocketLink::shutdown(std::string_view reason) {
  state_->end(reason);
}

}  // namespace troupe
