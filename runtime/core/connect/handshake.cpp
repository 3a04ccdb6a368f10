#include "runtime/core/connect/handshake.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "runtime/core/assert.hpp"
#include "runtime/core/byte_codec.hpp"
#include "runtime/core/hex.hpp"

namespace troupe {
namespace {

constexpr std::uint32_t kMagic = 0x53485254;  // "TRHS"
constexpr std::uint16_t kVersion = 2;
enum MessageType : std::uint16_t { kHello = 1, kChallenge = 2, kProof = 3, kAccept = 4 };

// Offsets; docs/collectives/between-hosts.md draws them. Every message: magic 0, version 4, type 6.
constexpr std::size_t kVerdictAt = 8;      // challenge, accept
constexpr std::size_t kGenerationAt = 8;   // hello: incarnation, counter
constexpr std::size_t kWorldSizeAt = 16;   // hello
constexpr std::size_t kFromAt = 20;        // hello
constexpr std::size_t kToAt = 24;          // hello
constexpr std::size_t kEncryptsAt = 28;    // hello
constexpr std::size_t kHelloNonceAt = 32;  // 32 bytes
constexpr std::size_t kNonceAt = 16;       // challenge, 32 bytes
constexpr std::size_t kChallengeTagAt = 48;
constexpr std::size_t kTagAt = 16;  // proof, accept
constexpr std::size_t kTagBytes = 32;
constexpr std::size_t kNonceBytes = 32;

using Tag = std::array<std::byte, kTagBytes>;

void put_header(std::span<std::byte> message, MessageType type) {
  put_at(message, 0, kMagic);
  put_at(message, 4, kVersion);
  put_at(message, 6, static_cast<std::uint16_t>(type));
}
bool has_header(std::span<const std::byte> message, MessageType type) {
  return get_at<std::uint32_t>(message, 0) == kMagic && get_at<std::uint16_t>(message, 4) == kVersion &&
         get_at<std::uint16_t>(message, 6) == type;
}

/// MAC over the role, which is padded so that no role and message can be read as another, and `parts`.
Tag mac(KeyView key, std::string_view purpose, std::string_view role,
        std::initializer_list<std::span<const std::byte>> parts) {
  static const int ready = sodium_init();
  TROUPE_ASSERT(ready >= 0, "libsodium starts");
  const std::string label = "troupe " + std::string(purpose) + " 1 " + std::string(role);
  std::array<unsigned char, 32> padded{};
  TROUPE_ASSERT(label.size() <= padded.size(), "a role fits its field");
  std::memcpy(padded.data(), label.data(), label.size());
  crypto_generichash_state state;
  crypto_generichash_init(&state, reinterpret_cast<const unsigned char*>(key.data()), key.size(), kTagBytes);
  crypto_generichash_update(&state, padded.data(), padded.size());
  for (const auto part : parts) {
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(part.data()), part.size());
  }
  Tag tag;
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(tag.data()), tag.size());
  return tag;
}

bool same(std::span<const std::byte> a, const Tag& b) {
  return ::sodium_memcmp(a.data(), b.data(), b.size()) == 0;  // in constant time
}

constexpr std::string_view kAcceptorRole = "acceptor";
constexpr std::string_view kConnectorRole = "connector";
constexpr std::string_view kAcceptedRole = "accepted";

}  // namespace

std::string private_name(KeyView key, const std::string& what) {
  const Tag tag = mac(key, "name", "", {std::as_bytes(std::span(what))});
  return to_hex(std::span(tag).first(16));
}

ErrorInfo ConnectorHandshake::refused(std::string why, std::string todo) const {
  return {ErrorCode::kRefused,
          "no " + std::string(purpose_) + " connection with rank " + std::to_string(peer_), std::move(why),
          std::move(todo)};
}

ErrorInfo ConnectorHandshake::verdict_error(std::uint32_t verdict) {
  verdict_ = static_cast<Verdict>(verdict);
  switch (verdict_) {
    case Verdict::kVersion:
      return refused("it speaks another version of the handshake", "run the same build everywhere");
    case Verdict::kGeneration:
      return refused("it is at another generation", "one of the two is stale: leave it to the driver");
    case Verdict::kWorldSize:
      return refused("it has another world size", "one of the two is stale: leave it to the driver");
    case Verdict::kRank:
      return refused("it is another rank, or does not await this one", "check the ranks' addresses");
    case Verdict::kEncryption:
      return refused(
          "one of the two encrypts what ranks of different hosts send each other, and the other does not",
          "give encrypt_data_plane on every rank, or on none");
    case Verdict::kKey:
      return refused("it has another job key", "the two do not belong to one job");
    case Verdict::kWelcome:
      break;
  }
  return refused("it answered with what is not a verdict", "something else listens at its address");
}

