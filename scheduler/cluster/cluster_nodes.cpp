// Nodes: who joins, shows itself, leaves and dies, and what follows for actors, leases and peers.
#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {
namespace {

/// The largest demand that it could hold.
ActorDemand size_of(const NodeInfo& node) {
  return {node.cpu_e4, true, {}, static_cast<std::int64_t>(node.gpus.size()) * kGpu, {}, -1, node.other};
}

}  // namespace

void ClusterMachine::handle(const NodeJoined& e) {
  const NodeId id = e.node.id;
  if (const auto wrong = check_node(e.node)) return out_.push_back(RefuseNode{id, wrong->message()});
  if (!membership_.join(id, now_)) return out_.push_back(RefuseNode{id, why_not_live(id)});
  const bool first = index_.nodes().empty();
  Node& node = nodes_[id];
  const bool was_seen = index_.nodes().contains(id);
  const ActorDemand had = size_of(node.info);
  const bool changed = !(node.info == e.node);
  node.info = e.node;
  node.registered = true;
  if (changed) persist(NodeRecord{e.node, false});
  out_.push_back(NodeAccepted{id});
  // Until now any size could have come: what waits for one that has not is given time.
  refresh(id);
  if (was_seen || draining_.contains(id)) grant_grace(had);
  if (first && !waiting_.empty()) losses_.push_back({{-1}, now_ + config_.lost_node_grace});
  if (!was_seen && !e.node.gateway) take_place_of_dead(id);
  take_leases(id, node, e.leases);
  take_peers(id, node, e.peers);
  if (e.leaving) node_leaves(id);
  if (e.drain_left_ms >= 0) {
    drain(id, std::chrono::milliseconds(e.drain_left_ms), clipped(e.drain_reason));
  } else if (node.drain) {  // it was away when it was told
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(node.drain->until - now_);
    out_.push_back(DrainNode{id, std::max<std::int64_t>(0, left.count()), node.drain->reason});
  }
  reconcile(id, e.actors);
  reconcile_drivers(id, e.drivers);
  // What was told to its processes before may have gone with the link.
  for (const ActorId asked : actors_.asked_by(id)) {
    Actor& actor = actors_.at(asked);
    if (actor.record.state == ActorState::kEnding) continue;
    actor.wanted_at.reset();
    note_lease(actor);
  }
  freed_.push_back(id);
}

void ClusterMachine::take_leases(NodeId id, Node& node, const std::vector<JobId>& leases) {
  for (const JobId before : std::exchange(node.leases, {})) {
    if (Job* job = jobs_.find(before)) job->leases.erase(id);
  }
  for (const JobId lease : leases) {
    const Job* job = jobs_.find(lease);
    if (job == nullptr || !job->has_driver()) {
      const bool is_parked = job != nullptr && job->record.parked;
      out_.push_back(EndJob{id, lease, kJobIsOver, is_parked ? staying(*job) : std::vector<ActorId>()});
      continue;
    }
    node.leases.insert(lease);
    jobs_.find(lease)->leases.insert(id);
  }
}

void ClusterMachine::take_peers(NodeId id, Node& node, const std::vector<NodeId>& peers) {
  for (const NodeId peer : peers) {
    const auto at = nodes_.find(peer);
    if (at == nodes_.end()) {
      out_.push_back(NodeDead{id, peer, why_not_live(peer)});
    } else if (peer != id) {
      node.peers.insert(peer);
      // A head that restarted may not have told it before.
      if (at->second.peers.insert(id).second) out_.push_back(ExpectPeer{peer, node.info});
    }
  }
  // It may not have heard of those who asked for it while its link to the head was broken.
  for (const NodeId peer : node.peers) out_.push_back(ExpectPeer{id, nodes_.at(peer).info});
}

void ClusterMachine::handle(const Heartbeat& e) {
  const Liveness before = membership_.heard(e.node, now_);
  if (before == Liveness::kDead) {
    out_.push_back(RefuseNode{e.node, why_not_live(e.node)});
  } else if (!is_registered(e.node)) {
    out_.push_back(RequestRegistration{e.node, "the head does not know what runs there"});
  } else if (before == Liveness::kSuspect) {
    refresh(e.node);
    freed_.push_back(e.node);
  }
}

void ClusterMachine::handle(const NodeLeaving& e) {
  if (is_registered(e.node)) node_leaves(e.node);
}

/// What starts there is started elsewhere, if somebody who stays waits for it. What lives there ends when the
/// node has ended it.
void ClusterMachine::node_leaves(NodeId id) {
  Node& node = nodes_.at(id);
  node.leaving = true;
  remove_from_index(id);
  for (const ActorId actor_id : starting_for_others(id)) place_again(actor_id, actors_.at(actor_id).attempts);
  refuse_bound_to(id, "node " + node.info.name + " leaves the cluster");
}

