#include "runtime/objects/borrow_table.hpp"

#include "runtime/core/assert.hpp"

namespace troupe::objects {

void BorrowTable::step(Borrows::iterator at, Actions& out) {
  Borrow& borrow = at->second;
  if (borrow.under_way != Borrow::kNothing) return;
  const bool wanted = borrow.held > 0;
  if (!wanted && (borrow.lost || borrow.known == Borrow::kNo)) {
    borrows_.erase(at);
  } else if (wanted && borrow.known != Borrow::kYes && !borrow.lost) {
    borrow.under_way = Borrow::kAdding;
    out.push_back({Action::kAdd, at->first});
  } else if (!wanted) {
    borrow.under_way = Borrow::kGivingBack;
    out.push_back({Action::kRemove, at->first});
  }
}

void BorrowTable::hold(const ObjectName& name, Actions& out) {
  const auto at = borrows_.try_emplace(name).first;
  ++at->second.held;
  step(at, out);
}

void BorrowTable::drop(const ObjectName& name, Actions& out) {
  const auto at = borrows_.find(name);
  TROUPE_ASSERT(at != borrows_.end() && at->second.held > 0, "a reference is dropped once");
  --at->second.held;
  step(at, out);
}

void BorrowTable::answered(const ObjectName& name, Said said, Actions& out) {
  const auto at = borrows_.find(name);
  if (at == borrows_.end() || at->second.under_way == Borrow::kNothing) return;
  Borrow& borrow = at->second;
  const bool added = borrow.under_way == Borrow::kAdding;
  borrow.known = said == Said::kAgain           ? Borrow::kMaybe
                 : said == Said::kDone && added ? Borrow::kYes
                                                : Borrow::kNo;
  if (said == Said::kLost) borrow.lost = true;
  borrow.under_way = Borrow::kNothing;
  // What nobody holds any more has nothing to be known of: who waited for that waits no longer.
  if (borrow.known == Borrow::kYes || borrow.lost || borrow.held == 0)
    out.push_back({Action::kSettled, name});
  step(at, out);
}

bool BorrowTable::is_settled(const ObjectName& name) const {
  const auto at = borrows_.find(name);
  if (at == borrows_.end()) return true;
  return at->second.lost || (at->second.known == Borrow::kYes && at->second.under_way == Borrow::kNothing);
}

}  // namespace troupe::objects