ConnectorHandshake::ConnectorHandshake(KeyView key, const HandshakeIdentity& self, int peer, Random& random)
    : key_(key), purpose_(self.purpose), peer_(peer) {
  put_header(hello_, kHello);
  put_at(hello_, kGenerationAt, self.generation.incarnation);
  put_at(hello_, kGenerationAt + 4, self.generation.counter);
  put_at(hello_, kWorldSizeAt, static_cast<std::uint32_t>(self.world_size));
  put_at(hello_, kFromAt, static_cast<std::uint32_t>(self.rank));
  put_at(hello_, kToAt, static_cast<std::uint32_t>(peer));
  put_at(hello_, kEncryptsAt, std::uint32_t{self.encrypts ? 1U : 0U});
  random.fill(std::span(hello_).subspan(kHelloNonceAt, kNonceBytes));
}

Result<ProofBytes> ConnectorHandshake::on_challenge(const ChallengeBytes& challenge) {
  if (!has_header(challenge, kChallenge)) {
    return refused("its answer is no challenge", "something else listens at its address");
  }
  const auto verdict = get_at<std::uint32_t>(challenge, kVerdictAt);
  if (verdict != static_cast<std::uint32_t>(Verdict::kWelcome)) return verdict_error(verdict);
  const auto said = std::span(challenge).first(kChallengeTagAt);
  const Tag wanted = mac(key_, purpose_, kAcceptorRole, {hello_, said});
  if (!same(std::span(challenge).subspan(kChallengeTagAt, kTagBytes), wanted)) {
    return verdict_error(static_cast<std::uint32_t>(Verdict::kKey));
  }
  challenge_ = challenge;
  put_header(proof_, kProof);
  const Tag tag = mac(key_, purpose_, kConnectorRole, {hello_, challenge_, std::span(proof_).first(kTagAt)});
  std::memcpy(proof_.data() + kTagAt, tag.data(), tag.size());
  return proof_;
}

Result<void> ConnectorHandshake::on_accept(const AcceptBytes& accept) {
  if (!has_header(accept, kAccept)) return verdict_error(0);
  const auto verdict = get_at<std::uint32_t>(accept, kVerdictAt);
  if (verdict != static_cast<std::uint32_t>(Verdict::kWelcome)) return verdict_error(verdict);
  const Tag wanted =
      mac(key_, purpose_, kAcceptedRole, {hello_, challenge_, proof_, std::span(accept).first(kTagAt)});
  if (same(std::span(accept).subspan(kTagAt, kTagBytes), wanted)) return {};
  return verdict_error(static_cast<std::uint32_t>(Verdict::kKey));
}

Tag ConnectorHandshake::session_key(std::string_view direction) const {
  return mac(key_, purpose_, direction, {hello_, challenge_, proof_});
}

Tag AcceptorHandshake::session_key(std::string_view direction) const {
  return mac(key_, self_.purpose, direction, {hello_, challenge_, proof_});
}

AcceptorHandshake::AcceptorHandshake(KeyView key, const HandshakeIdentity& self, Random& random)
    : key_(key), self_(self), random_(random) {}

bool AcceptorHandshake::may_be_hello(std::span<const std::byte> begin) {
  std::array<std::byte, 4> magic;
  put_at(magic, 0, kMagic);
  const std::size_t n = std::min(begin.size(), magic.size());
  return std::equal(magic.begin(), magic.begin() + static_cast<std::ptrdiff_t>(n), begin.begin());
}

/// `proving`: what the connector waits for is an accept.
ErrorInfo AcceptorHandshake::refuse(Verdict verdict, std::string why, bool proving) {
  refusal_bytes_ = proving ? sizeof(AcceptBytes) : sizeof(ChallengeBytes);
  put_header(refusal_, proving ? kAccept : kChallenge);
  put_at(refusal_, kVerdictAt, static_cast<std::uint32_t>(verdict));
  return {ErrorCode::kRefused, "refused a " + std::string(self_.purpose) + " connection", std::move(why), ""};
}

