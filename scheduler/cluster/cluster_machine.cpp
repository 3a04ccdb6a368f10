#include "scheduler/cluster/cluster_machine.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::cluster {
namespace {

std::string key_of(const NodeRecord& r) {
  return "node/" + to_string(r.node.id);
}
std::string key_of(const JobRecord& r) {
  return "job/" + r.name;
}
std::string key_of(const ActorRecord& r) {
  return "actor/" + to_string(r.actor);
}

template <class R>
Persist persist(const R& record) {
  return {key_of(record), record};
}

ProcessAddress address_of(const ActorRecord& r) {
  return {r.node, r.process};
}

}  // namespace

ClusterMachine::ClusterMachine(ClusterConfig config, PlacementPolicy placement, Random& ids)
    : config_(config), placement_(std::move(placement)), ids_(ids), membership_(config.membership) {}

std::vector<ClusterAction> ClusterMachine::on(const ClusterEvent& event, Instant now) {
  Actions out;
  std::visit([&](const auto& e) { handle(e, now, out); }, event);
  return out;
}

// Nodes.

void ClusterMachine::handle(const NodeJoined& e, Instant now, Actions& out) {
  const NodeId id = e.node.id;
  if (!membership_.join(id, now)) {
    out.push_back(RefuseNode{id, "node " + to_string(id) + " was declared dead; join under a new id"});
    return;
  }
  Node& node = nodes_[id];
  const bool changed = !(node.info == e.node);
  node.info = e.node;
  node.registered = true;
  if (changed) out.push_back(persist(NodeRecord{e.node, false}));
  reconcile(id, e.actors, now, out);
  for (const ActorId actor : e.watches) handle(WatchActor{id, actor}, now, out);
  announce("node " + e.node.name + " registered", out);
  retry_pending(now, out);
}

void ClusterMachine::handle(const Heartbeat& e, Instant now, Actions& out) {
  const Liveness before = membership_.heard(e.node, now);
  if (before == Liveness::kDead) {
    out.push_back(
        RefuseNode{e.node, "node " + to_string(e.node) + " was declared dead; join under a new id"});
  } else if (before == Liveness::kUnknown || !nodes_.at(e.node).registered) {
    out.push_back(RequestRegistration{e.node, "the head does not know what runs there"});
  }
}

void ClusterMachine::handle(const NodeLeft& e, Instant now, Actions& out) {
  node_gone(e.node, e.reason, now, out);
  retry_pending(now, out);
}

void ClusterMachine::node_gone(NodeId id, const std::string& reason, Instant now, Actions& out) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return;
  membership_.leave(id);
  const NodeInfo info = it->second.info;
  out.push_back(persist(NodeRecord{info, true}));
  out.push_back(NodeDead{id, reason});
  for (auto& [actor_id, actor] : actors_) {
    actor.watchers.erase(id);
    if (actor.record.node != id || actor.record.state == ActorState::kDead) continue;
    actor_gone(actor,
               {ErrorCode::kActorDied,
                "actor " + to_string(actor_id) + " died",
                "its node " + info.name + " is dead: " + reason,
                {}},
               now, out);
  }
  nodes_.erase(it);
  std::erase_if(pending_, [&](const PendingSpawn& p) { return p.requester.from.node == id; });
  for (auto& [name, job] : jobs_) {
    if (!job.ended && job.driver.node == id) end_job(job, "its driver's node is dead: " + reason, now, out);
  }
  announce("node " + info.name + " is dead: " + reason, out);
}

void ClusterMachine::reconcile(NodeId node, const std::vector<LiveActor>& listed, Instant now, Actions& out) {
  std::map<ActorId, ProcessId> there;
  for (const LiveActor& live : listed) there[live.actor] = live.process;
  for (auto& [id, actor] : actors_) {
    const ActorState state = actor.record.state;
    if (actor.record.node != node || state == ActorState::kDead) continue;
    const auto found = there.find(id);
    if (found == there.end()) {
      if (state == ActorState::kStarting) {
        out.push_back(StartActor{node, id, actor.record.spec, "its node may not have heard the first time"});
      } else {
        actor_gone(actor,
                   {ErrorCode::kActorDied,
                    "actor " + to_string(id) + " died",
                    "it was gone when its node registered again",
                    {}},
                   now, out);
      }
    } else if (state == ActorState::kEnding) {
      out.push_back(KillActor{node, id, actor.reason});
    } else if (state == ActorState::kStarting && found->second) {
      actor_alive(actor, found->second, out);
    }
  }
  for (const auto& [id, process] : there) {
    const auto it = actors_.find(id);
    const bool ours =
        it != actors_.end() && it->second.record.node == node && it->second.record.state != ActorState::kDead;
    if (!ours) out.push_back(KillActor{node, id, "the head does not know it as living there"});
  }
}

