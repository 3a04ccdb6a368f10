#include "collectives/native/byte_stream.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "collectives/watch_silence.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kMaxPieces = 16;  // of one sendmsg
constexpr std::size_t kSealedBytes = 64 * 1024;

}  // namespace

SocketStream::SocketStream(UniqueFd fd) : fd_(std::move(fd)) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
  watch_silence(fd_.get(), false);
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
  fin_ = 1;
}

bool SocketStream::has_arrived() {
  std::array<std::byte, 16 * 1024> dropped;
  while (broken_.empty() && read(dropped) != 0) {
  }
  int domain = AF_UNSPEC, left = 0;
  socklen_t size = sizeof domain;
  ::getsockopt(fd_.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size);
  // Within a host what was written is there, and a close throws nothing away.
  if (!broken_.empty() || domain == AF_UNIX) return true;
  return ::ioctl(fd_.get(), SIOCOUTQ, &left) != 0 || left <= fin_;
}

SealedStream::SealedStream(std::unique_ptr<ByteStream> inner, const SessionKeys& keys)
    : inner_(std::move(inner)), sealer_(keys.out), opener_(keys.in, kSealedBytes) {}

std::size_t SealedStream::write(std::span<const std::span<const std::byte>> pieces) {
  if (sealed_.empty()) {
    plain_.clear();
    for (const auto piece : pieces) {
      const auto part = piece.first(std::min(piece.size(), kSealedBytes - plain_.size()));
      plain_.insert(plain_.end(), part.begin(), part.end());
    }
    if (plain_.empty()) return 0;
    sealer_.seal(plain_, sealed_);
    out_ = 0;
  }
  while (out_ < sealed_.size()) {
    const std::span<const std::byte> left = std::span(sealed_).subspan(out_);
    const std::size_t sent = inner_->write(std::span(&left, 1));
    if (sent == 0) {
      broken_ = inner_->broken();
      return 0;
    }
    out_ += sent;
  }
  sealed_.clear();
  return plain_.size();
}

std::size_t SealedStream::read(std::span<std::byte> into) {
  if (into.empty()) return 0;
  while (taken_ == opened_.size()) {
    if (!broken_.empty()) return 0;
    auto bytes = opener_.next_bytes();
    if (!bytes) {
      broken_ = bytes.error().message();
      return 0;
    }
    if (!*bytes) {
      const std::size_t got = inner_->read(opener_.room());
      opener_.commit(got);
      if (got != 0) continue;
      broken_ = inner_->broken();
      if (!broken_.empty() && !opener_.empty()) broken_ += ", in the middle of a frame";
      return 0;
    }
    opened_.resize(**bytes);
    taken_ = 0;
    if (auto whole = opener_.open(opened_); !whole) {
      opened_.clear();
      broken_ = whole.error().message();
      return 0;
    }
  }
  const std::size_t got = std::min(into.size(), opened_.size() - taken_);
  std::memcpy(into.data(), opened_.data() + taken_, got);
  taken_ += got;
  return got;
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
  if (in_.is_corrupt()) broken_ = "its ring in shared memory is not in order";
  return got;
}

}  // namespace troupe::collectives
