/// Who may come in: the keys that the ZAP handler accepts, and the names they stand for.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/core/clock.hpp"
#include "runtime/security/curve_keys.hpp"

namespace troupe {

/// The set of accepted public keys. Thread-safe. A key that was revoked or has run out is refused at the next
/// handshake, and the server drops what still arrives on connections it opened before.
class Authorizer {
 public:
  explicit Authorizer(const Clock& clock) : clock_(clock) {}

  /// Accepts `key` as `name`, until `until` if given. A key that is known already gets the new name and time.
  void allow(const PublicKey& key, std::string name, std::optional<Instant> until = std::nullopt);
  /// Returns false when the key was not known.
  bool revoke(const PublicKey& key);
  /// The name `key` stands for now, or nothing.
  std::optional<std::string> find(const PublicKey& key) const;
  /// Whether a key stands for that name now.
  bool knows(const std::string& name) const;

 private:
  struct Entry {
    std::string name;
    std::optional<Instant> until;
  };
  // REQUIRES: mutex_ is held.
  void forget_name(const PublicKey& key);
  const Entry* current(const PublicKey& key) const;

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::unordered_map<PublicKey, Entry> entries_;     ///< guarded by mutex_
  std::unordered_map<std::string, PublicKey> keys_;  ///< the last key of each name; guarded by mutex_
};

}  // namespace troupe
