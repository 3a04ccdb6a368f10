/// Tells a disk's changed bit from what was written. No signature: who may write there may write this, too.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "runtime/security/sha256.hpp"

namespace troupe {

using CheckWord = std::array<std::byte, 4>;

/// The beginning of the SHA-256 of `name`, then `value`.
inline CheckWord check_word(std::span<const std::byte> name, std::span<const std::byte> value) {
  Sha256 sum;
  sum.update(name);
  sum.update(value);
  const auto digest = sum.digest();
  CheckWord word{};
  std::copy_n(digest.begin(), word.size(), word.begin());
  return word;
}

}  // namespace troupe