void ClusterMachine::announce(const std::string& reason, Actions& out) const {
  AnnounceNodes all{{}, reason};
  for (const auto& [id, node] : nodes_) all.nodes.push_back(node.info);
  out.push_back(std::move(all));
}

void ClusterMachine::handle(const Tick&, Instant now, Actions& out) {
  for (const LivenessChange& change : membership_.tick(now)) {
    if (change.to == Liveness::kDead) node_gone(change.node, change.reason, now, out);
  }
  for (auto it = actors_.begin(); it != actors_.end();) {
    Actor& actor = it->second;
    if (actor.record.state == ActorState::kDead) {
      if (now >= actor.deadline) {
        answered_.erase(actor.record.requester);
        it = actors_.erase(it);
        continue;
      }
    } else if (now >= actor.deadline && actor.record.state == ActorState::kStarting) {
      end_actor(actor, "it did not start in time", now, out);
    } else if (now >= actor.deadline && actor.record.state == ActorState::kEnding) {
      actor.deadline = now + config_.start_deadline;
      out.push_back(KillActor{actor.record.node, it->first, actor.reason});
    }
    ++it;
  }
  retry_pending(now, out);
}

// Jobs.

void ClusterMachine::handle(const JobRegistered& e, Instant now, Actions& out) {
  if (!nodes_.contains(e.driver.node)) {
    out.push_back(RequestRegistration{e.driver.node, "a job's driver needs a registered node"});
    return;
  }
  JobRecord& job = jobs_[e.name];
  const bool again = job.incarnation > 0 && !job.ended && job.driver == e.driver && job.request == e.request;
  if (!again) {
    if (job.incarnation > 0 && !job.ended) end_job(job, "a newer driver registered job " + e.name, now, out);
    job = {e.name, job.incarnation + 1, JobId{ids_.next()}, e.driver, e.request, false};
    out.push_back(persist(job));
  }
  out.push_back(JobAnswered{e.driver, e.request, job.job, job.incarnation,
                            again ? "registered before" : "incarnation " + std::to_string(job.incarnation)});
}

void ClusterMachine::handle(const JobEnded& e, Instant now, Actions& out) {
  for (auto& [name, job] : jobs_) {
    if (job.job == e.job && !job.ended) end_job(job, e.reason, now, out);
  }
}

void ClusterMachine::end_job(JobRecord& job, const std::string& reason, Instant now, Actions& out) {
  job.ended = true;
  out.push_back(persist(job));
  out.push_back(EndJob{job.job, reason});
  std::erase_if(pending_, [&](const PendingSpawn& p) { return p.spec.job == job.job; });
  for (auto& [id, actor] : actors_) {
    if (actor.record.spec.job == job.job) end_actor(actor, "job " + job.name + " ended: " + reason, now, out);
  }
}

bool ClusterMachine::job_runs(JobId id) const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [&](const auto& entry) { return entry.second.job == id && !entry.second.ended; });
}

// Actors.

void ClusterMachine::hold(const Actor& actor, int sign) {
  const auto it = nodes_.find(actor.record.node);
  if (it == nodes_.end()) return;
  it->second.cpu_used_e4 += sign * actor.record.spec.demand.cpu_e4;
  it->second.actors += sign;
}

void ClusterMachine::handle(const SpawnRequested& e, Instant now, Actions& out) {
  if (const auto known = answered_.find(e.requester); known != answered_.end()) {
    const Actor& actor = actors_.at(known->second);
    if (actor.record.state == ActorState::kAlive) {
      out.push_back(
          SpawnAnswered{e.requester, true, known->second, address_of(actor.record), {}, "asked again"});
    } else if (actor.record.state == ActorState::kDead) {
      out.push_back(SpawnAnswered{e.requester,
                                  false,
                                  known->second,
                                  {},
                                  {ErrorCode::kActorDied, "the actor has ended", actor.reason, {}},
                                  "asked again"});
    }
    return;
  }
  const auto waits = [&](const PendingSpawn& p) { return p.requester == e.requester; };
  if (std::any_of(pending_.begin(), pending_.end(), waits)) return;

  const auto refuse = [&](std::string why, std::string todo) {
    out.push_back(SpawnAnswered{e.requester,
                                false,
                                {},
                                {},
                                {ErrorCode::kRefused, "cannot spawn " + e.spec.type, why, std::move(todo)},
                                why});
  };
  if (!job_runs(e.spec.job)) {
    return refuse("its job has ended, or a newer driver took it over",
                  "give each program that runs a job name of its own");
  }
  const auto same_name = [&](const PendingSpawn& p) { return p.spec.name == e.spec.name; };
  if (!e.spec.name.empty() &&
      (names_.contains(e.spec.name) || std::any_of(pending_.begin(), pending_.end(), same_name))) {
    return refuse("the name " + e.spec.name + " is taken", "choose another name, or look the actor up");
  }
  PendingSpawn spawn{e.requester, e.spec, {}};
  if (!try_start(spawn, now, out, spawn.reason)) pending_.push_back(std::move(spawn));
}

