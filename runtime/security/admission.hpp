/// The head's register of who may come in: permanent keys of nodes and clients, and open join tokens. It
/// keeps three things in step: what is on the disk, what the ZAP handler accepts, and the book of tokens.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/storage.hpp"
#include "runtime/security/authorizer.hpp"
#include "runtime/security/join_token.hpp"

namespace troupe {

/// Peers that connected with a join token are named so, and may do nothing but enroll.
inline constexpr std::string_view kJoinNamePrefix = "join/";
bool is_join_name(std::string_view name);

/// An identity of this boot of the machine: monotonic time says nothing across boots.
std::string current_boot_id();

/// Used by one thread (the head's). The disk comes first: when a write fails, nothing has changed.
class Admission {
 public:
  /// Reads the register from `storage` and lets everybody in it into `authorizer`. Tokens of an earlier boot
  /// have run out. Both references must outlive it. Errors: those of the storage, kCorrupt.
  static Result<std::unique_ptr<Admission>> open(Storage& storage, std::shared_ptr<Authorizer> authorizer,
                                                 const Clock& clock, std::string boot_id);

  /// A new token for the head at `head`. Errors: kBadConfig (lifetime not from 1 s to 30 days), kLimit, kIo.
  Result<JoinToken> issue(const Endpoint& head, const PublicKey& head_key, std::chrono::seconds lifetime);
  /// The peer `from`, which came in with a token, brings its permanent key and is `name` from now on. The
  /// token is used up. Errors: kRefused (token, or the name is another key's, or the key another peer's),
  /// kBadInput (the name), kIo.
  Result<void> enroll(const std::string& from, const PublicKey& key, const std::string& name);

  /// Lets `key` in as `name` for good, for as long as the peer `brought_by` is let in (empty: for as long as
  /// it is not removed). Errors as enroll, without the token.
  Result<void> add_peer(const PublicKey& key, const std::string& name, const std::string& brought_by = "");

  struct Peer {
    std::string name;
    std::string brought_by;
  };
  /// Everybody who is let in for good.
  const std::map<PublicKey, Peer>& peers() const { return peers_; }
  bool knows(const std::string& name) const { return keys_.contains(name); }
  /// Null: nobody of that name is let in.
  const Peer* find(const std::string& name) const {
    const auto at = keys_.find(name);
    return at == keys_.end() ? nullptr : &peers_.at(at->second);
  }
  /// Shuts the peer of that name out, with all that it brought: their names. Their connections are dropped.
  /// One that is not known is no error.
  Result<std::vector<std::string>> remove(const std::string& name);

  /// Forgets tokens that have run out. Call it now and then; the ZAP handler does not wait for it.
  Result<void> sweep();

 private:
  Admission(Storage& storage, std::shared_ptr<Authorizer> authorizer, const Clock& clock, std::string boot_id)
      : storage_(storage), authorizer_(std::move(authorizer)), clock_(clock), boot_id_(std::move(boot_id)) {}
  Result<void> restore_peers();
  Result<void> restore_tokens();
  void take(const PublicKey& key, Peer peer);
  Result<void> check_name(const PublicKey& key, const std::string& name) const;
  Result<void> check_key(const PublicKey& key, const std::string& name) const;

  Storage& storage_;
  std::shared_ptr<Authorizer> authorizer_;
  const Clock& clock_;
  std::string boot_id_;
  TokenBook book_;
  std::map<PublicKey, Peer> peers_;
  std::map<std::string, PublicKey> keys_;  ///< Invariant: peers_ the other way round.
};

}  // namespace troupe
