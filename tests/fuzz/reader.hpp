/// How targets cut what they are given into parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace troupe::fuzz {

/// The front of `bytes`, which loses them: `most` bytes, or all that are left.
inline std::span<const std::byte> take(std::span<const std::byte>& bytes, std::size_t most) {
  const auto front = bytes.first(std::min(most, bytes.size()));
  bytes = bytes.subspan(front.size());
  return front;
}
/// Two bytes, little-endian; 0 if there are not so many.
inline std::size_t take_u16(std::span<const std::byte>& bytes) {
  const auto two = take(bytes, 2);
  return two.size() < 2 ? 0 : static_cast<std::size_t>(two[0]) | static_cast<std::size_t>(two[1]) << 8;
}

}  // namespace troupe::fuzz
