#include "collectives/native/link.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "runtime/core/abort_word.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie in memory");
constexpr std::uint32_t kMagic = 0x31435254;  // "TRC1"
constexpr std::size_t kMaxPieces = 16;        // of one sendmsg

template <class T>
void put(std::span<std::byte> to, std::size_t at, T value) {
  std::memcpy(to.data() + at, &value, sizeof value);
}
template <class T>
T get(std::span<const std::byte> from, std::size_t at) {
  T value;
  std::memcpy(&value, from.data() + at, sizeof value);
  return value;
}

ErrorInfo bad_frame(std::string why) {
  return {ErrorCode::kBadInput, "a frame from another rank does not decode", std::move(why),
          "the ranks run different builds"};
}

}  // namespace

FrameHeaderBytes encode(const FrameHeader& header) {
  FrameHeaderBytes bytes{};
  const ContractWords words = encode(header.contract);
  put(bytes, 0, kMagic);
  put(bytes, 4, static_cast<std::uint32_t>(header.kind));
  put(bytes, 8, header.sequence);
  put(bytes, 12, header.round);
  put(bytes, 16, words[0]);
  put(bytes, 24, words[1]);
  put(bytes, 32, header.payload_bytes);
  return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  if (get<std::uint32_t>(bytes, 0) != kMagic) return bad_frame("wrong magic");
  const auto kind = get<std::uint32_t>(bytes, 4);
  if (kind < 1 || kind > 3) return bad_frame("frame kind " + std::to_string(kind));
  auto contract = decode_contract({get<std::uint64_t>(bytes, 16), get<std::uint64_t>(bytes, 24)});
  if (!contract) return contract.error();
  FrameHeader header{.kind = static_cast<FrameKind>(kind),
                     .sequence = get<std::uint32_t>(bytes, 8),
                     .round = get<std::uint32_t>(bytes, 12),
                     .contract = *contract,
                     .payload_bytes = get<std::uint64_t>(bytes, 32)};
  if (header.kind == FrameKind::kAbort && header.payload_bytes > kMaxAbortReasonBytes) {
    return bad_frame("an abort reason of " + std::to_string(header.payload_bytes) + " bytes");
  }
  return header;
}

Link::Link(int rank, UniqueFd fd) : rank_(rank), fd_(std::move(fd)) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
  const int one = 1;  // fails on a Unix socket, which has nothing to delay
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

void Link::send(const FrameHeader& header, std::vector<std::span<const std::byte>> pieces) {
  TROUPE_ASSERT(!sending(), "one frame at a time");
  out_header_ = encode(header);
  out_ = std::move(pieces);
  std::erase_if(out_, [](const auto& piece) { return piece.empty(); });
  out_.insert(out_.begin(), out_header_);
}

bool Link::pump() {
  const bool out = pump_out();
  const bool in = pump_in();
  return out || in;
}

bool Link::pump_out() {
  bool moved = false;
  while (!out_.empty() && broken_.empty()) {
    std::array<iovec, kMaxPieces> pieces{};
    const std::size_t n = std::min(out_.size(), kMaxPieces);
    for (std::size_t i = 0; i < n; ++i) {
      pieces[i] = {const_cast<std::byte*>(out_[i].data()), out_[i].size()};
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = n;
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      // What the peer said before it went may still be in the socket: pump_in finds the end.
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EPIPE && errno != ECONNRESET) {
        broken_ = std::strerror(errno);
      }
      break;
    }
    moved = true;
    auto left = static_cast<std::size_t>(sent);
    while (!out_.empty() && left >= out_.front().size()) {
      left -= out_.front().size();
      out_.erase(out_.begin());
    }
    if (!out_.empty()) out_.front() = out_.front().subspan(left);
  }
  return moved;
}

bool Link::read_header() {
  const ssize_t got = ::recv(fd_.get(), in_header_.data() + in_header_bytes_,
                             kFrameHeaderBytes - in_header_bytes_, MSG_DONTWAIT);
  if (got < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) broken_ = std::strerror(errno);
    return false;
  }
  if (got == 0) {
    broken_ = "it closed the connection";
    return false;
  }
  in_header_bytes_ += static_cast<std::size_t>(got);
  if (in_header_bytes_ < kFrameHeaderBytes) return true;
  auto header = decode_header(in_header_);
  if (!header) {
    broken_ = header.error().message();
    return false;
  }
  header_ = *header;
  return true;
}

bool Link::pump_in() {
  bool moved = false;
  while (broken_.empty()) {
    if (!header_) {
      if (!read_header()) break;
      moved = true;
      continue;
    }
    if (into_.empty()) break;
    const ssize_t got = ::recv(fd_.get(), into_.data(), into_.size(), MSG_DONTWAIT);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) broken_ = std::strerror(errno);
      break;
    }
    if (got == 0) {
      broken_ = "it closed the connection in the middle of a frame";
      break;
    }
    into_ = into_.subspan(static_cast<std::size_t>(got));
    moved = true;
  }
  return moved;
}

void Link::receive_into(std::span<std::byte> into) {
  TROUPE_ASSERT(header_ && into.size() == header_->payload_bytes,
                "the payload has the length that is wanted");
  into_ = into;
  has_target_ = true;
}

void Link::next_frame() {
  TROUPE_ASSERT(received(), "a frame is whole before the next one");
  header_.reset();
  in_header_bytes_ = 0;
  has_target_ = false;
}

void Link::close_with(const std::string& reason) {
  if (std::exchange(closed_, true)) return;
  if (!sending()) {
    const auto text = std::as_bytes(std::span(reason)).first(std::min(reason.size(), kMaxAbortReasonBytes));
    send({.kind = FrameKind::kAbort, .payload_bytes = text.size()}, {text});
    pump_out();
  }
  out_.clear();
  ::shutdown(fd_.get(), SHUT_WR);
}

}  // namespace troupe::collectives
