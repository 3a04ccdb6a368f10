#include "scheduler/cluster/membership.hpp"

#include <algorithm>
#include <cstdio>

#include "runtime/core/assert.hpp"

namespace troupe::cluster {
namespace {

std::string silent_for(Duration silence) {
  char text[48];
  std::snprintf(text, sizeof text, "no heartbeat for %.1f s", to_seconds(silence));
  return text;
}

}  // namespace

bool Membership::join(NodeId node, Instant now) {
  Member& member = members_[node];
  if (member.liveness == Liveness::kDead) return false;
  member = {now, Liveness::kAlive};
  next_.set(node, now + config_.suspect);
  return true;
}

Liveness Membership::heard(NodeId node, Instant now) {
  const auto it = members_.find(node);
  if (it == members_.end()) return Liveness::kUnknown;
  const Liveness before = it->second.liveness;
  if (before == Liveness::kDead) return before;
  it->second = {std::max(it->second.last_heard, now), Liveness::kAlive};
  next_.set(node, it->second.last_heard + config_.suspect);
  return before;
}

bool Membership::leave(NodeId node) {
  const auto it = members_.find(node);
  if (it == members_.end() || it->second.liveness == Liveness::kDead) return false;
  it->second.liveness = Liveness::kDead;
  next_.erase(node);
  return true;
}

void Membership::forget(NodeId node) {
  TROUPE_ASSERT(liveness(node) == Liveness::kDead, "only the dead are forgotten");
  members_.erase(node);
}

std::vector<LivenessChange> Membership::tick(Instant now) {
  std::vector<LivenessChange> changes;
  while (const auto node = next_.pop_due(now)) {
    Member& member = members_.at(*node);
    const Duration silence = now - member.last_heard;
    const Liveness found = silence >= config_.dead ? Liveness::kDead : Liveness::kSuspect;
    TROUPE_ASSERT(silence >= config_.suspect && member.liveness != found, "a member is due when it changes");
    member.liveness = found;
    if (found == Liveness::kSuspect) next_.set(*node, member.last_heard + config_.dead);
    changes.push_back({*node, found, silent_for(silence)});
  }
  return changes;
}

Liveness Membership::liveness(NodeId node) const {
  const auto it = members_.find(node);
  return it == members_.end() ? Liveness::kUnknown : it->second.liveness;
}

}  // namespace troupe::cluster
