/// Cutting messages into packets of a medium, and joining them again: once, for every kind of link. No I/O.
///
/// A packet is a header of 16 bytes (little-endian) and its payload:
///
///   0  u16  magic 0x4c54 ("TL")
///   2  u8   protocol version (wire::kProtocolVersion); the first three bytes never change their meaning
///   3  u8   kind: 1 hello, 2 first packet of a message, 3 next packet of a message, 4 goodbye
///   4  u32  number of the message on this link, from 1; in a hello 0, in a goodbye that of the last message
///   begun 8  u64  bytes of this message still to come after this packet; 0 in its last one, in a hello and a
///   goodbye 16      payload: of a message a part of its frame (wire/frame.hpp: header, then body), of a
///   goodbye the reason
///
/// The first packet of a message holds the whole frame header. The packets of a message follow each other
/// with no other message between them. A packet that does not continue exactly what is pending is an error,
/// and the link closes: parts of two messages are never glued, and a lost packet is never passed over.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/result.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe {

inline constexpr std::size_t kPacketHeaderBytes = 16;
/// The shortest packet that a medium must take: the first packet of a message holds its frame header.
inline constexpr std::size_t kMinPacketBytes = kPacketHeaderBytes + wire::kHeaderBytes + 1;
/// The longest message: a frame with its header.
inline constexpr std::size_t kMaxFrameBytes = wire::kHeaderBytes + wire::kMaxBodyBytes;
inline constexpr std::size_t kMaxReasonBytes = 512;

using PacketHeader = std::array<std::byte, kPacketHeaderBytes>;

/// One packet, in up to three pieces that follow each other. `head` and `body` are views of the message.
struct Packet {
  PacketHeader header{};
  wire::ByteView head;
  wire::ByteView body;

  std::size_t size() const { return header.size() + head.size() + body.size(); }
  /// Writes all of it. REQUIRES: `out` has size() bytes.
  void copy_to(std::byte* out) const;
};

/// Cuts one message into packets without copying it.
class Cutter {
 public:
  Cutter() = default;
  /// The message is `head` followed by `body`, together a whole frame; both must outlive the packets.
  /// `number` counts the messages of the link from 1 (and over: after 2^32 - 1 comes 0). REQUIRES:
  /// head.size() >= wire::kHeaderBytes, at most kMaxFrameBytes together, packet_bytes >= kMinPacketBytes.
  Cutter(std::uint32_t number, wire::ByteView head, wire::ByteView body, std::size_t packet_bytes);

  /// Whether advance() was called for every packet.
  bool done() const { return done_; }
  /// The next packet; the same one until advance() says that the medium took it. REQUIRES: !done().
  Packet next() const;
  void advance();
  /// Bytes of the message in packets that the medium took.
  std::size_t sent_bytes() const { return offset_; }

 private:
  std::size_t payload_bytes() const;

  std::uint32_t number_ = 0;
  wire::ByteView head_;
  wire::ByteView body_;
  std::size_t packet_bytes_ = 0;
  std::size_t offset_ = 0;
  bool done_ = true;
};

/// The first packet of a link over a medium that does not itself tell where one begins.
PacketHeader hello_packet();
/// The last packet of one side. `last_number` is that of the last message of which a packet was sent (0:
/// none); a reason is cut to kMaxReasonBytes. The other side closes, or answers with its own.
wire::Bytes goodbye_packet(std::uint32_t last_number, std::string_view reason);
/// Text from outside as it may be printed: ASCII as it is, anything else and control characters as '?'.
std::string printable(std::string_view text);

/// Bytes that may be held for half-arrived messages, over several joiners. Not thread-safe.
struct JoinBudget {
  std::size_t left = std::size_t{512} << 20;
};

/// Joins the packets of one link. Memory grows with what has arrived: at most as much again and 1 MiB is
/// reserved. Not thread-safe.
class Joiner {
 public:
  /// What take() gives: the body alone, or the whole frame.
  enum class Takes { kBody, kFrame };
  struct Options {
    Takes takes = Takes::kBody;
    bool hello = false;            ///< the first packet must be a hello, and no other may be one
    JoinBudget* budget = nullptr;  ///< must outlive the joiner
  };
  enum class Fed {
    kHello,    ///< the link begins
    kMore,     ///< a part of a message; more is to come
    kMessage,  ///< a whole message is there: header(), body(), take()
    kGoodbye,  ///< the other side ends the link, for reason(); a message that was under way is dropped
  };

  Joiner() = default;
  explicit Joiner(Options options) : options_(options) {}
  Joiner(const Joiner&) = delete;
  Joiner& operator=(const Joiner&) = delete;
  ~Joiner();

  /// One packet as it arrived. Total. An error means that the link must close with that reason (kBadInput:
  /// not a packet, or out of sequence; kRefused: another protocol version, both named; kLimit: too long);
  /// every later packet is an error too.
  Result<Fed> feed(wire::ByteView packet);

  // After Fed::kMessage, until the next feed() and while the packet's bytes are there:
  const wire::FrameHeader& header() const { return header_; }
  /// A view: of the packet if the message came in one, of the joiner's memory otherwise.
  wire::ByteView body() const { return body_; }
  /// The body, or the whole frame with Takes::kFrame; copied if the message came in one packet, moved
  /// otherwise. Once a message; header() stays, body() does not.
  wire::Bytes take();

  /// Of the goodbye, printable.
  const std::string& reason() const { return reason_; }
  /// Lets go of what has arrived: nothing more is taken.
  void close();
  /// Whether a goodbye came, an error was found, or it was closed.
  bool is_closed() const { return closed_; }
  /// Whether a message has begun to arrive and is not whole yet.
  bool pending() const { return remaining_ > 0; }
  /// The number of the last message of which a packet came.
  std::uint32_t last_number() const { return number_; }

 private:
  Result<Fed> feed_first(std::uint32_t number, std::uint64_t remaining, wire::ByteView payload);
  Result<Fed> feed_next(std::uint32_t number, std::uint64_t remaining, wire::ByteView payload);
  Result<Fed> keep(std::uint64_t remaining, wire::ByteView payload);
  ErrorInfo fail(ErrorCode code, std::string why, std::string todo);
  void let_go();

  Options options_;
  bool begun_ = false;
  bool closed_ = false;
  std::uint32_t number_ = 0;
  std::uint64_t remaining_ = 0;
  wire::FrameHeader header_;
  wire::Bytes buffer_;       // of a message in several packets: what take() gives
  std::size_t charged_ = 0;  // to the budget
  wire::ByteView frame_;     // of a message in one packet
  wire::ByteView body_;
  std::string reason_;
};

}  // namespace troupe
