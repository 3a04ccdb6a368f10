/// Tells a disk's changed bit from what was written. No signature: who may write there may write this, too.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

namespace troupe {

using CheckWord = std::array<std::byte, 4>;

/// The beginning of the SHA-256 of `name`, then `value`.
inline CheckWord check_word(std::span<const std::byte> name, std::span<const std::byte> value) {
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  for (const auto part : {name, value})
    crypto_hash_sha256_update(&state, reinterpret_cast<const unsigned char*>(part.data()), part.size());
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest{};
  crypto_hash_sha256_final(&state, digest.data());
  CheckWord word{};
  std::memcpy(word.data(), digest.data(), word.size());
  return word;
}

}  // namespace troupe
