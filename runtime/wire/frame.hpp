/// The frame: what travels on every hop (ring, node socket, machine link). README.md gives the byte layout.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "runtime/wire/address.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::wire {

/// Increased by every change of a layout or of a message. Two processes with different versions refuse each other.
inline constexpr std::uint8_t kProtocolVersion = 1;

enum class FrameKind : std::uint8_t {
  kCall = 1,     ///< method call: body is the encoded argument tuple
  kReply = 2,    ///< its answer: body is the encoded result, or an ErrorInfo with kFlagError
  kControl = 3,  ///< a message of messages.hpp; `id` is its number
};

inline constexpr std::uint8_t kFlagMore = 1;    ///< another fragment of the same message follows
inline constexpr std::uint8_t kFlagError = 2;   ///< a reply that carries an ErrorInfo
inline constexpr std::uint8_t kFlagOneWay = 4;  ///< a call that wants no reply

struct FrameHeader {
  FrameKind kind = FrameKind::kControl;
  std::uint8_t flags = 0;
  ProcessAddress to;    ///< process 0 is the node itself
  ProcessAddress from;  ///< process 0 is the node itself
  std::uint64_t id = 0;      ///< of the call, chosen by the caller; or the number of a control message
  ActorId actor;             ///< the callee of a call
  std::uint64_t method = 0;  ///< the method of a call
};

inline constexpr std::size_t kHeaderBytes = 64;
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode_header(const FrameHeader& header);
/// Total: refuses a short frame, a wrong magic, another protocol version (naming both) and unknown kinds.
Result<FrameHeader> decode_header(ByteView frame);

/// The longest whole message.
inline constexpr std::size_t kMessageMax = std::size_t{64} << 20;

/// Calls `emit(header bytes, part of the body)` for each fragment of a message, so that no fragment with its header is
/// longer than `fragment_max`. Stops early and returns false when `emit` does.
template <class Emit>
bool fragment(FrameHeader header, ByteView body, std::size_t fragment_max, Emit&& emit) {
  const std::size_t room = fragment_max - kHeaderBytes;
  do {
    const ByteView part = body.first(std::min(room, body.size()));
    body = body.subspan(part.size());
    header.flags = static_cast<std::uint8_t>((header.flags & ~kFlagMore) | (body.empty() ? 0 : kFlagMore));
    const HeaderBytes bytes = encode_header(header);
    if (!emit(ByteView(bytes), part)) return false;
  } while (!body.empty());
  return true;
}

/// Puts fragments together again. A sender's fragments are adjacent on its own link and every hop keeps its order, so
/// one buffer a sender is enough. Bounded: kMessageMax a message.
class Assembler {
 public:
  /// The body of the whole message when `part` completes it: `part` itself when nothing was pending (no copy), else a
  /// view of the collected bytes, valid until the next call. Empty optional: more is to come, or the message was
  /// dropped for being too long (`dropped` counts those).
  std::optional<ByteView> feed(const FrameHeader& header, ByteView part);
  void forget(ProcessAddress from) { pending_.erase(key(from)); }
  std::size_t dropped() const { return dropped_; }

 private:
  static std::uint64_t key(ProcessAddress from) { return mix_key(from.node.value, from.process.value); }
  static std::uint64_t mix_key(std::uint64_t a, std::uint64_t b) { return a * 0x9e3779b97f4a7c15ULL ^ b; }
  std::unordered_map<std::uint64_t, Bytes> pending_;
  Bytes whole_;
  std::size_t dropped_ = 0;
};

}  // namespace troupe::wire
