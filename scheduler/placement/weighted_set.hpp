/// An ordered set whose keys carry weights. It finds the first or the last key, in order, that weighs at
/// least so much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/random.hpp"

namespace troupe::scheduler {

/// A treap (Seidel, Aragon 1996) of which every subtree knows its greatest weight. Everything takes O(log n)
/// expected. Priorities come from a counter, so the same calls build the same tree. Not thread-safe.
///
/// Invariant: keys are in order from left to right; a parent's priority is no less than its children's.
template <class Key>
class WeightedSet {
 public:
  using Weight = std::int64_t;

  /// REQUIRES: `key` is not in the set.
  void insert(Key key, Weight weight) {
    auto item = std::make_unique<Item>(std::move(key), weight, mix(kSeed, ++made_));
    auto [below, above] = split(std::move(root_), item->key);
    TROUPE_ASSERT(leftmost_is_not(above.get(), item->key), "a key is in the set once");
    root_ = merge(merge(std::move(below), std::move(item)), std::move(above));
    ++size_;
  }
  /// False if `key` was not in the set.
  bool erase(const Key& key) {
    const bool erased = erase(root_, key);
    if (erased) --size_;
    return erased;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// The greatest weight. REQUIRES: !empty().
  Weight most() const {
    TROUPE_ASSERT(!empty(), "an empty set has no greatest weight");
    return root_->most;
  }

  /// The first key, or null, that weighs `weight` or more.
  const Key* first(Weight weight) const { return first(root_.get(), weight); }
  /// The first key, or null, that is no less than `from` and weighs `weight` or more.
  const Key* first_from(const Key& from, Weight weight) const {
    return first_from(root_.get(), from, weight);
  }
  /// The last key, or null, that weighs `weight` or more.
  const Key* last(Weight weight) const { return last(root_.get(), weight); }
  /// The last key, or null, that is below `key` and weighs `weight` or more.
  const Key* last_before(const Key& key, Weight weight) const {
    return last_before(root_.get(), key, weight);
  }
  /// Calls `visit(key, weight)` in order.
  template <class Visit>
  void each(Visit&& visit) const {
    each(root_.get(), visit);
  }

 private:
  static constexpr std::uint64_t kSeed = 0x5eed;

  struct Item {
    Item(Key k, Weight w, std::uint64_t p) : key(std::move(k)), weight(w), most(w), priority(p) {}
    Key key;
    Weight weight;
    Weight most;  ///< of this item and all below it
    std::uint64_t priority;
    std::unique_ptr<Item> left;
    std::unique_ptr<Item> right;
  };
  using Tree = std::unique_ptr<Item>;

  static void update(Item& item) {
    item.most = item.weight;
    if (item.left && item.left->most > item.most) item.most = item.left->most;
    if (item.right && item.right->most > item.most) item.most = item.right->most;
  }
  /// Keys below `key`, and the others.
  static std::pair<Tree, Tree> split(Tree tree, const Key& key) {
    if (!tree) return {};
    if (tree->key < key) {
      auto [below, above] = split(std::move(tree->right), key);
      tree->right = std::move(below);
      update(*tree);
      return {std::move(tree), std::move(above)};
    }
    auto [below, above] = split(std::move(tree->left), key);
    tree->left = std::move(above);
    update(*tree);
    return {std::move(below), std::move(tree)};
  }
  /// REQUIRES: every key of `a` is below every key of `b`.
  static Tree merge(Tree a, Tree b) {
    if (!a) return b;
    if (!b) return a;
    if (a->priority >= b->priority) {
      a->right = merge(std::move(a->right), std::move(b));
      update(*a);
      return a;
    }
    b->left = merge(std::move(a), std::move(b->left));
    update(*b);
    return b;
  }
  static bool erase(Tree& tree, const Key& key) {
    if (!tree) return false;
    if (tree->key < key || key < tree->key) {
      const bool erased = erase(tree->key < key ? tree->right : tree->left, key);
      if (erased) update(*tree);
      return erased;
    }
    tree = merge(std::move(tree->left), std::move(tree->right));
    return true;
  }
  static const Key* first(const Item* at, Weight weight) {
    while (at != nullptr && at->most >= weight) {
      if (at->left && at->left->most >= weight) {
        at = at->left.get();
      } else if (at->weight >= weight) {
        return &at->key;
      } else {
        at = at->right.get();
      }
    }
    return nullptr;
  }
  static const Key* first_from(const Item* at, const Key& from, Weight weight) {
    if (at == nullptr || at->most < weight) return nullptr;
    if (at->key < from) return first_from(at->right.get(), from, weight);
    if (const Key* found = first_from(at->left.get(), from, weight)) return found;
    if (at->weight >= weight) return &at->key;
    return first(at->right.get(), weight);
  }
  static const Key* last(const Item* at, Weight weight) {
    while (at != nullptr && at->most >= weight) {
      if (at->right && at->right->most >= weight) {
        at = at->right.get();
      } else if (at->weight >= weight) {
        return &at->key;
      } else {
        at = at->left.get();
      }
    }
    return nullptr;
  }
  static const Key* last_before(const Item* at, const Key& key, Weight weight) {
    if (at == nullptr || at->most < weight) return nullptr;
    if (!(at->key < key)) return last_before(at->left.get(), key, weight);
    if (const Key* found = last_before(at->right.get(), key, weight)) return found;
    if (at->weight >= weight) return &at->key;
    return last(at->left.get(), weight);
  }
  static bool leftmost_is_not(const Item* at, const Key& key) {
    while (at != nullptr && at->left) at = at->left.get();
    return at == nullptr || key < at->key;
  }
  template <class Visit>
  static void each(const Item* at, Visit& visit) {
    if (at == nullptr) return;
    each(at->left.get(), visit);
    visit(at->key, at->weight);
    each(at->right.get(), visit);
  }

  Tree root_;
  std::size_t size_ = 0;
  std::uint64_t made_ = 0;
};

}  // namespace troupe::scheduler