/// Those that can as well start on another node.
std::vector<ActorId> ClusterMachine::starting_for_others(NodeId id) const {
  std::vector<ActorId> starting;
  for (const ActorId actor_id : nodes_.at(id).actors) {
    const ActorRecord& record = actors_.all().at(actor_id).record;
    const Job* job = jobs_.find(record.spec.job);
    const bool wanted = record.requester.from.node != id && job != nullptr && job->record.driver.node != id;
    if (record.state == ActorState::kStarting && record.incarnation == 1 && wanted &&
        record.spec.demand.affinity != id)
      starting.push_back(actor_id);
  }
  return starting;
}

/// Placement no longer sees it.
void ClusterMachine::remove_from_index(NodeId id) {
  const auto seen = index_.nodes().find(id);
  if (seen == index_.nodes().end()) return;
  const ActorDemand size = size_of(nodes_.at(id).info);
  index_.remove(id);
  show_bundles(id);
  look_at_queue_ = true;  // what waited for a node of its size holds up nobody any more
  grant_grace(size);
}

void ClusterMachine::grant_grace(const ActorDemand& size) {
  if (!index_.has_room_for(size)) losses_.push_back({size, now_ + config_.lost_node_grace});
}

/// A node that could hold it has died, or leaves before long: one like it may follow.
bool ClusterMachine::may_come_back(const ActorDemand& demand) const {
  if (demand.affinity || demand.group) return false;
  const auto could_hold = [&](const ActorDemand& size) {
    return size.cpu_e4 >= demand.cpu_e4 && size.gpu_e4 >= demand.gpu_e4 &&
           has_amounts(size.other.amounts, {}, demand.other.amounts) &&
           has_labels(size.other.labels, demand.other.labels);
  };
  const auto was_lost = [&](const Loss& loss) { return could_hold(loss.size); };
  const auto drains = [&](NodeId node) { return could_hold(size_of(nodes_.at(node).info)); };
  return std::any_of(losses_.begin(), losses_.end(), was_lost) ||
         std::any_of(draining_.begin(), draining_.end(), drains);
}

void ClusterMachine::refuse_bound_to(NodeId id, const std::string& why) {
  for (const Requester& requester : waiting_.bound_to(id)) {
    const auto spawn = waiting_.take(requester);
    refuse(*spawn,
           {ErrorCode::kActorDied, "cannot place " + spawn->spec.type, why, "choose a node that lives"});
  }
}

void ClusterMachine::handle(const NodeLeft& e) {
  node_gone(e.node, clipped(e.reason));
}

std::string ClusterMachine::how_died(NodeId node) const {
  const auto at = dead_nodes_.find(node);
  if (at == dead_nodes_.end() || at->second == kLeftByItself || at->second == kBeforeThisHead) return "";
  return at->second;
}

std::string ClusterMachine::why_not_live(NodeId node) const {
  const auto at = dead_nodes_.find(node);
  if (at == dead_nodes_.end()) return "node " + to_string(node) + " is not a live node of this cluster";
  return "node " + to_string(node) + " was declared dead (" + at->second +
         "); one in its place has another id";
}

void ClusterMachine::node_gone(NodeId id, const std::string& reason) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return;
  const Node node = it->second;
  membership_.leave(id);
  draining_.erase(id);
  dead_nodes_.emplace(id, reason);
  forget_nodes_.set(id, now_ + config_.keep_dead_nodes);
  persist(NodeRecord{node.info, true});
  for (const NodeId peer : node.peers) {
    nodes_.at(peer).peers.erase(id);
    out_.push_back(NodeDead{peer, id, reason});
  }
  remove_from_index(id);
  if (node.drain || node.leaving)
    grant_grace(size_of(node.info));  // from now on: until now it could have gone on
  for (const JobId lease : node.leases) jobs_.find(lease)->leases.erase(id);

  const std::string died = "its node " + node.info.name + " is dead: " + reason;
  const std::vector<JobId> driven = jobs_.driven_from(id);
  std::vector<ActorId> again = starting_for_others(id);
  std::erase_if(again,
                [&](ActorId actor) { return actors_.at(actor).attempts + 1 >= config_.start_attempts; });
  for (const ActorId actor : node.actors) {
    if (std::find(again.begin(), again.end(), actor) == again.end())
      actor_gone(actors_.at(actor),
                 {ErrorCode::kActorDied, name_of(actors_.at(actor).record) + " died", died, {}}, true);
  }
  // Nobody waits for the answers.
  std::erase_if(lost_starts_, [&](const Requester& requester) { return requester.from.node == id; });
  claims_.take_if([&](const SpawnRequested& spawn) { return spawn.requester.from.node == id; });
  for (const Requester& requester : waiting_.asked_by(id)) {
    if (!waiting_.contains(requester)) continue;  // it was to start with one that was dropped before
    const PendingSpawn& spawn = waiting_.at(requester);
    if (!spawn.restarts || !spawn.spec.is_kept()) drop(requester);
  }
  for (const JobId job : driven) end_job(*jobs_.find(job), "its driver's node is dead: " + reason);
  for (const ActorId asked : actors_.asked_by(id)) {
    Actor& actor = actors_.at(asked);
    if (actor.record.state == ActorState::kStarting && actor.record.incarnation == 1)
      end_actor(actor, "whoever asked for it is gone: " + died);
  }
  restarts_lost(id, died);
  for (const ActorId actor : again) place_again(actor, actors_.at(actor).attempts + 1);
  drivers_lost(id, died);
  lose_bundles(id, died);
  TROUPE_ASSERT(nodes_.at(id).actors.empty(), "a dead node holds no actor");
  nodes_.erase(id);
  for (const ActorId asked : actors_.asked_by(id)) note_lease(actors_.at(asked));
  refuse_bound_to(id, died);
  look_at_keepers_ = true;
  for (const ActorId actor : actors_.all_restarting()) {
    if (actors_.at(actor).record.died_on == id) want_arguments(actors_.at(actor));  // it was waited for
  }
}

