/// Keys by the time at which something is due with them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "runtime/core/clock.hpp"

namespace troupe::cluster {

/// A key is in it once; of those due at the same time, the one set first comes first. Everything takes O(log
/// n). Not thread-safe.
template <class Key>
class TimeQueue {
 public:
  /// Also moves a key that is in it.
  void set(const Key& key, Instant due) {
    erase(key);
    const std::pair at(due, ++sets_);
    due_.emplace(key, at);
    order_.emplace(at, key);
  }
  void erase(const Key& key) {
    const auto at = due_.find(key);
    if (at == due_.end()) return;
    order_.erase(at->second);
    due_.erase(at);
  }
  /// The next key that is due at `now`, which is taken out.
  std::optional<Key> pop_due(Instant now) {
    if (order_.empty() || order_.begin()->first.first > now) return std::nullopt;
    return pop_first();
  }
  /// The key that is due first, which is taken out.
  std::optional<Key> pop_first() {
    if (order_.empty()) return std::nullopt;
    const Key key = order_.begin()->second;
    erase(key);
    return key;
  }
  bool contains(const Key& key) const { return due_.contains(key); }
  std::size_t size() const { return due_.size(); }

 private:
  using Place = std::pair<Instant, std::uint64_t>;

  std::map<Key, Place> due_;
  std::map<Place, Key> order_;
  std::uint64_t sets_ = 0;
};

}  // namespace troupe::cluster
