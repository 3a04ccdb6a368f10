#include "collectives/secret_stream.hpp"

#include <sodium.h>

#include <cstdint>
#include <cstring>

#include "runtime/core/assert.hpp"
#include "runtime/core/byte_codec.hpp"

namespace troupe::collectives {
namespace {

static_assert(sizeof(crypto_secretstream_xchacha20poly1305_state) <= sizeof(SecretState));
static_assert(crypto_secretstream_xchacha20poly1305_HEADERBYTES == kSecretHeaderBytes);
static_assert(crypto_secretstream_xchacha20poly1305_ABYTES == kSecretTagBytes);
static_assert(crypto_secretstream_xchacha20poly1305_KEYBYTES == sizeof(SessionKey));

constexpr std::size_t kKeptBytes = 4096;  ///< of an empty buffer; more is given back

crypto_secretstream_xchacha20poly1305_state* of(SecretState& state) {
  return reinterpret_cast<crypto_secretstream_xchacha20poly1305_state*>(state.bytes.data());
}
unsigned char* chars(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* chars(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

void start_sodium() {
  static const int ready = sodium_init();
  TROUPE_ASSERT(ready >= 0, "libsodium starts");
}

}  // namespace

SecretSealer::SecretSealer(const SessionKey& key) {
  start_sodium();
  crypto_secretstream_xchacha20poly1305_init_push(of(state_), chars(header_.data()), chars(key.data()));
}

void SecretSealer::seal(std::span<const std::byte> body, std::vector<std::byte>& out) {
  if (!std::exchange(said_header_, true)) out.insert(out.end(), header_.begin(), header_.end());
  const std::size_t at = out.size();
  ByteWriter(out).write(static_cast<std::uint32_t>(body.size()));
  out.resize(at + kSecretLengthBytes + body.size() + kSecretTagBytes);
  std::byte* const length = out.data() + at;
  const int done = crypto_secretstream_xchacha20poly1305_push(
      of(state_), chars(length + kSecretLengthBytes), nullptr, chars(body.data()), body.size(), chars(length),
      kSecretLengthBytes, crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
  TROUPE_ASSERT(done == 0, "a body is shorter than 256 GiB");
}

void SecretOpener::make_room(std::size_t bytes) {
  if (buffer_.size() - end_ >= bytes) return;
  if (begin_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() < end_ + bytes) buffer_.resize(end_ + bytes);
}

void SecretOpener::feed(std::span<const std::byte> bytes) {
  if (failure_ || bytes.empty()) return;
  make_room(bytes.size());
  std::memcpy(buffer_.data() + end_, bytes.data(), bytes.size());
  commit(bytes.size());
}

std::span<std::byte> SecretOpener::room() {
  const std::size_t frame = kSecretHeaderBytes + kSecretLengthBytes + max_body_ + kSecretTagBytes;
  make_room(frame - std::min(frame, end_ - begin_));
  return std::span(buffer_).subspan(end_);
}

Result<std::optional<std::size_t>> SecretOpener::next_bytes() {
  if (failure_) return *failure_;
  if (!has_header_) {
    if (end_ - begin_ < kSecretHeaderBytes) return std::optional<std::size_t>();
    start_sodium();
    crypto_secretstream_xchacha20poly1305_init_pull(of(state_), chars(buffer_.data() + begin_),
                                                    chars(key_.data()));
    begin_ += kSecretHeaderBytes;
    has_header_ = true;
  }
  std::uint32_t length = 0;
  if (!ByteReader(kept()).read(length)) return std::optional<std::size_t>();
  if (length > max_body_) {
    failure_ = {ErrorCode::kLimit, "a sealed frame is too long",
                std::to_string(length) + " bytes and no more than " + std::to_string(max_body_), ""};
    return *failure_;
  }
  if (kept().size() < kSecretLengthBytes + length + kSecretTagBytes) return std::optional<std::size_t>();
  return std::optional<std::size_t>(length);
}

Result<void> SecretOpener::open(std::span<std::byte> body) {
  const std::byte* const length = buffer_.data() + begin_;
  const std::size_t sealed = body.size() + kSecretTagBytes;
  TROUPE_ASSERT(end_ - begin_ >= kSecretLengthBytes + sealed, "the frame is whole");
  unsigned char tag = 0;
  if (crypto_secretstream_xchacha20poly1305_pull(of(state_), chars(body.data()), nullptr, &tag,
                                                 chars(length + kSecretLengthBytes), sealed, chars(length),
                                                 kSecretLengthBytes) != 0) {
    failure_ = {ErrorCode::kRefused, "a sealed frame is not what its sender sealed",
                "it was altered, repeated, left out or reordered on its way", ""};
    return *failure_;
  }
  begin_ += kSecretLengthBytes + sealed;
  if (empty()) begin_ = end_ = 0;
  return {};
}

Result<std::optional<std::vector<std::byte>>> SecretOpener::next() {
  const auto bytes = next_bytes();
  if (!bytes) return bytes.error();
  if (!*bytes) return std::optional<std::vector<std::byte>>();
  std::vector<std::byte> body(**bytes);
  if (auto opened = open(body); !opened) return opened.error();
  // Of the thousands of connections of a store, most are idle.
  if (empty() && buffer_.size() > kKeptBytes) buffer_ = {};
  return std::optional(std::move(body));
}

}  // namespace troupe::collectives