Result<ChallengeBytes> AcceptorHandshake::on_hello(const HelloBytes& hello) {
  if (!may_be_hello(hello) || get_at<std::uint16_t>(hello, 6) != kHello) {
    return ErrorInfo{ErrorCode::kRefused, "refused a " + std::string(self_.purpose) + " connection",
                     "what it sent is no hello", ""};
  }
  const auto version = get_at<std::uint16_t>(hello, 4);
  if (version != kVersion) {
    return refuse(Verdict::kVersion, "it speaks version " + std::to_string(version) + " and not " +
                                         std::to_string(kVersion) + " of the handshake");
  }
  const Generation generation{get_at<std::uint32_t>(hello, kGenerationAt),
                              get_at<std::uint32_t>(hello, kGenerationAt + 4)};
  if (generation > self_.generation) {
    // This rank is late: whoever hears nothing tries again.
    return ErrorInfo{ErrorCode::kUnavailable, "hung up on a " + std::string(self_.purpose) + " connection",
                     "it is at the later generation " + to_string(generation), ""};
  }
  if (generation != self_.generation) {
    return refuse(Verdict::kGeneration, "it is at generation " + to_string(generation) + " and not at " +
                                            to_string(self_.generation));
  }
  world_size_ = get_at<std::uint32_t>(hello, kWorldSizeAt);
  const auto from = get_at<std::uint32_t>(hello, kFromAt), to = get_at<std::uint32_t>(hello, kToAt);
  if (to != static_cast<std::uint32_t>(self_.rank) || from == to || from >= world_size_) {
    return refuse(Verdict::kRank, "it says it is rank " + std::to_string(from) + " and looks for rank " +
                                      std::to_string(to) + "; this is rank " + std::to_string(self_.rank));
  }
  peer_ = static_cast<int>(from);
  hello_ = hello;
  put_header(challenge_, kChallenge);
  put_at(challenge_, kVerdictAt, static_cast<std::uint32_t>(Verdict::kWelcome));
  random_.fill(std::span(challenge_).subspan(kNonceAt, kNonceBytes));
  const Tag tag =
      mac(key_, self_.purpose, kAcceptorRole, {hello_, std::span(challenge_).first(kChallengeTagAt)});
  std::memcpy(challenge_.data() + kChallengeTagAt, tag.data(), tag.size());
  return challenge_;
}

Result<AcceptBytes> AcceptorHandshake::on_proof(const ProofBytes& proof) {
  const Tag wanted =
      mac(key_, self_.purpose, kConnectorRole, {hello_, challenge_, std::span(proof).first(kTagAt)});
  if (!has_header(proof, kProof) || !same(std::span(proof).subspan(kTagAt, kTagBytes), wanted)) {
    return refuse(Verdict::kKey,
                  "it says it is rank " + std::to_string(peer_) +
                      " and did not prove that it has the job's key for this connection",
                  true);
  }
  has_key_ = true;
  if (world_size_ != static_cast<std::uint32_t>(self_.world_size)) {
    return refuse(Verdict::kWorldSize,
                  "rank " + std::to_string(peer_) + " says that the world size is " +
                      std::to_string(world_size_) + " and not " + std::to_string(self_.world_size),
                  true);
  }
  if ((get_at<std::uint32_t>(hello_, kEncryptsAt) != 0) != self_.encrypts) {
    return refuse(Verdict::kEncryption,
                  "rank " + std::to_string(peer_) + (self_.encrypts ? " does not encrypt" : " encrypts") +
                      " what ranks of different hosts send each other, and this rank does" +
                      (self_.encrypts ? "" : " not"),
                  true);
  }
  proof_ = proof;
  AcceptBytes accept{};
  put_header(accept, kAccept);
  put_at(accept, kVerdictAt, static_cast<std::uint32_t>(Verdict::kWelcome));
  const Tag tag =
      mac(key_, self_.purpose, kAcceptedRole, {hello_, challenge_, proof, std::span(accept).first(kTagAt)});
  std::memcpy(accept.data() + kTagAt, tag.data(), tag.size());
  return accept;
}

}  // namespace troupe
