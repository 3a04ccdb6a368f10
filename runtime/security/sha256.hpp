/// SHA-256 for runtime: names and checks executables and packages of jobs.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "runtime/core/hex.hpp"
#include "runtime/core/result.hpp"

namespace troupe {

/// A digest in the making. Not thread-safe.
class Sha256 {
 public:
  Sha256() { crypto_hash_sha256_init(&state_); }
  void update(std::span<const std::byte> bytes) {
    crypto_hash_sha256_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  }
  /// REQUIRES: it or finish() is called once, after the last update.
  std::array<std::byte, crypto_hash_sha256_BYTES> digest() {
    std::array<std::byte, crypto_hash_sha256_BYTES> digest{};
    crypto_hash_sha256_final(&state_, reinterpret_cast<unsigned char*>(digest.data()));
    return digest;
  }
  /// 64 lower-case hexadecimal digits. REQUIRES: as digest().
  std::string finish() { return to_hex(digest()); }

 private:
  crypto_hash_sha256_state state_{};
};

/// Of what `fd` has from where it stands to its end. Errors: kIo.
Result<std::string> sha256_of_file(int fd);

/// 64 lower-case hexadecimal digits?
inline bool is_sha256_hex(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace troupe
