// Actors that have several lives: when the next one starts, and who is told where it is.
#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {

/// Whoever spawned it keeps what it is constructed with, unless it is detached: without him there is no other
/// life. One that never lived is placed again, or fails, as any spawn.
bool ClusterMachine::has_another_life(const Actor& actor) const {
  const ActorRecord& record = actor.record;
  const int most = record.spec.max_restarts;
  const bool lived = record.process || record.incarnation > 1;
  return lived && (most < 0 || record.restarts < most) && jobs_.runs(record.spec.job) &&
         has_its_arguments(record);
}

/// `moves`: it did not fail, so it uses up no restart and waits for none.
void ClusterMachine::begin_restart(Actor& actor, const std::string& why, bool moves) {
  const bool settled = moves || (actor.record.process && now_ - actor.up_at >= config_.settled);
  actor.quick_deaths = settled ? 0 : actor.quick_deaths + 1;
  Duration wait{0};
  for (int i = 1; i < actor.quick_deaths && wait < config_.restart_after_most; ++i)
    wait = wait == Duration{0} ? config_.restart_after : 2 * wait;
  if (!moves) ++actor.record.restarts;
  log_detached(actor.record, "starts again: " + why);
  if (actor.record.process) actor.record.died_on = actor.record.node;
  // Where a life has not begun its executable may be missing.
  if (actor.record.process || !is_live(actor.was_at)) {
    actor.was_at = actor.record.node;
    actor.was_on = nodes_.at(actor.was_at).info.name;
  }
  actors_.restarting(actor, why, now_ + std::min(wait, config_.restart_after_most));
  jobs_.find(actor.record.spec.job)->restarting.insert(actor.record.actor);
  persist(actor.record);
  tell_watchers(actor);
  want_arguments(actor);
  // It keeps its name: whoever wanted that is refused.
  for (const SpawnRequested& claim : claims_.take_where(actor.record.actor)) refuse_taken_name(claim);
}

/// A further life whose node could not get its executable: the node that has it is busy, or has it no more,
/// and another one may. That uses up no restart. False: it was tried often enough, and counts as a death.
bool ClusterMachine::starts_later(Actor& actor, const ErrorInfo& why) {
  const ActorRecord& record = actor.record;
  const bool may = record.state == ActorState::kStarting && record.incarnation > 1 &&
                   jobs_.runs(record.spec.job) && has_its_arguments(record);
  if (!may || ++actor.not_begun > config_.starts_without_executable) return false;
  release(actor);
  Duration wait = config_.restart_after;
  for (int i = 1; i < actor.not_begun && wait < config_.restart_after_most; ++i) wait *= 2;
  actors_.restarting(actor, why.message(), now_ + std::min(wait, config_.restart_after_most));
  jobs_.find(record.spec.job)->restarting.insert(record.actor);
  persist(record);
  tell_watchers(actor);
  want_arguments(actor);
  for (const SpawnRequested& claim : claims_.take_where(record.actor)) refuse_taken_name(claim);
  return true;
}

void ClusterMachine::want_arguments(const Actor& actor) {
  const Requester& owner = actor.record.requester;
  if (actor.record.spec.is_kept()) {
    for (const auto& [id, node] : nodes_) {
      if (node.registered) ask_for_arguments(actor, id);
    }
    return;
  }
  if (!actor.has_payload && !waiting_.contains(owner) && is_registered(owner.from.node))
    out_.push_back(ArgumentsWanted{owner, actor.record.actor});
}

void ClusterMachine::handle(const ActorArguments& e) {
  Actor* actor = actors_.find(e.actor);
  if (actor == nullptr || actor->record.requester != e.requester || waiting_.contains(e.requester)) return;
  if (actor->record.spec.is_kept()) return take_kept_arguments(*actor, e);
  if (actor->has_payload || actor->record.state != ActorState::kRestarting) return;
  if (!e.kept || e.payload.size() > kMaxPayloadBytes) {
    return end_restart(*actor, {ErrorCode::kActorDied,
                                name_of(actor->record) + " died",
                                "whoever spawned it is gone, and with it what it is constructed with",
                                {}});
  }
  actors_.set_payload(*actor, e.payload);
  if (now_ >= actor->restart_at) restart_when_due(*actor);
}

void ClusterMachine::restart_when_due(Actor& actor) {
  const ActorId id = actor.record.actor;
  if (!actor.has_payload) {  // when its arguments come
    if (!actor.record.spec.is_kept() || waiting_.contains(actor.record.requester)) return;
    const Instant until = actor.restart_at + config_.lost_node_grace;
    if (now_ < until) return actors_.set_deadline(actor, until);
    return end_restart(actor, {ErrorCode::kActorDied,
                               name_of(actor.record) + " died",
                               "the head started again, and no node has what it " +
                                   std::string(actor.record.has_saved ? "has saved" : "is constructed with"),
                               {}});
  }
  PendingSpawn spawn{actor.record.requester, actor.record.spec, 0, id};
  spawn.spec.payload = actors_.take_payload(actor);
  settle(std::move(spawn));
}

