/// CURVE key pairs (Curve25519, as ZeroMQ uses them) and how they get from one process to another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/security/secret.hpp"

namespace troupe {

/// Who a process is to others. Not secret: it may be printed.
struct PublicKey {
  static constexpr std::size_t kSize = 32;
  std::array<std::byte, kSize> bytes{};
  bool operator==(const PublicKey&) const = default;
  bool operator<(const PublicKey& other) const { return bytes < other.bytes; }

  static PublicKey from(std::span<const std::byte, kSize> bytes);
};
/// Z85, 40 characters, as ZeroMQ prints keys.
std::string to_string(const PublicKey& key);
/// Total: 40 characters of Z85 or an error.
Result<PublicKey> parse_public_key(std::string_view text);

using SecretKey = Secret<32>;

/// A pair of which the public half is computed from the secret one, so the two always belong together.
class CurveKeyPair {
 public:
  static CurveKeyPair generate();
  static CurveKeyPair from_secret(const SecretKey& secret);

  const PublicKey& public_key() const noexcept { return public_key_; }
  const SecretKey& secret_key() const noexcept { return secret_key_; }

 private:
  CurveKeyPair(const PublicKey& public_key, const SecretKey& secret_key)
      : public_key_(public_key), secret_key_(secret_key) {}

  PublicKey public_key_;
  SecretKey secret_key_;
};

/// One peer that may come in, and the name it has from then on.
struct AllowedPeer {
  PublicKey key;
  std::string name;
  bool operator==(const AllowedPeer&) const = default;
};

/// What one process of a cluster is given: its own pair, the head's public key, and, for the head, who may
/// come in. An embedded cluster keeps all of it in memory.
struct KeyBundle {
  CurveKeyPair own;
  PublicKey head;
  std::vector<AllowedPeer> allowed;
};

/// The most peers a bundle names, and the longest name.
inline constexpr std::size_t kMaxBundlePeers = 4096;
inline constexpr std::size_t kMaxPeerNameBytes = 64;

/// Writes the bundle to a sealed, unnamed, close-on-exec memory file. The parent passes that descriptor to a
/// child; a key never travels in argv, in the environment or through a file with a name.
/// REQUIRES: at most kMaxBundlePeers peers with names of 1 to kMaxPeerNameBytes bytes.
Result<UniqueFd> hand_over(const KeyBundle& bundle);
/// Reads what hand_over wrote, from the inherited descriptor. Refuses a file that others can still change.
Result<KeyBundle> take_over(UniqueFd fd);
/// The decoder behind take_over. Total.
Result<KeyBundle> decode_key_bundle(std::span<const std::byte> bytes);

}  // namespace troupe

template <>
struct std::hash<troupe::PublicKey> {
  std::size_t operator()(const troupe::PublicKey& key) const noexcept {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()});
  }
};
