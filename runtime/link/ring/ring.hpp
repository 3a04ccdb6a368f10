/// A byte ring between two processes in shared memory: one writer, one reader, messages in order.
///
/// Layout of one direction (README.md): a cache line with the writer's position, one with the reader's and
/// the writer's wish to be rung, then `capacity` bytes. A packet is a 4-byte length and its bytes, padded to
/// 8; a length of kWrap says that the writer went on at the start. Positions only grow; a packet is visible
/// once it is whole, because the writer moves its position last. What a peer wrote is checked before it is
/// believed: a position or a length that cannot be poisons the ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/fd.hpp"
#include "runtime/link/fragment.hpp"

namespace troupe {

/// Bytes a direction holds; a power of two. Pages that were never written cost nothing.
inline constexpr std::size_t kRingCapacity = std::size_t{1} << 19;
/// The longest packet (fragment.hpp cuts messages into packets).
inline constexpr std::size_t kRingPacketMax = kRingCapacity / 4;

struct RingHeader {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> starved;  ///< the writer found no room: ring its bell when there is some
};
inline constexpr std::size_t kRingBytes = sizeof(RingHeader) + kRingCapacity;

/// The writing end. One thread at a time.
class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(std::byte* at)
      : header_(reinterpret_cast<RingHeader*>(at)), data_(at + sizeof(RingHeader)) {}

  /// Appends a packet; false when there is no room now. REQUIRES: packet.size() <= kRingPacketMax.
  bool write(const Packet& packet);
  /// Asks the reader to ring when it gives room back. Try to write once more before waiting.
  void starve() { header_->starved.store(1, std::memory_order_seq_cst); }
  /// Whether at least half of it is free. Thread-safe.
  bool has_room() const {
    return header_->written.load(std::memory_order_relaxed) - header_->read.load(std::memory_order_acquire) <=
           kRingCapacity / 2;
  }

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
  explicit RingReader(std::byte* at)
      : header_(reinterpret_cast<RingHeader*>(at)), data_(at + sizeof(RingHeader)) {}

  /// The next packet, or an empty span when there is none. It stays valid until `pop`.
  std::span<const std::byte> front();
  /// Gives the room of the front packet back to the writer.
  void pop();
  /// Whether the writer waits for room: ring its bell then. Call after a run of pops.
  bool take_starved() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return header_->starved.load(std::memory_order_relaxed) != 0 &&
           header_->starved.exchange(0, std::memory_order_acq_rel) != 0;
  }
  bool empty() const { return header_->written.load(std::memory_order_acquire) == read_; }
  /// The writer broke the format: nothing more is read.
  bool poisoned() const { return poisoned_; }
  void poison() { poisoned_ = true; }

 private:
  RingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t read_ = 0;
  std::uint64_t front_bytes_ = 0;
  bool poisoned_ = false;
};

}  // namespace troupe