void ClusterMachine::start_again(PendingSpawn spawn, const Placement& placement) {
  Actor& actor = actors_.at(spawn.restarts);
  actors_.starting(actor, std::move(spawn.spec.payload),
                   now_ + std::min(config_.slow_start, config_.start_deadline));
  actor.started_at = now_;
  actor.record.node = placement.node;
  actor.record.gpus = placement.gpus;
  actor.record.bundle = placement.bundle;
  actor.reason = placement.reason;
  jobs_.find(actor.record.spec.job)->restarting.erase(spawn.restarts);
  hold(actor);
  persist(actor.record);
  out_.push_back(start_of(actor, placement.reason));
}

/// It has no other life after all.
void ClusterMachine::end_restart(Actor& actor, const ErrorInfo& why) {
  const ActorId id = actor.record.actor;
  const JobId job = actor.record.spec.job;
  waiting_.take(actor.record.requester);
  if (Job* of = jobs_.find(job)) of->restarting.erase(id);
  actor_dead(actor, {why.code, why.what, why.why + " (its last life: " + actor.reason + ")", why.todo});
  jobs_.settle(job, now_ + config_.keep_ended_jobs);
}

void ClusterMachine::restarts_lost(NodeId owner, const std::string& why) {
  for (const ActorId id : std::set(actors_.all_restarting())) {
    const ActorRecord& record = actors_.at(id).record;
    if (record.requester.from.node == owner && !record.spec.is_kept())
      end_restart(actors_.at(id), {ErrorCode::kActorDied,
                                   name_of(actors_.at(id).record) + " died",
                                   "whoever spawned it is gone: " + why,
                                   {}});
  }
}

/// Of a store: an actor that restarts, or whose node is dead.
void ClusterMachine::restore_restart(ActorRecord record) {
  const ActorId id = record.actor;
  Job* job = jobs_.find(record.spec.job);
  const bool has_owner = record.spec.is_kept() || nodes_.contains(record.requester.from.node);
  if (job == nullptr || !job->runs() || !has_owner) return forget_restored(record);
  const bool restarts = record.state == ActorState::kRestarting;
  if (!restarts && record.spec.max_restarts >= 0 && record.restarts >= record.spec.max_restarts)
    return forget_restored(record);
  Actor& actor = actors_.add({std::move(record), false, 0, "known from before the head restarted"});
  if (restarts) {
    actor.restart_at = now_;
    actors_.set_deadline(actor, now_);  // nobody may have what it is constructed with
  } else {
    ++actor.record.restarts;
    if (actor.record.process) actor.record.died_on = actor.record.node;
    actors_.restarting(actor, actor.reason, now_);
    persist(actor.record);
  }
  job->restarting.insert(id);
  if (!actor.record.spec.name.empty()) job->names[actor.record.spec.name] = actor.record.requester;
}

// Who is told where it is.

ActorPlace ClusterMachine::place_of(const Actor& actor) const {
  const ActorRecord& record = actor.record;
  ActorPlace place{record.actor, record.incarnation};
  place.max_task_retries = record.spec.max_task_retries;
  const bool ends = record.state == ActorState::kEnding;
  if (record.state == ActorState::kDead) {
    place.life = ActorLife::kEnded;
  } else if (record.process && (ends || record.state == ActorState::kAlive)) {
    place.life = ActorLife::kLives;
    place.process = {record.node, record.process};
    return place;
  } else {  // one that is killed while it starts may be up by now: its end is told when its node has told it
    place.life = ActorLife::kRestarts;
  }
  place.reason = why(actor);
  return place;
}

void ClusterMachine::tell_watchers(Actor& actor) {
  std::erase_if(actor.watchers, [&](NodeId node) { return !is_live(node); });
  for (const NodeId node : actor.watchers) out_.push_back(ActorPlaced{node, place_of(actor)});
}

void ClusterMachine::handle(const ResolveActor& e) {
  if (!is_registered(e.node)) return;
  Actor* actor = actors_.find(e.actor);
  if (actor == nullptr || actor->record.spec.job != e.job) {
    ActorPlace none{e.actor};
    none.reason = "there is no such actor in this job (any more)";
    return out_.push_back(ActorPlaced{e.node, std::move(none)});
  }
  if (actor->record.state != ActorState::kDead) actor->watchers.insert(e.node);
  out_.push_back(ActorPlaced{e.node, place_of(*actor)});
}

}  // namespace troupe::cluster