void ClusterMachine::reconcile(NodeId node, const std::vector<LiveActor>& listed) {
  std::map<ActorId, ProcessId> there;
  std::set<ActorId> waiting;
  for (const LiveActor& live : listed) {
    const Actor* actor = actors_.find(live.actor);
    if (actor == nullptr || actor->record.incarnation == live.incarnation) {
      there[live.actor] = live.process;
      if (live.waits) waiting.insert(live.actor);
    } else {
      kill(node, live.actor, live.incarnation, "it is an earlier life");
    }
  }
  const std::set<ActorId> known = nodes_.at(node).actors;
  for (const ActorId id : known) {
    Actor& actor = actors_.at(id);
    const ActorState state = actor.record.state;
    const auto found = there.find(id);
    if (found == there.end()) {
      if (state != ActorState::kStarting) {
        actor_gone(actor,
                   {ErrorCode::kActorDied,
                    name_of(actor.record) + " died",
                    "it was gone when its node registered again",
                    {}},
                   true);
      } else if (actor.has_payload) {
        out_.push_back(start_of(actor, "its node may not have heard the first time"));
      } else if (actor.record.incarnation > 1) {
        // Callers may have been told that it is up, before that was recorded. Its node says whether that life
        // has ended, or did not begin, and does not count.
        kill(node, id, actor.record.incarnation, "the head does not know whether it began");
      }  // else: when its request is repeated, which brings its payload
    } else if (state == ActorState::kEnding) {
      kill(node, id, actor.record.incarnation, actor.reason);
    } else if (state == ActorState::kStarting && found->second) {
      actor_alive(actor, found->second);
    }
    if (found != there.end()) set_waits(actor, waiting.contains(id));
  }
  for (const auto& [id, process] : there) {
    if (known.contains(id)) continue;
    const auto live = std::find_if(listed.begin(), listed.end(),
                                   [&, actor = id](const LiveActor& one) { return one.actor == actor; });
    kill(node, id, live->incarnation, "the head does not know it as living there");
  }
  tell_drivers_of_detached(node);
  look_at_keepers_ = true;
  for (const ActorId id : actors_.all_kept()) {
    Actor& actor = actors_.at(id);
    ask_for_arguments(actor, node);
    if (actor.keeper == node) actor.keeper = {};  // it may not have heard: it is told again
  }
  for (const ActorId id : actors_.all_restarting()) {
    if (!actors_.at(id).record.spec.is_kept() && actors_.at(id).record.requester.from.node == node)
      want_arguments(actors_.at(id));
  }
  for (const auto& question : claims_.questions(node)) out_.push_back(question);
}

void ClusterMachine::handle(const PeerWanted& e) {
  if (!is_registered(e.node)) return;
  const auto at = nodes_.find(e.peer);
  if (at == nodes_.end() || e.peer == e.node) {
    const std::string why = e.peer == e.node ? "a node is no peer of itself" : why_not_live(e.peer);
    return out_.push_back(PeerAnswered{e.node, false, {e.peer}, why});
  }
  Node& asker = nodes_.at(e.node);
  asker.peers.insert(e.peer);
  at->second.peers.insert(e.node);
  out_.push_back(ExpectPeer{e.peer, asker.info});
  out_.push_back(PeerAnswered{e.node, true, at->second.info, {}});
}

void ClusterMachine::handle(const NodesWanted& e) {
  if (!is_registered(e.requester.from.node)) return;
  NodesAnswered all{e.requester, {}};
  for (const auto& [id, node] : nodes_) {
    if (!node.drain && !node.leaving && !node.info.gateway)
      all.nodes.push_back(node.info);  // nothing new is to go there
  }
  out_.push_back(std::move(all));
}

/// What placement sees of that node, and of its bundles if their node is seen in another way than before.
void ClusterMachine::refresh(NodeId id) {
  const Node& node = nodes_.at(id);
  if (id == kept_) look_at_queue_ = true;  // another node may lack less now
  const bool hidden = node.info.gateway || node.leaving || node.drain;
  const auto seen = index_.nodes().find(id);
  const bool was_seen = seen != index_.nodes().end();
  if (hidden) {
    index_.remove(id);
    if (was_seen) show_bundles(id);
    return;
  }
  NodeView view = shown(id);
  const bool changes = !was_seen || seen->second.suspect != view.suspect || seen->second.name != view.name;
  index_.set(std::move(view));
  look_at_keepers_ = look_at_keepers_ || changes;
  if (changes) show_bundles(id);
}

}  // namespace troupe::cluster
