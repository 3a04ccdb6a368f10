/// A connection to one rank on another machine: frames, one at a time in each direction, without ever
/// blocking.
///
/// A frame is a header of 40 bytes (little-endian) and its payload:
///
///   0   u32 magic "TRC1"          8   u32 sequence number     16  2 x u64 contract
///   4   u8  kind (FrameKind)      12  u32 round               32  u64 payload bytes
///   5   3 zero bytes
///
/// What a payload is and where it goes is the engine's matter: it knows from its own contract how long the
/// payload has to be, and takes no other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/native/contract.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives {

enum class FrameKind : std::uint8_t {
  kPartials = 1,  ///< a rank's input to the receiver's slice, or a broadcast's chunk
  kResult = 2,    ///< the sender's slice of the result
  kAbort = 3,     ///< the reason of an abort; the sender says no more
};

struct FrameHeader {
  FrameKind kind = FrameKind::kPartials;
  std::uint32_t sequence = 0;
  std::uint32_t round = 0;
  Contract contract;
  std::uint64_t payload_bytes = 0;
};

inline constexpr std::size_t kFrameHeaderBytes = 40;
using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
FrameHeaderBytes encode(const FrameHeader& header);
/// Errors: kBadInput for another magic, kind, contract, or an abort reason that is too long.
Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

/// Not thread-safe.
class Link {
 public:
  /// `fd`: a connected stream socket whose other end has proved to be `rank`.
  Link(int rank, UniqueFd fd);

  int rank() const { return rank_; }
  int fd() const { return fd_.get(); }

  /// Starts a frame. The pieces must stay as they are until !sending(). REQUIRES: !sending().
  void send(const FrameHeader& header, std::vector<std::span<const std::byte>> pieces);
  bool sending() const { return !out_.empty(); }

  /// Moves what the socket takes and gives; whether anything moved.
  bool pump();

  /// The header of the frame that is coming in, once it is whole.
  const std::optional<FrameHeader>& header() const { return header_; }
  /// Says where the payload goes. REQUIRES: header(), and `into` has its payload_bytes.
  void receive_into(std::span<std::byte> into);
  bool has_target() const { return has_target_; }
  /// Whether header and payload are in.
  bool received() const { return has_target_ && into_.empty(); }
  /// Done with the frame: on to the next.
  void next_frame();

  /// Why nothing will come any more, or empty. What came before is still there.
  const std::string& broken() const { return broken_; }

  /// Tells the peer why the group is aborted, as far as that is possible without waiting, and ends the
  /// stream.
  void close_with(const std::string& reason);

 private:
  bool pump_out();
  bool pump_in();
  bool read_header();

  int rank_;
  UniqueFd fd_;
  FrameHeaderBytes out_header_{};
  std::vector<std::span<const std::byte>> out_;  ///< what is left to send
  FrameHeaderBytes in_header_{};
  std::size_t in_header_bytes_ = 0;
  std::optional<FrameHeader> header_;
  bool has_target_ = false;
  std::span<std::byte> into_;  ///< what is left to receive
  std::string broken_;
  bool closed_ = false;
};

}  // namespace troupe::collectives
