// Nodes that drain: nothing new goes there, what can start elsewhere does, and who spawned the rest is told.
// The node decides when it leaves: when nothing runs there any more, or when its time is over.
#include <algorithm>
#include <map>
#include <utility>

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {

void ClusterMachine::handle(const DrainRequested& e) {
  if (!is_registered(e.drained)) return;
  const Node& node = nodes_.at(e.drained);
  if (node.leaving || node.info.gateway) return;
  const std::int64_t grace_ms = std::clamp<std::int64_t>(e.grace_ms, 0, kMaxDrainMs);
  out_.push_back(DrainNode{e.drained, e.cancel ? -1 : grace_ms, clipped(e.reason)});
  if (e.cancel) return;  // the node says whether it goes on: its own machine may want it to leave
  drain(e.drained, std::chrono::milliseconds(grace_ms), clipped(e.reason));
}

/// Its word counts: it may have been told before, by its own machine, or not drain any more.
void ClusterMachine::handle(const NodeDrains& e) {
  if (!is_registered(e.node)) return;
  if (e.left_ms < 0) return end_drain(e.node);
  drain(e.node, std::chrono::milliseconds(std::min(e.left_ms, kMaxDrainMs)), clipped(e.reason));
}

void ClusterMachine::drain(NodeId id, Duration left, const std::string& reason) {
  Node& node = nodes_.at(id);
  if (node.leaving || node.info.gateway) return;
  const bool drains = node.drain.has_value();
  if (!drains) node.drain = Drain{};
  node.drain->until = now_ + left;
  node.drain->reason = reason;
  if (drains) return;
  draining_.insert(id);
  remove_from_index(id);
  refuse_bound_to(id, "node " + node.info.name + " drains: " + reason);
  // What starts there goes on to do so, and its owner is told when it lives: it holds its CPUs until the node
  // says that it is gone, which a drain that is cancelled could not wait for.
  for (const ActorId actor : node.actors) tell_leaves(actors_.at(actor), reason, false);
  move_next(id);
}

void ClusterMachine::end_drain(NodeId id) {
  Node& node = nodes_.at(id);
  if (!node.drain) return;
  node.drain.reset();
  draining_.erase(id);
  if (node.leaving) return;
  refresh(id);
  freed_.push_back(id);
  for (const ActorId actor : node.actors) tell_leaves(actors_.at(actor), "", true);
}

/// Whoever spawned it may end it in time, and have another one elsewhere.
void ClusterMachine::tell_leaves(const Actor& actor, const std::string& reason, bool stays) {
  const Requester& owner = actor.record.requester;
  if (actor.record.state == ActorState::kAlive && is_registered(owner.from.node))
    out_.push_back(ActorLeaves{owner, actor.record.actor, reason, stays});
}

/// Actors that have several lives start again elsewhere, one after the other, where there is room now and
/// their queue lets them: what has none goes on here until the node leaves.
void ClusterMachine::move_next(NodeId id) {
  Node& node = nodes_.at(id);
  if (const Actor* moving = actors_.find(node.drain->moving)) {
    const ActorState state = moving->record.state;
    const bool on_its_way =
        moving->moves || state == ActorState::kRestarting || state == ActorState::kStarting;
    if (on_its_way) return;
  }
  for (const ActorId actor_id : node.actors) {
    Actor& actor = actors_.at(actor_id);
    const ActorRecord& record = actor.record;
    if (record.state != ActorState::kAlive || !record.spec.is_restartable() || !jobs_.runs(record.spec.job) ||
        !has_its_arguments(record) || place(record.spec.demand).verdict != PlacementVerdict::kPlaced ||
        !keeps_its_quota(record.spec))
      continue;
    actor.moves = true;
    node.drain->moving = actor_id;
    return kill(id, actor_id, record.incarnation,
                "its node " + node.info.name + " drains: it starts again elsewhere");
  }
}

std::string ClusterMachine::why_drains(NodeId id) const {
  const auto at = nodes_.find(id);
  if (at == nodes_.end() || !at->second.drain) return "";
  const Node& node = at->second;
  std::map<std::string, int> kinds;  // "Trainer of job mnist"
  for (const ActorId actor_id : node.actors) {
    const ActorRecord& record = actors_.all().at(actor_id).record;
    const Job* job = jobs_.find(record.spec.job);
    ++kinds[record.spec.type + " of job " + (job == nullptr ? "?" : job->record.name)];
  }
  std::string waits;
  const auto add = [&](const std::string& what) { waits += (waits.empty() ? "" : ", ") + what; };
  for (const auto& [kind, count] : kinds) add(std::to_string(count) + " x " + kind);
  for (const std::string& driver : node.drivers) add("submitted job " + driver);
  for (const JobId lease : node.leases) {
    if (const Job* job = jobs_.find(lease)) add("light actors of job " + job->record.name + ", perhaps");
  }
  if (waits.empty()) return "";
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(node.drain->until - now_).count();
  return clipped("waits for " + waits + "; it leaves in " + std::to_string(std::max<std::int64_t>(0, left)) +
                 " s at the latest (" + node.drain->reason + ")");
}

}  // namespace troupe::cluster
