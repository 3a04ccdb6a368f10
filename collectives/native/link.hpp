/// Frames to and from one other rank, one at a time in each direction, without ever blocking.
///
/// A frame is a header of 56 bytes (little-endian) and its payload:
///
///   0   u32 magic "TRC3"          8   u32 sequence number     16  3 x u64 call
///   4   u8  kind (FrameKind)      12  u32 round               40  u64 payload bytes
///   5   3 zero bytes                                          48  u32 rounds freed
///                                                             52  4 zero bytes
///
/// Between hosts both collectives and messages (send, recv) go over one socket; between ranks of a host a
/// pair of rings carries messages alone. In frames of messages the sequence number is the message's and the
/// round is its tag.
///
/// What a payload is and where it goes is the engine's and the mailbox's matter: they know how long the
/// payload has to be, and take no other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/native/byte_stream.hpp"
#include "collectives/op.hpp"
#include "runtime/core/result.hpp"

namespace troupe::collectives {

enum class FrameKind : std::uint8_t {
  kPartials = 1,  ///< what the receiver's host reads of the input of others in a round
  kResult = 2,    ///< the slices of the result that the sender's host owns
  kAbort = 3,     ///< the reason of an abort; the sender says no more
  kFreed = 4,     ///< how many rounds are freed, where no other frame says so
  kMessage = 5,   ///< a small message, whole
  kRequestToSend =
      6,  ///< a large message is there; payload: u64 where in the sender's shared memory, + 1, or 0
  kClearToSend = 7,  ///< the large message may come
  kPayload = 8,      ///< a piece of a large message
  kCredit = 9,       ///< sequence number: how many small messages have been received so far
  kCopied = 10,      ///< the large message was copied out of the sender's shared memory
  kCalled = 11,  ///< what the sender called and waits for; payload: u64, a bit for each rank of its host that
                 ///< is missing
  kLeft = 12,    ///< the sender destroyed its group, and says no more
};

struct FrameHeader {
  FrameKind kind = FrameKind::kPartials;
  std::uint32_t sequence = 0;
  std::uint32_t round = 0;
  OpWords call{};
  std::uint64_t payload_bytes = 0;
  std::uint32_t freed =
      0;  ///< of the first, second and fourth kind: rounds that the sender's host has reduced
};

inline constexpr std::size_t kFrameHeaderBytes = 56;
using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
FrameHeaderBytes encode(const FrameHeader& header);
/// Errors: kBadInput for another magic, kind, call, or an abort reason that is too long.
Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

/// Not thread-safe.
class Link {
 public:
  /// `stream`: its other end has proved to be `rank`. Until then nothing goes out or comes in.
  explicit Link(int rank, std::unique_ptr<ByteStream> stream = std::make_unique<ByteStream>());
  void connect(std::unique_ptr<ByteStream> stream) { stream_ = std::move(stream); }

  int rank() const { return rank_; }
  int fd() const { return stream_->fd(); }  ///< -1: it has none (yet)

  /// Starts a frame. The pieces must stay as they are until !sending(). REQUIRES: !sending().
  void send(const FrameHeader& header, std::vector<std::span<const std::byte>> pieces);
  bool sending() const { return !out_.empty(); }

  /// Moves what the socket takes, until it would block; whether anything moved.
  bool pump_out();
  /// The same of what it gives, up to the end of a frame.
  bool pump_in();

  /// The header of the frame that is coming in, once it is whole.
  const std::optional<FrameHeader>& header() const { return header_; }
  /// Says where the payload goes. REQUIRES: header(), and `into` has its payload_bytes in all.
  void receive_into(std::vector<std::span<std::byte>> into);
  bool has_target() const { return has_target_; }
  /// Whether header and payload are in.
  bool received() const { return has_target_ && into_.empty(); }
  /// Done with the frame: on to the next.
  void next_frame();

  /// Takes all frames that are in: `target()` says where the payload of the one that comes in goes, and
  /// `take()` has it whole; whether any was.
  template <class Target, class Take>
  bool receive(Target target, Take take) {
    bool moved = pump_in();
    while (header()) {
      if (!has_target()) {
        receive_into(target());
        pump_in();
      }
      if (!received()) return moved;
      take();
      next_frame();
      pump_in();
      moved = true;
    }
    return moved;
  }
  /// Sends frames for as long as the stream takes them: `out()` hears that the one that was on its way is
  /// out, if there was one, and `start()` sends the next, if there is one; whether anything moved.
  template <class Out, class Start>
  bool transmit(Out out, Start start) {
    bool moved = pump_out();
    while (!sending()) {
      moved = out() || moved;
      if (!start()) break;
      moved = true;
      pump_out();
    }
    return moved;
  }

  /// Why nothing will come any more, or empty. What came before is still there.
  const std::string& broken() const { return broken_.empty() ? stream_->broken() : broken_; }

  /// The last frame, behind the one that is on its way: why the group is aborted, or that this rank left it.
  /// No frame may be sent after it.
  void say_abort(const std::string& reason);
  void say_left() { say_last({.kind = FrameKind::kLeft}, {}); }
  /// After say_left(): sends what is left, and drops what comes. True: the other end has all, or has gone.
  bool has_arrived();
  /// Forgets what is not out yet and ends the stream.
  void close();

 private:
  bool read_header();
  void say_last(const FrameHeader& header, std::span<const std::byte> payload);

  int rank_;
  std::unique_ptr<ByteStream> stream_;
  FrameHeaderBytes out_header_{};
  std::vector<std::span<const std::byte>> out_;  ///< what is left to send
  FrameHeaderBytes in_header_{};
  std::size_t in_header_bytes_ = 0;
  std::optional<FrameHeader> header_;
  bool has_target_ = false;
  std::vector<std::span<std::byte>> into_;  ///< what is left to receive
  std::string broken_;                      ///< noise came in
  std::vector<std::byte> last_words_;
};

}  // namespace troupe::collectives
