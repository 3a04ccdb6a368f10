#include "runtime/wire/frame.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace troupe::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and copied as it is");

constexpr std::uint16_t kMagic = 0x7254;

/// The bytes of a header, in order.
struct Layout {
  std::uint16_t magic;
  std::uint8_t version;
  std::uint8_t kind;
  std::uint8_t flags;
  std::uint8_t zero[3];
  std::uint64_t to_node, to_process, from_node, from_process, job, id, actor, method;
};
static_assert(sizeof(Layout) == kHeaderBytes);

ErrorInfo refuse(std::string why, std::string todo) {
  return {ErrorCode::kBadInput, "refused a frame", std::move(why), std::move(todo)};
}

}  // namespace

HeaderBytes encode_header(const FrameHeader& header) {
  const Layout layout{kMagic,
                      kProtocolVersion,
                      static_cast<std::uint8_t>(header.kind),
                      header.flags,
                      {},
                      header.to.node.value,
                      header.to.process.value,
                      header.from.node.value,
                      header.from.process.value,
                      header.job.value,
                      header.id,
                      header.actor.value,
                      header.method};
  return std::bit_cast<HeaderBytes>(layout);
}

Result<FrameHeader> decode_header(ByteView frame) {
  if (frame.size() < kHeaderBytes) {
    return refuse("it has " + std::to_string(frame.size()) + " bytes, fewer than a header", "the peer does not speak troupe");
  }
  Layout layout;
  std::memcpy(&layout, frame.data(), sizeof layout);
  if (layout.magic != kMagic) return refuse("it does not start with troupe's magic", "the peer does not speak troupe");
  if (layout.version != kProtocolVersion) {
    return refuse("its protocol version is " + std::to_string(layout.version) + ", ours is " + std::to_string(kProtocolVersion),
                  "run the same version of troupe on both sides");
  }
  if (layout.kind < 1 || layout.kind > static_cast<std::uint8_t>(kLastFrameKind)) {
    return refuse("kind " + std::to_string(layout.kind) + " is unknown", "run the same version of troupe on both sides");
  }
  FrameHeader header;
  header.kind = static_cast<FrameKind>(layout.kind);
  header.flags = layout.flags;
  header.to = {{layout.to_node}, {layout.to_process}};
  header.from = {{layout.from_node}, {layout.from_process}};
  header.job = {layout.job};
  header.id = layout.id;
  header.actor = {layout.actor};
  header.method = layout.method;
  return header;
}

Bytes whole_frame(const FrameHeader& header, ByteView body) {
  const HeaderBytes head = encode_header(header);
  Bytes frame(head.size() + body.size());
  std::copy(body.begin(), body.end(), std::copy(head.begin(), head.end(), frame.begin()));
  return frame;
}

Bytes refusal(const FrameHeader& header, const ErrorInfo& error, FrameHeader& reply) {
  reply = {};
  reply.kind = FrameKind::kReply;
  reply.flags = kFlagError | kFlagRefused;
  reply.to = header.from;
  reply.from = header.to;
  reply.id = header.id;
  reply.actor = header.actor;
  return encode(error);
}

ErrorInfo decode_error(ByteView body) {
  auto error = decode<std::tuple<ErrorInfo>>(body);  // a Result of an ErrorInfo would not know which one it is
  return error ? std::get<0>(*std::move(error)) : std::move(error).error();
}

}  // namespace troupe::wire
