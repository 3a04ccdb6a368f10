/// The frame: a whole message between two processes, header and body. README.md gives the byte layout.
///
/// A frame is routed by its header alone: caller's process -> ring -> callee's process on one node; process
/// -> socket -> node -> ZeroMQ -> node -> socket -> process between nodes. A hop that must cut it does so
/// below (runtime/link/fragment.hpp): whoever sees a frame sees all of it.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/wire/address.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::wire {

/// Increased by every change of a layout or of a message. Two processes with different versions refuse each
/// other.
inline constexpr std::uint8_t kProtocolVersion = 16;

enum class FrameKind : std::uint8_t {
  kCall = 1,     ///< method call: body is the encoded argument tuple; answered by a kReply unless kFlagOneWay
  kReply = 2,    ///< its answer: body is the encoded result, or an ErrorInfo with kFlagError
  kControl = 3,  ///< a message of messages.hpp; `id` is its number
  kSpawn = 4,    ///< constructs the light actor `actor` in process `to` by constructor `method`; body is the
                 ///< encoded argument tuple; answered by a kReply. Of the same job only
  kMonitor = 5,  ///< answered by a kReply with the reason (a string) once `actor` has ended
  kStop = 6,  ///< ends `actor` after its current method; body is the reason (a string). Of the same job only
  kCredit =
      7,  ///< `id` more bytes of frames from `to` were taken up by `from` (flow control of routed frames)
};
inline constexpr FrameKind kLastFrameKind = FrameKind::kCredit;

inline constexpr std::uint8_t kFlagError = 2;   ///< a reply that carries an ErrorInfo
inline constexpr std::uint8_t kFlagOneWay = 4;  ///< a call that wants no reply

inline constexpr std::uint8_t kFlagRefused =
    8;  ///< an error reply of a hop: the frame never reached its receiver

/// A call whose arguments refer to objects, or a reply whose answer does: its body ends with their names
/// (runtime/objects/references.hpp).
inline constexpr std::uint8_t kFlagReferences = 16;

struct FrameHeader {
  FrameKind kind = FrameKind::kControl;
  std::uint8_t flags = 0;
  ProcessAddress to;         ///< process 0 is the node itself
  ProcessAddress from;       ///< process 0 is the node itself; checked by the sender's node
  JobId job;                 ///< of `from`; checked by the sender's node. 0: of a node
  std::uint64_t id = 0;      ///< of the call, chosen by the caller; or the number of a control message
  ActorId actor;             ///< the callee of a call
  std::uint64_t method = 0;  ///< the method of a call
};

inline constexpr std::size_t kHeaderBytes = 72;
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode_header(const FrameHeader& header);
/// Total: refuses a short frame, a wrong magic, another protocol version (naming both) and unknown kinds.
Result<FrameHeader> decode_header(ByteView frame);

/// The longest body of a frame. Longer ones are refused where they are made, with the limit in the error.
inline constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 20;
inline constexpr Bound kArgumentBound{kMaxBodyBytes, "the arguments of",
                                      "put them (Session::put) and pass the reference"};
/// Of a task: its number goes before them.
inline constexpr Bound kTaskArgumentBound{kMaxBodyBytes - sizeof(std::uint64_t), kArgumentBound.what,
                                          kArgumentBound.todo};

/// Header and body in one buffer.
Bytes whole_frame(const FrameHeader& header, ByteView body);
/// The kReply with an error that answers `header`, as if its receiver had sent it: what a hop says that
/// cannot carry a frame on. REQUIRES: wants_reply(header).
Bytes refusal(const FrameHeader& header, const ErrorInfo& error, FrameHeader& reply);
/// The error in the body of a kReply with kFlagError; if it does not decode, the error that says so.
ErrorInfo decode_error(ByteView body);
/// Whether somebody waits for a kReply to this frame.
inline bool wants_reply(const FrameHeader& h) {
  return (h.kind == FrameKind::kCall || h.kind == FrameKind::kSpawn || h.kind == FrameKind::kMonitor) &&
         (h.flags & kFlagOneWay) == 0;
}

}  // namespace troupe::wire
