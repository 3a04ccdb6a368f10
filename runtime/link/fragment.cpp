#include "runtime/link/fragment.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace troupe {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and copied as it is");

constexpr std::uint16_t kMagic = 0x4c54;
constexpr std::size_t kReserveAhead = std::size_t{1} << 20;

enum class Kind : std::uint8_t { kHello = 1, kFirst = 2, kNext = 3, kGoodbye = 4 };

struct Layout {
  std::uint16_t magic;
  std::uint8_t version;
  Kind kind;
  std::uint32_t number;
  std::uint64_t remaining;
};
static_assert(sizeof(Layout) == kPacketHeaderBytes);

PacketHeader encode(Kind kind, std::uint32_t number, std::uint64_t remaining) {
  return std::bit_cast<PacketHeader>(Layout{kMagic, wire::kProtocolVersion, kind, number, remaining});
}

/// `count` bytes from `offset` of the message that is `head` and then `body`: what of them is in each.
std::pair<wire::ByteView, wire::ByteView> slice(wire::ByteView head, wire::ByteView body, std::size_t offset,
                                                std::size_t count) {
  const std::size_t head_from = std::min(offset, head.size());
  const std::size_t head_count = std::min(count, head.size() - head_from);
  const std::size_t body_from = offset - std::min(offset, head.size());
  return {head.subspan(head_from, head_count), body.subspan(body_from, count - head_count)};
}

std::string bytes_text(std::uint64_t bytes) {
  return std::to_string(bytes) + " bytes";
}

}  // namespace