std::vector<NodeView> ClusterMachine::views() const {
  std::vector<NodeView> all;
  for (const auto& [id, node] : nodes_) {
    if (node.info.gateway) continue;
    const bool doubtful = !node.registered || membership_.liveness(id) != Liveness::kAlive;
    all.push_back({id, node.info.name, node.info.cpu_e4, node.cpu_used_e4, node.actors, doubtful});
  }
  return all;
}

/// True if the spawn is settled: started, or refused for good.
bool ClusterMachine::try_start(const PendingSpawn& spawn, Instant now, Actions& out, std::string& why_not) {
  const Placement placement = placement_(views(), spawn.spec.demand);
  if (placement.verdict == PlacementVerdict::kWait) {
    why_not = placement.reason;
    return false;
  }
  if (placement.verdict == PlacementVerdict::kNever) {
    out.push_back(SpawnAnswered{spawn.requester,
                                false,
                                {},
                                {},
                                {ErrorCode::kRefused, "cannot place " + spawn.spec.type, placement.reason,
                                 "ask for less, or add a node that has it"},
                                placement.reason});
    return true;
  }
  TROUPE_ASSERT(nodes_.contains(placement.node), "a placement policy names a node that it was shown");
  const ActorId id{ids_.next()};
  Actor& actor = actors_[id];
  actor.record = {id, spawn.spec, spawn.requester, placement.node, {}, ActorState::kStarting};
  actor.deadline = now + config_.start_deadline;
  actor.reason = placement.reason;
  answered_[spawn.requester] = id;
  if (!spawn.spec.name.empty()) names_[spawn.spec.name] = id;
  hold(actor, +1);
  out.push_back(persist(actor.record));
  out.push_back(StartActor{placement.node, id, spawn.spec, placement.reason});
  return true;
}

void ClusterMachine::retry_pending(Instant now, Actions& out) {
  std::erase_if(pending_, [&](PendingSpawn& p) { return try_start(p, now, out, p.reason); });
}

void ClusterMachine::handle(const SpawnCancelled& e, Instant now, Actions& out) {
  std::erase_if(pending_, [&](const PendingSpawn& p) { return p.requester == e.requester; });
  if (const auto it = answered_.find(e.requester); it != answered_.end()) {
    end_actor(actors_.at(it->second), "its requester cancelled it", now, out);
  }
}

void ClusterMachine::handle(const ActorStarted& e, Instant, Actions& out) {
  const auto it = actors_.find(e.actor);
  if (it == actors_.end() || it->second.record.node != e.node ||
      it->second.record.state == ActorState::kDead) {
    out.push_back(KillActor{e.node, e.actor, "the head does not know it as living there"});
  } else if (it->second.record.state == ActorState::kEnding) {
    out.push_back(KillActor{e.node, e.actor, it->second.reason});
  } else if (it->second.record.state == ActorState::kStarting) {
    actor_alive(it->second, e.process, out);
  }
}

void ClusterMachine::actor_alive(Actor& actor, ProcessId process, Actions& out) {
  actor.record.state = ActorState::kAlive;
  actor.record.process = process;
  out.push_back(persist(actor.record));
  out.push_back(SpawnAnswered{
      actor.record.requester, true, actor.record.actor, address_of(actor.record), {}, actor.reason});
}

void ClusterMachine::handle(const ActorFailed& e, Instant now, Actions& out) {
  const auto it = actors_.find(e.actor);
  if (it == actors_.end() || it->second.record.node != e.node) return;
  actor_gone(it->second, e.error, now, out);
  retry_pending(now, out);
}

