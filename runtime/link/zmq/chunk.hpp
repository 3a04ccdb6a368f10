/// How a message becomes frames of at most 1 MiB, and whole again. Layout of a frame (little-endian):
///
///   0  u16  magic 0x4c54 ("TL")
///   2  u8   version of this layout, 1
///   3  u8   flags: 1 = last chunk of its message, 2 = hello (the first frame of a connection, empty),
///           4 = goodbye (the last frame of one side, empty; the other side closes, or answers with its own)
///   4  u32  index of the chunk in its message, from 0
///   8  u64  id of the message, counting up from 1
///   16      payload
///
/// The chunks of a message follow each other without others between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/result.hpp"

namespace troupe {

/// What ZeroMQ takes as one frame, its handshake included. The payload leaves room for CURVE's own header.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{1} << 20;
inline constexpr std::size_t kChunkHeaderBytes = 16;
inline constexpr std::size_t kMaxChunkPayloadBytes = kMaxFrameBytes - 1024;
inline constexpr std::uint8_t kChunkLast = 1;
inline constexpr std::uint8_t kChunkHello = 2;
inline constexpr std::uint8_t kChunkGoodbye = 4;

struct Chunk {
  std::uint8_t flags = 0;
  std::uint32_t index = 0;
  std::uint64_t message_id = 0;
  std::span<const std::byte> payload;

  bool last() const noexcept { return (flags & kChunkLast) != 0; }
  bool hello() const noexcept { return (flags & kChunkHello) != 0; }
  bool goodbye() const noexcept { return (flags & kChunkGoodbye) != 0; }
};

inline Chunk hello_chunk() { return {kChunkHello | kChunkLast, 0, 0, {}}; }
inline Chunk goodbye_chunk() { return {kChunkGoodbye | kChunkLast, 0, 0, {}}; }

/// Total.
Result<Chunk> decode_chunk(std::span<const std::byte> frame);
/// Writes the header of `chunk` (not its payload) to the front of `out`.
void encode_chunk_header(const Chunk& chunk, std::span<std::byte, kChunkHeaderBytes> out);

/// Cuts one message into chunks. Not thread-safe.
class Chunker {
 public:
  Chunker(std::uint64_t message_id, std::vector<std::byte> message)
      : message_id_(message_id), message_(std::move(message)) {}

  /// The next chunk; the same one until advance() says that it was sent.
  Chunk next() const;
  void advance();
  /// Whether every chunk was sent. An empty message is one empty chunk.
  bool done() const noexcept { return done_; }
  std::size_t message_bytes() const noexcept { return message_.size(); }

 private:
  std::uint64_t message_id_;
  std::vector<std::byte> message_;
  std::size_t offset_ = 0;
  std::uint32_t index_ = 0;
  bool done_ = false;
};

/// Bytes that may be buffered for half-arrived messages, over all peers of one server. Not thread-safe.
struct ReassemblyBudget {
  std::size_t left = std::size_t{256} << 20;
};

/// Puts the chunks of one connection together. Not thread-safe.
class Reassembler {
 public:
  /// The budget must outlive the reassembler.
  explicit Reassembler(ReassemblyBudget& budget) : budget_(budget) {}
  Reassembler(const Reassembler&) = delete;
  Reassembler& operator=(const Reassembler&) = delete;
  ~Reassembler() { reset(); }

  /// The whole message if `chunk` was its last one: a view that is valid until the next call or the end of
  /// the frame, whichever is first. Nothing if more is to come. A chunk 0 always begins a new message. An
  /// error (kBadInput: out of sequence; kLimit: message or budget) drops what was buffered.
  Result<std::optional<std::span<const std::byte>>> feed(const Chunk& chunk, Instant now);
  /// Drops a message of which nothing came for `timeout`. True when it did.
  bool expire(Instant now, Duration timeout);
  std::size_t buffered_bytes() const noexcept { return buffer_.size(); }

 private:
  void reset();

  ReassemblyBudget& budget_;
  std::vector<std::byte> buffer_;
  bool open_ = false;
  std::uint64_t message_id_ = 0;
  std::uint32_t next_index_ = 0;
  Instant last_chunk_{0};
};

}  // namespace troupe
