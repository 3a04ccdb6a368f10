#include "runtime/security/admission.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "runtime/core/assert.hpp"
#include "runtime/core/byte_codec.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/security/check_word.hpp"

namespace troupe {

namespace {

constexpr std::string_view kPeerPrefix = "security/peer/";
constexpr std::string_view kTokenPrefix = "security/token/";
constexpr std::chrono::seconds kMaxLifetime = std::chrono::hours(24 * 30);

std::string peer_entry(const PublicKey& key) {
  return std::string(kPeerPrefix) + to_string(key);
}
std::string token_entry(std::uint64_t id) {
  return std::string(kTokenPrefix) + to_hex(id);
}
std::string join_name(std::uint64_t id) {
  return std::string(kJoinNamePrefix) + to_hex(id);
}

/// What the store has of a peer: its name, and who brought it. No name has a space.
std::string written(const Admission::Peer& peer) {
  return peer.brought_by.empty() ? peer.name : peer.name + ' ' + peer.brought_by;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

ErrorInfo corrupt(const std::string& key, const char* why = "it does not decode") {
  return {ErrorCode::kCorrupt, "cannot use the store's entry " + key, why, "restore the store from a copy"};
}

/// An entry's value as it is stored: a zero byte and the check word behind it. Older ones have neither.
Bytes sealed(const std::string& key, std::span<const std::byte> value) {
  Bytes bytes(value.begin(), value.end());
  ByteWriter(bytes).write(std::uint8_t{0}).write(check_word(as_bytes(key), value));
  return bytes;
}

Result<std::span<const std::byte>> unsealed(const StoreEntry& entry) {
  const std::span<const std::byte> all = entry.value;
  constexpr std::size_t kSeal = 1 + sizeof(CheckWord);
  if (all.size() < kSeal || all[all.size() - kSeal] != std::byte{0}) return all;
  const auto value = all.first(all.size() - kSeal);
  if (!std::ranges::equal(all.last(sizeof(CheckWord)), check_word(as_bytes(entry.key), value)))
    return corrupt(entry.key, "it is damaged: its check word is that of another value");
  return value;
}

Bytes encode_token(const IssuedToken& token, const std::string& boot_id) {
  Bytes bytes;
  ByteWriter(bytes)
      .write(token.id)
      .write(static_cast<std::uint64_t>(token.expires.count()))
      .write(token.key.bytes)
      .write(boot_id);
  return bytes;
}

bool decode_token(std::span<const std::byte> bytes, IssuedToken& token, std::string& boot_id) {
  ByteReader reader(bytes);
  std::uint64_t expires_ns = 0;
  if (!reader.read(token.id) || !reader.read(expires_ns) || !reader.read(token.key.bytes)) return false;
  token.expires = Instant(static_cast<std::int64_t>(expires_ns));
  return reader.read(boot_id, reader.rest().size());
}

}  // namespace

bool is_join_name(std::string_view name) {
  return name.starts_with(kJoinNamePrefix);
}

std::string current_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

Result<std::unique_ptr<Admission>> Admission::open(Storage& storage, std::shared_ptr<Authorizer> authorizer,
                                                   const Clock& clock, std::string boot_id) {
  std::unique_ptr<Admission> admission(
      new Admission(storage, std::move(authorizer), clock, std::move(boot_id)));
  if (auto restored = admission->restore_peers(); !restored) return restored.error();
  if (auto restored = admission->restore_tokens(); !restored) return restored.error();
  return admission;
}

Result<void> Admission::restore_peers() {
  const auto entries = storage_.scan(kPeerPrefix);
  if (!entries) return entries.error();
  for (const StoreEntry& entry : *entries) {
    const auto value = unsealed(entry);
    if (!value) return value.error();
    const auto key = parse_public_key(std::string_view(entry.key).substr(kPeerPrefix.size()));
    const std::string text(reinterpret_cast<const char*>(value->data()), value->size());
    const auto space = text.find(' ');
    const Peer peer{text.substr(0, space), space == std::string::npos ? "" : text.substr(space + 1)};
    const bool is_text = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
    if (!key || !is_text || !check_name(*key, peer.name)) return corrupt(entry.key);
    take(*key, peer);
  }
  return {};
}

Result<void> Admission::restore_tokens() {
  const auto entries = storage_.scan(kTokenPrefix);
  if (!entries) return entries.error();
  StoreBatch outdated;
  for (const StoreEntry& entry : *entries) {
    const auto value = unsealed(entry);
    if (!value) return value.error();
    IssuedToken token;
    std::string boot_id;
    if (!decode_token(*value, token, boot_id)) return corrupt(entry.key);
    if (boot_id != boot_id_ || clock_.now() >= token.expires || !book_.add(token)) {
      outdated.erase(entry.key);
    } else {
      authorizer_->allow(token.key, join_name(token.id), token.expires);
    }
  }
  // A disk that is full is no reason not to start: those tokens are not let in, and are erased the next time.
  (void)storage_.apply(outdated);
  return {};
}

Result<JoinToken> Admission::issue(const Endpoint& head, const PublicKey& head_key,
                                   std::chrono::seconds lifetime) {
  if (lifetime < std::chrono::seconds(1) || lifetime > kMaxLifetime) {
    return ErrorInfo{ErrorCode::kBadConfig, "cannot issue a join token",
                     "it would live for " + std::to_string(lifetime.count()) + " s",
                     "choose from 1 second to 30 days"};
  }
  std::uint64_t id = 0;
  fill_random(std::as_writable_bytes(std::span(&id, 1)));
  JoinToken token{head, head_key, CurveKeyPair::generate(), id, lifetime};
  const IssuedToken issued{id, token.one_time.public_key(), clock_.now() + lifetime};
  if (auto added = book_.add(issued); !added) return added.error();
  if (auto stored = storage_.put(token_entry(id), sealed(token_entry(id), encode_token(issued, boot_id_)));
      !stored) {
    book_.close(id);
    return stored.error();
  }
  authorizer_->allow(issued.key, join_name(id), issued.expires);
  return token;
}

void Admission::take(const PublicKey& key, Peer peer) {
  if (const auto before = peers_.find(key); before != peers_.end()) keys_.erase(before->second.name);
  keys_.insert_or_assign(peer.name, key);
  authorizer_->allow(key, peer.name);
  peers_[key] = std::move(peer);
  TROUPE_ASSERT(keys_.size() == peers_.size(), "a key has one name, and a name one key");
}

Result<void> Admission::check_name(const PublicKey& key, const std::string& name) const {
  const bool readable = !name.empty() && name.size() <= kMaxPeerNameBytes && !is_join_name(name) &&
                        std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!readable) {
    return ErrorInfo{ErrorCode::kBadInput, "cannot name a peer so",
                     "a name has 1 to 64 printable characters and does not begin with join/",
                     "choose another"};
  }
  const auto holder = keys_.find(name);
  if (holder != keys_.end() && holder->second != key) {
    return ErrorInfo{ErrorCode::kRefused, "refused the name '" + name + "'", "another key has it",
                     "choose another, or remove that peer first"};
  }
  return {};
}

/// Who brings another's public key, which is no secret, would shut that one out.
Result<void> Admission::check_key(const PublicKey& key, const std::string& name) const {
  const auto holder = authorizer_->find(key);
  if (!holder || *holder == name) return {};
  return ErrorInfo{ErrorCode::kRefused, "refused a key for '" + name + "'", "it is that of " + *holder,
                   "generate a key pair"};
}

Result<void> Admission::enroll(const std::string& from, const PublicKey& key, const std::string& name) {
  std::uint64_t id = 0;
  const std::string_view digits =
      std::string_view(from).substr(std::min(from.size(), kJoinNamePrefix.size()));
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id, 16);
  if (!is_join_name(from) || error != std::errc{} || end != digits.data() + digits.size()) {
    return ErrorInfo{ErrorCode::kRefused, "refused to enroll '" + from + "'",
                     "it did not come in with a join token", "join with a token from `troupe token`"};
  }
  const auto token = book_.find(id, clock_.now());
  if (!token) return token.error();
  if (auto named = check_name(key, name); !named) return named;
  if (key == token->key) {
    return ErrorInfo{ErrorCode::kRefused, "refused to enroll '" + from + "'",
                     "it brought the token's own key", "generate a key pair on the joining machine"};
  }
  if (auto free = check_key(key, name); !free) return free;
  const std::string entry = peer_entry(key);
  auto stored = storage_.apply(StoreBatch().erase(token_entry(id)).put(entry, sealed(entry, as_bytes(name))));
  if (!stored) return stored;
  book_.close(id);
  authorizer_->revoke(token->key);
  take(key, {name, {}});
  return {};
}

