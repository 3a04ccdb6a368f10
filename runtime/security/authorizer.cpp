#include "runtime/security/authorizer.hpp"

namespace troupe {

void Authorizer::allow(const PublicKey& key, std::string name, std::optional<Instant> until) {
  const std::lock_guard lock(mutex_);
  forget_name(key);
  keys_.insert_or_assign(name, key);
  entries_[key] = Entry{std::move(name), until};
}

void Authorizer::forget_name(const PublicKey& key) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  const auto its = keys_.find(at->second.name);
  if (its != keys_.end() && its->second == key) keys_.erase(its);
}

bool Authorizer::revoke(const PublicKey& key) {
  const std::lock_guard lock(mutex_);
  forget_name(key);
  return entries_.erase(key) > 0;
}

std::optional<std::string> Authorizer::find(const PublicKey& key) const {
  const std::lock_guard lock(mutex_);
  const Entry* entry = current(key);
  return entry == nullptr ? std::nullopt : std::optional(entry->name);
}

bool Authorizer::knows(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto at = keys_.find(name);
  return at != keys_.end() && current(at->second) != nullptr;
}

const Authorizer::Entry* Authorizer::current(const PublicKey& key) const {
  const auto at = entries_.find(key);
  if (at == entries_.end() || (at->second.until && clock_.now() >= *at->second.until)) return nullptr;
  return &at->second;
}

}  // namespace troupe
