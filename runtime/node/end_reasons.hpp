/// A bounded memory of what ended, and why.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>

namespace troupe::node {

/// The last `limit` ids with the reason of each one's end, or what else there is to say of it. Not
/// thread-safe.
template <class Key, class Reason = std::string>
class EndReasons {
 public:
  explicit EndReasons(std::size_t limit) : limit_(limit) {}

  void add(Key key, Reason reason) {
    if (!reasons_.emplace(key, std::move(reason)).second) return;
    order_.push_back(key);
    if (order_.size() <= limit_) return;
    reasons_.erase(order_.front());
    order_.pop_front();
  }
  /// Null: not known to have ended, or forgotten.
  const Reason* find(Key key) const {
    const auto at = reasons_.find(key);
    return at == reasons_.end() ? nullptr : &at->second;
  }
  std::size_t size() const { return order_.size(); }

 private:
  const std::size_t limit_;
  std::deque<Key> order_;  ///< Invariant: the keys of reasons_, oldest first.
  std::unordered_map<Key, Reason> reasons_;
};

}  // namespace troupe::node
