/// A byte ring between two processes in shared memory: one writer, one reader, messages in order.
///
/// Layout of one direction (README.md): a cache line with the writer's position, one with the reader's, then `capacity`
/// bytes. A message is a 4-byte length and its bytes, padded to 8; a length of kWrap says that the writer went on at
/// the start. Positions only grow; a message is visible once it is whole, because the writer moves its position last.
/// What a peer wrote is checked before it is believed: a position or a length that cannot be poisons the ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/fd.hpp"

namespace troupe::transport {

/// Bytes a direction holds; a power of two.
inline constexpr std::size_t kRingCapacity = std::size_t{1} << 19;
/// The longest message. Longer ones are cut into fragments by the layer above (wire/frame.hpp).
inline constexpr std::size_t kRingMessageMax = kRingCapacity / 4;

struct RingHeader {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};
inline constexpr std::size_t kRingBytes = sizeof(RingHeader) + kRingCapacity;

/// The writing end. One thread at a time.
class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(std::byte* at) : header_(reinterpret_cast<RingHeader*>(at)), data_(at + sizeof(RingHeader)) {}

  /// Appends the concatenation of `head` and `body` as one message; false when there is no room now.
  /// REQUIRES: head.size() + body.size() <= kRingMessageMax.
  bool write(std::span<const std::byte> head, std::span<const std::byte> body);

 private:
  RingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t written_ = 0;
  std::uint64_t read_seen_ = 0;  ///< the reader's position as last looked up
};

/// The reading end. One thread at a time.
class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(std::byte* at) : header_(reinterpret_cast<RingHeader*>(at)), data_(at + sizeof(RingHeader)) {}

  /// The next message, or an empty span when there is none. It stays valid until `pop`.
  std::span<const std::byte> front();
  /// Gives the room of the front message back to the writer.
  void pop();
  bool empty() const { return header_->written.load(std::memory_order_acquire) == read_; }
  /// The writer broke the format: nothing more is read.
  bool poisoned() const { return poisoned_; }

 private:
  RingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t read_ = 0;
  std::uint64_t front_bytes_ = 0;
  bool poisoned_ = false;
};

}  // namespace troupe::transport