Result<void> Admission::add_peer(const PublicKey& key, const std::string& name,
                                 const std::string& brought_by) {
  if (auto named = check_name(key, name); !named) return named;
  if (auto free = check_key(key, name); !free) return free;
  Peer peer{name, brought_by};
  const std::string entry = peer_entry(key);
  if (auto stored = storage_.put(entry, sealed(entry, as_bytes(written(peer)))); !stored) return stored;
  take(key, std::move(peer));
  return {};
}

Result<std::vector<std::string>> Admission::remove(const std::string& name) {
  std::vector<std::string> names;
  if (!knows(name)) return names;
  std::vector<PublicKey> gone;
  StoreBatch batch;
  for (const auto& [key, peer] : peers_) {
    if (peer.name != name && peer.brought_by != name) continue;
    gone.push_back(key);
    batch.erase(peer_entry(key));
  }
  if (auto stored = storage_.apply(batch); !stored) return stored.error();
  for (const PublicKey& key : gone) {
    const auto peer = peers_.find(key);
    names.push_back(peer->second.name);
    keys_.erase(peer->second.name);
    peers_.erase(peer);
    authorizer_->revoke(key);
  }
  return names;
}

Result<void> Admission::sweep() {
  StoreBatch batch;
  for (const IssuedToken& token : book_.expire(clock_.now())) {
    authorizer_->revoke(token.key);
    batch.erase(token_entry(token.id));
  }
  return batch.empty() ? Result<void>() : storage_.apply(batch);
}

}  // namespace troupe
