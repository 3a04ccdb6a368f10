/// The references that a process holds to others' objects, and what their owners know of it. Pure.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/objects/object_name.hpp"

namespace troupe::objects {

/// Not thread-safe.
///
/// Of each object at most one message is under way to its owner, so adding and giving back arrive in the
/// order they were meant, over whichever links: what the owner knows follows what is held here. Both may be
/// said twice.
class BorrowTable {
 public:
  struct Action {
    enum Kind {
      kAdd,      ///< tell the owner; then answered()
      kRemove,   ///< the same
      kSettled,  ///< the owner knows, or never will: whoever waits for that goes on
    } kind = kAdd;
    ObjectName name;
  };
  using Actions = std::vector<Action>;
  enum class Said {
    kDone,
    kAgain,  ///< the link broke: it may or may not have arrived
    kLost,   ///< the object or its owner is gone
  };

  /// One reference more, or less, here. REQUIRES of drop: held.
  void hold(const ObjectName& name, Actions& out);
  void drop(const ObjectName& name, Actions& out);
  void answered(const ObjectName& name, Said said, Actions& out);

  /// The owner knows that this process holds it, and will until it is dropped; or it is lost.
  bool is_settled(const ObjectName& name) const;
  std::size_t size() const { return borrows_.size(); }

 private:
  struct Borrow {
    std::uint64_t held = 0;
    /// To the owner. After a broken link nobody can say.
    enum { kNo, kMaybe, kYes } known = kNo;
    bool lost = false;
    enum { kNothing, kAdding, kGivingBack } under_way = kNothing;
  };
  using Borrows = std::unordered_map<ObjectName, Borrow>;
  void step(Borrows::iterator at, Actions& out);

  Borrows borrows_;
};

}  // namespace troupe::objects
