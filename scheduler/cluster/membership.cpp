#include "scheduler/cluster/membership.hpp"

#include <algorithm>
#include <cstdio>

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
  return true;
}

Liveness Membership::heard(NodeId node, Instant now) {
  const auto it = members_.find(node);
  if (it == members_.end()) return Liveness::kUnknown;
  if (it->second.liveness != Liveness::kDead) it->second.last_heard = std::max(it->second.last_heard, now);
  return it->second.liveness;
}

bool Membership::leave(NodeId node) {
  const auto it = members_.find(node);
  if (it == members_.end() || it->second.liveness == Liveness::kDead) return false;
  it->second.liveness = Liveness::kDead;
  return true;
}

std::vector<LivenessChange> Membership::tick(Instant now) {
  const Duration gap = last_tick_ < Instant{0} ? Duration{0} : now - last_tick_;
  last_tick_ = now;
  const bool was_stopped = gap > 2 * config_.heartbeat;
  std::vector<LivenessChange> changes;
  for (auto& [node, member] : members_) {
    if (member.liveness == Liveness::kDead) continue;
    if (was_stopped) member.last_heard = std::min(now, member.last_heard + gap);
    const Duration silence = now - member.last_heard;
    const Liveness found = silence >= config_.dead      ? Liveness::kDead
                           : silence >= config_.suspect ? Liveness::kSuspect
                                                        : Liveness::kAlive;
    if (found == member.liveness) continue;
    member.liveness = found;
    changes.push_back({node, found, found == Liveness::kAlive ? "heard again" : silent_for(silence)});
  }
  return changes;
}

Liveness Membership::liveness(NodeId node) const {
  const auto it = members_.find(node);
  return it == members_.end() ? Liveness::kUnknown : it->second.liveness;
}

}  // namespace troupe::cluster
