#include "runtime/link/ring/ring.hpp"

#include <cstring>

#include "runtime/core/assert.hpp"

namespace troupe {
namespace {

constexpr std::uint32_t kWrap = 0xffffffff;
constexpr std::uint64_t kMask = kRingCapacity - 1;

constexpr std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

}  // namespace

bool RingWriter::write(const Packet& packet) {
  const std::uint64_t size = packet.size();
  TROUPE_ASSERT(size > 0 && size <= kRingPacketMax, "messages are cut into packets that a ring takes");
  const std::uint64_t need = padded(sizeof(std::uint32_t) + size);
  const std::uint64_t to_end = kRingCapacity - (written_ & kMask);
  const std::uint64_t skip = need > to_end ? to_end : 0;
  if (written_ + skip + need - read_seen_ > kRingCapacity) {
    read_seen_ = header_->read.load(std::memory_order_acquire);
    if (read_seen_ > written_ || written_ + skip + need - read_seen_ > kRingCapacity) return false;
  }
  if (skip != 0) {
    std::memcpy(data_ + (written_ & kMask), &kWrap, sizeof kWrap);
    written_ += skip;
  }
  std::byte* at = data_ + (written_ & kMask);
  const auto length = static_cast<std::uint32_t>(size);
  std::memcpy(at, &length, sizeof length);
  packet.copy_to(at + sizeof length);
  written_ += need;
  header_->written.store(written_, std::memory_order_release);
  return true;
}

std::span<const std::byte> RingReader::front() {
  while (!poisoned_) {
    const std::uint64_t available = header_->written.load(std::memory_order_acquire) - read_;
    if (available == 0) return {};
    std::uint32_t length = 0;
    if (available <= kRingCapacity && available >= 8)
      std::memcpy(&length, data_ + (read_ & kMask), sizeof length);
    const std::uint64_t to_end = kRingCapacity - (read_ & kMask);
    if (length == kWrap && to_end <= available) {
      read_ += to_end;
      continue;
    }
    const std::uint64_t need = padded(sizeof length + std::uint64_t{length});
    if (length == 0 || length > kRingPacketMax || need > available || need > to_end) {
      poisoned_ = true;
      break;
    }
    front_bytes_ = need;
    return {data_ + (read_ & kMask) + sizeof length, length};
  }
  return {};
}

void RingReader::pop() {
  TROUPE_ASSERT(front_bytes_ != 0, "pop follows a front that gave a message");
  read_ += front_bytes_;
  front_bytes_ = 0;
  header_->read.store(read_, std::memory_order_release);
}

}  // namespace troupe
