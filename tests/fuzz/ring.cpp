// The memory of a ring, which its other end may write at will.
#include "runtime/link/ring/ring.hpp"

#include <cstring>
#include <memory>

#include "tests/fuzz/reader.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

/// The writer's position in two bytes (times 8), then lengths: each the place (two bytes, times 8) and four
/// bytes.
bool ring_memory(std::span<const std::byte> bytes) {
  // On the heap, so that a sanitizer sees both ends. Zero but for what an input writes while it runs.
  struct alignas(64) Memory {
    std::byte bytes[kRingBytes];
  };
  static const auto memory = std::make_unique<Memory>();
  auto* const header = reinterpret_cast<RingHeader*>(memory->bytes);
  std::byte* const data = memory->bytes + sizeof(RingHeader);
  header->written = 8 * take_u16(bytes);
  header->read = 0;
  auto lengths = bytes;
  const auto write = [&](bool value) {
    for (auto left = lengths; left.size() >= 6;) {
      const std::size_t at = 8 * take_u16(left) % kRingCapacity;
      const auto length = take(left, 4);
      if (value) {
        std::memcpy(data + at, length.data(), length.size());
      } else {
        std::memset(data + at, 0, length.size());
      }
    }
  };
  write(true);
  RingReader reader(memory->bytes);
  std::size_t packets = 0;
  for (auto packet = reader.front(); !packet.empty(); packet = reader.front()) {
    ++packets;
    check(packet.size() <= kRingPacketMax, "a packet keeps the limit of its length");
    check(packet.data() >= data && packet.data() + packet.size() <= data + kRingCapacity,
          "a packet lies in the ring");
    check(packets <= kRingCapacity / 8, "a ring holds so many packets and no more");
    reader.pop();
  }
  check(reader.poisoned() || reader.empty(), "a reader stops at the end, or where the format is broken");
  write(false);
  return packets > 0 && !reader.poisoned();
}

}  // namespace troupe::fuzz
