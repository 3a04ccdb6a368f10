#include "actors/checkpoint/sha256.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <new>

#include "runtime/core/assert.hpp"
#include "runtime/core/hex.hpp"

namespace troupe::checkpoint {
namespace {

constexpr std::size_t kDigestBytes = 32;

EVP_MD_CTX* context_of(auto* context) {
  return reinterpret_cast<EVP_MD_CTX*>(context);
}

}  // namespace

void Sha256::Free::operator()(Context* context) const {
  EVP_MD_CTX_free(context_of(context));
}

Sha256::Sha256() : context_(reinterpret_cast<Context*>(EVP_MD_CTX_new())) {
  if (context_ == nullptr) throw std::bad_alloc();
  TROUPE_ASSERT(EVP_DigestInit_ex(context_of(context_.get()), EVP_sha256(), nullptr) == 1, "OpenSSL has SHA-256");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  TROUPE_ASSERT(context_ != nullptr, "no bytes after the digest");
  TROUPE_ASSERT(EVP_DigestUpdate(context_of(context_.get()), bytes.data(), bytes.size()) == 1,
                "a digest in memory takes all bytes");
}

std::string Sha256::finish() {
  TROUPE_ASSERT(context_ != nullptr, "a digest is taken once");
  std::array<unsigned char, kDigestBytes> digest{};
  unsigned size = 0;
  TROUPE_ASSERT(EVP_DigestFinal_ex(context_of(context_.get()), digest.data(), &size) == 1 && size == kDigestBytes,
                "a SHA-256 has 32 bytes");
  context_.reset();
  return to_hex(std::as_bytes(std::span(digest)));
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 digest;
  digest.update(bytes);
  return digest.finish();
}

bool is_sha256_hex(const std::string& text) {
  return text.size() == 2 * kDigestBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace troupe::checkpoint
