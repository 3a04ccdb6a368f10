#include "runtime/security/join_token.hpp"

#include <sodium.h>

#include <algorithm>

#include "runtime/core/byte_codec.hpp"

namespace troupe {

namespace {

constexpr std::string_view kPrefix = "troupe-join-v1.";
constexpr int kVariant = sodium_base64_VARIANT_URLSAFE_NO_PADDING;
constexpr std::size_t kMaxHostChars = 253;
constexpr std::size_t kFixedBytes = 8 + 4 + 32 + 32 + 2 + 1;
constexpr std::size_t kChecksumBytes = 16;
constexpr std::size_t kMaxTokenBytes = kFixedBytes + kMaxHostChars + kChecksumBytes;

using Checksum = std::array<std::byte, kChecksumBytes>;

/// Against typing and copying errors. What makes a token valid is the head's knowledge of its key.
Checksum checksum(std::span<const std::byte> bytes) {
  Checksum sum{};
  crypto_generichash(reinterpret_cast<unsigned char*>(sum.data()), sum.size(),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), nullptr, 0);
  return sum;
}

ErrorInfo bad_token(std::string why) {
  return {ErrorCode::kBadInput, "cannot read the join token", std::move(why),
          "copy the whole text that `troupe token` printed on the head's machine"};
}

Result<JoinToken> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kFixedBytes + kChecksumBytes) return bad_token("it is cut off");
  const auto body = bytes.first(bytes.size() - kChecksumBytes);
  const Checksum sum = checksum(body);
  if (!std::equal(sum.begin(), sum.end(), bytes.subspan(body.size()).begin())) {
    return bad_token("its checksum does not hold: it was changed or cut off");
  }
  ByteReader reader(body);
  std::uint64_t id = 0;
  std::uint32_t lifetime_s = 0;
  PublicKey head_key;
  SecretKey secret;
  std::uint16_t port = 0;
  std::uint8_t chars = 0;
  std::string host;
  if (!reader.read(id) || !reader.read(lifetime_s) || !reader.read(head_key.bytes) ||
      !reader.read(secret.reveal_for_writing()) || !reader.read(port) || !reader.read(chars) ||
      !reader.read(host, chars) || !reader.done()) {
    return bad_token("its parts do not fit its length");
  }
  const auto head = parse_endpoint(to_string(Endpoint{host, port}));
  if (!head || head->host != host) return bad_token("it names no address");
  return JoinToken{*head, head_key, CurveKeyPair::from_secret(secret), id, std::chrono::seconds(lifetime_s)};
}

}  // namespace

std::string write_join_token(const JoinToken& token) {
  TROUPE_ASSERT(token.head.host.size() <= kMaxHostChars, "a host name that is too long for a token");
  std::vector<std::byte> bytes;
  bytes.reserve(kMaxTokenBytes);  // no reallocation leaves a copy of the secret behind
  ByteWriter writer(bytes);
  writer.write(token.id).write(static_cast<std::uint32_t>(token.lifetime.count()));
  writer.write(token.head_key.bytes).write(token.one_time.secret_key().reveal());
  writer.write(token.head.port).write(static_cast<std::uint8_t>(token.head.host.size()));
  writer.write(token.head.host);
  const Checksum sum = checksum(bytes);
  writer.write(sum);
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), kVariant);
  wipe(bytes);
  text.pop_back();  // the terminating zero
  return std::string(kPrefix) + text;
}

Result<JoinToken> read_join_token(std::string_view text) {
  if (!text.starts_with(kPrefix)) {
    return bad_token("it does not begin with " + std::string(kPrefix));
  }
  text.remove_prefix(kPrefix.size());
  // libsodium 1.0.18 takes every byte above 0x7f for the last letter of its alphabet.
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) > 0x7f; })) {
    return bad_token("it has characters that no token has");
  }
  std::vector<std::byte> bytes(kMaxTokenBytes);
  std::size_t size = 0;
  const int rc = sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                                   text.size(), nullptr, &size, nullptr, kVariant);
  auto token = rc == 0 ? decode(std::span(bytes).first(size))
                       : Result<JoinToken>(bad_token("it has characters that no token has, or is too long"));
  wipe(bytes);
  return token;
}

Result<void> TokenBook::add(const IssuedToken& token) {
  if (tokens_.size() >= kMaxOpenTokens) {
    return ErrorInfo{ErrorCode::kLimit, "cannot issue a join token",
                     std::to_string(tokens_.size()) + " are open", "wait until some were used or ran out"};
  }
  if (!tokens_.emplace(token.id, token).second) {
    return ErrorInfo{ErrorCode::kRefused, "cannot issue a join token", "its id is taken", "try again"};
  }
  return {};
}

Result<IssuedToken> TokenBook::find(std::uint64_t id, Instant now) const {
  const auto at = tokens_.find(id);
  const bool known = at != tokens_.end();
  if (known && now < at->second.expires) return at->second;
  return ErrorInfo{ErrorCode::kRefused, "refused a join token",
                   known ? "it has run out" : "it is not known here, or was used before",
                   "print a new one on the head's machine with `troupe token`"};
}

bool TokenBook::close(std::uint64_t id) {
  return tokens_.erase(id) > 0;
}

std::vector<IssuedToken> TokenBook::expire(Instant now) {
  std::vector<IssuedToken> gone;
  for (auto at = tokens_.begin(); at != tokens_.end();) {
    if (now < at->second.expires) {
      ++at;
      continue;
    }
    gone.push_back(at->second);
    at = tokens_.erase(at);
  }
  return gone;
}

}  // namespace troupe
