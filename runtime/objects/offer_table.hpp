/// Objects that a process holds for others that have not said yet that they hold them. Pure.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "runtime/objects/object_name.hpp"

namespace troupe::objects {

class Handle;
using HandlePtr = std::shared_ptr<const Handle>;

/// Not thread-safe. What leaves it is returned: a handle must go without a lock.
class OfferTable {
 public:
  struct Offer {
    ProcessAddress to;
    HandlePtr object;
    ObjectName copy_of{};  ///< if that is asked for
  };
  void add(std::uint64_t number, Offer offer);
  /// One of an answer, which counts as untaken until ended() says that nobody refers to it.
  void add_answer(std::uint64_t number, Offer offer);
  /// `by` holds it now. Null: it was not offered to that one.
  HandlePtr take(std::uint64_t number, ProcessAddress by);
  /// What was offered to those that are gone, or to whom the link broke.
  std::vector<HandlePtr> withdraw(const std::function<bool(ProcessAddress)>& is_down);
  std::vector<HandlePtr> clear();
  /// Null: none.
  HandlePtr copy_for(ProcessAddress to, const ObjectName& of) const;

  void ended(std::uint64_t number) { answers_.erase(number); }
  bool has_answers() const { return !answers_.empty(); }
  std::size_t size() const { return offers_.size(); }

 private:
  std::unordered_map<std::uint64_t, Offer> offers_;  ///< by object
  std::set<std::uint64_t> answers_;                  ///< that were offered, and live
};

}  // namespace troupe::objects