void Packet::copy_to(std::byte* out) const {
  for (const wire::ByteView part : {wire::ByteView(header), head, body}) {
    if (!part.empty()) std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
}

Cutter::Cutter(std::uint32_t number, wire::ByteView head, wire::ByteView body, std::size_t packet_bytes)
    : number_(number), head_(head), body_(body), packet_bytes_(packet_bytes), done_(false) {
  TROUPE_ASSERT(packet_bytes >= kMinPacketBytes, "the first packet holds the frame's header");
  TROUPE_ASSERT(head.size() >= wire::kHeaderBytes, "a message is a whole frame");
  TROUPE_ASSERT(head.size() + body.size() <= kMaxFrameBytes, "what is too long is refused where it is made");
}

std::size_t Cutter::payload_bytes() const {
  return std::min(packet_bytes_ - kPacketHeaderBytes, head_.size() + body_.size() - offset_);
}

Packet Cutter::next() const {
  TROUPE_ASSERT(!done_, "every packet of the message was sent");
  const std::size_t count = payload_bytes();
  const auto [head, body] = slice(head_, body_, offset_, count);
  return {encode(offset_ == 0 ? Kind::kFirst : Kind::kNext, number_,
                 head_.size() + body_.size() - offset_ - count),
          head, body};
}

void Cutter::advance() {
  TROUPE_ASSERT(!done_, "every packet of the message was sent");
  offset_ += payload_bytes();
  done_ = offset_ == head_.size() + body_.size();
}

PacketHeader hello_packet() {
  return encode(Kind::kHello, 0, 0);
}

wire::Bytes goodbye_packet(std::uint32_t last_number, std::string_view reason) {
  const PacketHeader header = encode(Kind::kGoodbye, last_number, 0);
  const auto text = std::as_bytes(std::span(reason.substr(0, kMaxReasonBytes)));
  wire::Bytes packet(header.begin(), header.end());
  packet.insert(packet.end(), text.begin(), text.end());
  return packet;
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

Joiner::~Joiner() {
  let_go();
}

void Joiner::close() {
  closed_ = true;
  frame_ = body_ = {};
  let_go();
}

void Joiner::let_go() {
  if (charged_ > 0) options_.budget->left += charged_;
  charged_ = 0;
  wire::Bytes().swap(buffer_);
  remaining_ = 0;
}

ErrorInfo Joiner::fail(ErrorCode code, std::string why, std::string todo) {
  closed_ = true;
  let_go();
  return {code, "the link cannot go on", std::move(why), std::move(todo)};
}

Result<Joiner::Fed> Joiner::feed(wire::ByteView packet) {
  const std::string same_version = "run the same version of troupe on both sides";
  frame_ = body_ = {};
  if (closed_) return fail(ErrorCode::kBadInput, "a packet came after the link's end", "");
  if (!pending()) let_go();
  if (packet.size() < kPacketHeaderBytes) {
    return fail(ErrorCode::kBadInput, "a packet of " + bytes_text(packet.size()) + ", fewer than its header",
                same_version);
  }
  Layout layout;
  std::memcpy(&layout, packet.data(), sizeof layout);
  if (layout.magic != kMagic)
    return fail(ErrorCode::kBadInput, "a packet without troupe's magic", same_version);
  if (layout.version != wire::kProtocolVersion) {
    return fail(ErrorCode::kRefused,
                "the peer's protocol version is " + std::to_string(layout.version) + ", ours is " +
                    std::to_string(wire::kProtocolVersion),
                same_version);
  }
  const wire::ByteView payload = packet.subspan(kPacketHeaderBytes);
  const bool first = !std::exchange(begun_, true);
  switch (layout.kind) {
    case Kind::kHello:
      if (!options_.hello || !first)
        return fail(ErrorCode::kBadInput, "a hello in the middle of the link", same_version);
      if (layout.number != 0 || layout.remaining != 0 || !payload.empty()) {
        return fail(ErrorCode::kBadInput, "a hello that is not empty", same_version);
      }
      return Fed::kHello;
    case Kind::kFirst:
    case Kind::kNext:
      if (options_.hello && first)
        return fail(ErrorCode::kBadInput, "a message before the hello", same_version);
      if (layout.kind == Kind::kFirst) return feed_first(layout.number, layout.remaining, payload);
      return feed_next(layout.number, layout.remaining, payload);
    case Kind::kGoodbye:
      if (layout.number != number_) {
        return fail(ErrorCode::kBadInput,
                    "the peer ended after message " + std::to_string(layout.number) +
                        ", but the last that came is " + std::to_string(number_),
                    "");
      }
      if (layout.remaining != 0 || payload.size() > kMaxReasonBytes) {
        return fail(ErrorCode::kBadInput, "a goodbye that is too long", same_version);
      }
      closed_ = true;
      let_go();
      reason_ = printable({reinterpret_cast<const char*>(payload.data()), payload.size()});
      return Fed::kGoodbye;
  }
  return fail(ErrorCode::kBadInput,
              "a packet of unknown kind " + std::to_string(static_cast<int>(layout.kind)), same_version);
}

Result<Joiner::Fed> Joiner::feed_next(std::uint32_t number, std::uint64_t remaining, wire::ByteView payload) {
  if (!pending() || number != number_) {
    return fail(ErrorCode::kBadInput,
                "a part of message " + std::to_string(number) + " came while " +
                    (pending() ? "message " + std::to_string(number_) + " lacked " + bytes_text(remaining_)
                               : "no message was under way") +
                    ": something is lost or came twice",
                "");
  }
  // Subtract on the side that cannot wrap: `remaining` is the peer's word.
  if (payload.empty() || payload.size() > remaining_ || remaining_ - payload.size() != remaining) {
    return fail(ErrorCode::kBadInput,
                "message " + std::to_string(number) + " lacked " + bytes_text(remaining_) + ", then " +
                    bytes_text(payload.size()) + " came and " + std::to_string(remaining) +
                    " are to come: something is lost or came twice",
                "");
  }
  return keep(remaining, payload);
}

Result<Joiner::Fed> Joiner::feed_first(std::uint32_t number, std::uint64_t remaining,
                                       wire::ByteView payload) {
  if (pending() || number != number_ + 1) {
    return fail(ErrorCode::kBadInput,
                "message " + std::to_string(number) + " came after message " + std::to_string(number_) +
                    (pending() ? ", which lacked " + bytes_text(remaining_) : std::string()) +
                    ": something is lost or came twice",
                "");
  }
  number_ = number;
  if (payload.size() > kMaxFrameBytes || remaining > kMaxFrameBytes - payload.size()) {
    return fail(ErrorCode::kLimit, "a message longer than " + bytes_text(kMaxFrameBytes),
                "send less at once");
  }
  const auto header = wire::decode_header(payload);
  if (!header) return fail(header.error().code, header.error().why, header.error().todo);
  header_ = *header;
  if (remaining > 0)
    return keep(remaining, options_.takes == Takes::kFrame ? payload : payload.subspan(wire::kHeaderBytes));
  frame_ = payload;
  body_ = payload.subspan(wire::kHeaderBytes);
  return Fed::kMessage;
}

Result<Joiner::Fed> Joiner::keep(std::uint64_t remaining, wire::ByteView payload) {
  const std::size_t size = buffer_.size() + payload.size();
  if (options_.budget != nullptr) {
    if (payload.size() > options_.budget->left) {
      return fail(ErrorCode::kLimit,
                  "too much of messages that are not whole yet is held for all peers together",
                  "send less at once");
    }
    options_.budget->left -= payload.size();
    charged_ += payload.size();
  }
  if (size > buffer_.capacity()) {
    buffer_.reserve(std::min<std::size_t>(size + remaining, 2 * size + kReserveAhead));
  }
  buffer_.insert(buffer_.end(), payload.begin(), payload.end());
  remaining_ = remaining;
  if (remaining > 0) return Fed::kMore;
  body_ = wire::ByteView(buffer_).subspan(options_.takes == Takes::kFrame ? wire::kHeaderBytes : 0);
  return Fed::kMessage;
}

wire::Bytes Joiner::take() {
  const wire::ByteView view = options_.takes == Takes::kFrame ? frame_ : body_;
  const bool one_packet = !std::exchange(frame_, {}).empty();
  body_ = {};
  if (one_packet) return wire::Bytes(view.begin(), view.end());
  wire::Bytes whole = std::move(buffer_);
  let_go();
  return whole;
}

}  // namespace troupe
