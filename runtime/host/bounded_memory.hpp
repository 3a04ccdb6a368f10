/// What is remembered of the dead: the last so many, in order of arrival. Who is forgotten is asked for
/// again.
#pragma once

#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>

namespace troupe {

/// Not thread-safe.
template <class Key, class Value>
class BoundedMemory {
 public:
  explicit BoundedMemory(std::size_t most = 4096) : most_(most) {}

  /// The first word about a key counts.
  void remember(const Key& key, Value value) {
    if (!values_.emplace(key, std::move(value)).second) return;
    order_.push_back(key);
    if (order_.size() <= most_) return;
    values_.erase(order_.front());
    order_.pop_front();
  }
  /// Null when it is not known (any more).
  const Value* find(const Key& key) const {
    const auto at = values_.find(key);
    return at == values_.end() ? nullptr : &at->second;
  }
  std::size_t size() const { return values_.size(); }

 private:
  const std::size_t most_;
  std::unordered_map<Key, Value> values_;
  std::deque<Key> order_;
};

}  // namespace troupe
