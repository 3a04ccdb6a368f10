#include "runtime/security/secret.hpp"

#include <sodium.h>

#include "runtime/core/assert.hpp"

namespace troupe {

void wipe(std::span<std::byte> bytes) noexcept {
  sodium_memzero(bytes.data(), bytes.size());
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::byte> out) {
  // sodium_init is idempotent and thread-safe; it fails only where the system has no source of randomness.
  TROUPE_ASSERT(sodium_init() >= 0, "libsodium finds no source of randomness");
  randombytes_buf(out.data(), out.size());
}

}  // namespace troupe
