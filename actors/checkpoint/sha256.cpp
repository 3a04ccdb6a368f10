#include "actors/checkpoint/sha256.hpp"

#include <sodium.h>

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::checkpoint {

struct Sha256::State {
  crypto_hash_sha256_state sodium{};
  bool finished = false;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  crypto_hash_sha256_init(&state_->sodium);
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  TROUPE_ASSERT(!state_->finished, "no bytes after the digest");
  crypto_hash_sha256_update(&state_->sodium, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
}

std::string Sha256::finish() {
  TROUPE_ASSERT(!state_->finished, "a digest is taken once");
  state_->finished = true;
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest{};
  crypto_hash_sha256_final(&state_->sodium, digest.data());
  std::array<char, crypto_hash_sha256_BYTES * 2 + 1> hex{};
  return sodium_bin2hex(hex.data(), hex.size(), digest.data(), digest.size());
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 digest;
  digest.update(bytes);
  return digest.finish();
}

bool is_sha256_hex(const std::string& text) {
  return text.size() == std::size_t{crypto_hash_sha256_BYTES} * 2 &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace troupe::checkpoint