void ClusterMachine::handle(const ActorDown& e, Instant now, Actions& out) {
  const auto it = actors_.find(e.actor);
  if (it == actors_.end() || it->second.record.node != e.node) return;
  actor_gone(it->second, {ErrorCode::kActorDied, "actor " + to_string(e.actor) + " died", e.reason, {}}, now,
             out);
  retry_pending(now, out);
}

void ClusterMachine::handle(const WatchActor& e, Instant, Actions& out) {
  const auto it = actors_.find(e.actor);
  if (it == actors_.end()) {
    out.push_back(NotifyDown{e.node, e.actor, "the head knows no such actor: it ended, or never was"});
  } else if (it->second.record.state == ActorState::kDead) {
    out.push_back(NotifyDown{e.node, e.actor, it->second.reason});
  } else {
    it->second.watchers.insert(e.node);
  }
}

void ClusterMachine::handle(const LookupActor& e, Instant, Actions& out) {
  const auto it = names_.find(e.name);
  if (it == names_.end()) {
    out.push_back(NameAnswered{
        e.requester, false, {}, {}, {ErrorCode::kUnavailable, "no actor is named " + e.name, "", ""}});
    return;
  }
  const ActorRecord& record = actors_.at(it->second).record;
  out.push_back(NameAnswered{e.requester,
                             record.state == ActorState::kAlive,
                             record.actor,
                             address_of(record),
                             {ErrorCode::kUnavailable, "actor " + e.name + " is not up", "", "ask again"}});
}

void ClusterMachine::handle(const KillRequested& e, Instant now, Actions& out) {
  if (const auto it = actors_.find(e.actor); it != actors_.end()) end_actor(it->second, e.reason, now, out);
}

/// Has its node kill it. It keeps its CPUs until the node says that it is gone.
void ClusterMachine::end_actor(Actor& actor, const std::string& reason, Instant now, Actions& out) {
  if (actor.record.state == ActorState::kDead || actor.record.state == ActorState::kEnding) return;
  actor.record.state = ActorState::kEnding;
  actor.reason = reason;
  actor.deadline = now + config_.start_deadline;
  out.push_back(persist(actor.record));
  out.push_back(KillActor{actor.record.node, actor.record.actor, reason});
}

void ClusterMachine::actor_gone(Actor& actor, const ErrorInfo& why, Instant now, Actions& out) {
  ActorRecord& record = actor.record;
  if (record.state == ActorState::kDead) return;
  hold(actor, -1);
  if (record.state != ActorState::kEnding) actor.reason = why.message();
  record.state = ActorState::kDead;
  actor.deadline = now + config_.keep_dead;
  if (!record.spec.name.empty()) names_.erase(record.spec.name);
  out.push_back(Erase{key_of(record)});
  if (!record.process)
    out.push_back(SpawnAnswered{record.requester, false, record.actor, {}, why, actor.reason});
  for (const NodeId watcher : actor.watchers) out.push_back(NotifyDown{watcher, record.actor, actor.reason});
  actor.watchers.clear();
}

// A head that starts again.

void ClusterMachine::handle(const Restored& e, Instant now, Actions& out) {
  for (const Record& record : e.records) {
    if (const auto* node = std::get_if<NodeRecord>(&record)) {
      membership_.join(node->node.id, now);
      if (node->dead) {
        membership_.leave(node->node.id);
      } else {
        nodes_[node->node.id].info = node->node;
      }
    } else if (const auto* job = std::get_if<JobRecord>(&record)) {
      jobs_[job->name] = *job;
    }
  }
  for (const Record& record : e.records) {
    const auto* actor = std::get_if<ActorRecord>(&record);
    if (actor == nullptr) continue;
    if (!nodes_.contains(actor->node)) {  // its node's death was recorded, its own was not
      out.push_back(Erase{key_of(*actor)});
      continue;
    }
    Actor& restored = actors_[actor->actor];
    restored.record = *actor;
    restored.deadline = now + config_.start_deadline;
    restored.reason = "known from before the head restarted";
    answered_[actor->requester] = actor->actor;
    if (!actor->spec.name.empty()) names_[actor->spec.name] = actor->actor;
    hold(restored, +1);
  }
  for (auto& [name, job] : jobs_) {
    if (!job.ended && !nodes_.contains(job.driver.node)) end_job(job, "its driver's node is dead", now, out);
  }
  // The head may have died between recording a job's end and telling the nodes.
  for (auto& [id, actor] : actors_) {
    if (!job_runs(actor.record.spec.job)) end_actor(actor, "its job has ended", now, out);
  }
}

}  // namespace troupe::cluster
