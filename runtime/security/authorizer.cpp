#include "runtime/security/authorizer.hpp"

namespace troupe {

void Authorizer::allow(const PublicKey& key, std::string name, std::optional<Instant> until) {
  const std::lock_guard lock(mutex_);
  entries_[key] = Entry{std::move(name), until};
}

bool Authorizer::revoke(const PublicKey& key) {
  const std::lock_guard lock(mutex_);
  return entries_.erase(key) > 0;
}

std::optional<std::string> Authorizer::find(const PublicKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) return std::nullopt;
  if (at->second.until && clock_.now() >= *at->second.until) return std::nullopt;
  return at->second.name;
}

}  // namespace troupe
