#include "actors/train/driver/forming.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::train {

void Forming::begin(const std::vector<Recovery::Member>& members) {
  members_.clear();
  for (const auto& [actor, holds] : members) members_.push_back({actor, false, holds, {}});
}

Forming::Member& Forming::at(ActorId member) {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.actor == member; });
  TROUPE_ASSERT(found != members_.end(), "only members form a group");
  return *found;
}

bool Forming::holds(ActorId trainer) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Member& m) { return m.actor == trainer && m.holds; });
}

bool Forming::is_complete() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.in_group && m.holds; });
}

std::optional<Forming::Unread> Forming::unread() const {
  Unread all;
  for (const Member& member : members_) {
    if (!member.holds && member.unread.empty()) return std::nullopt;
    if (member.holds) all.reader = member.actor;
    if (!member.unread.empty()) all.reasons += (all.reasons.empty() ? "" : "; ") + member.unread;
  }
  if (all.reasons.empty()) return std::nullopt;
  return all;
}

}  // namespace troupe::train
