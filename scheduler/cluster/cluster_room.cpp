// Who holds what of a node: actors, and tasks that wait, which give their CPUs to others meanwhile.
#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {

/// Actors and drivers of submissions draw on the same books.
void ClusterMachine::hold_room(Node& node, const BundleDemand& what, const std::vector<std::uint32_t>& gpus) {
  node.cpu_used_e4 += what.cpu_e4;
  add_amounts(node.other_used, what.other.amounts, 1);
  for (const std::uint32_t gpu : gpus) {
    if (gpu >= node.gpu_used_e4.size()) node.gpu_used_e4.resize(gpu + 1);
    node.gpu_used_e4[gpu] += held_of_each(what.gpu_e4);
  }
}

void ClusterMachine::free_room(Node& node, const BundleDemand& what, const std::vector<std::uint32_t>& gpus) {
  node.cpu_used_e4 -= what.cpu_e4;
  add_amounts(node.other_used, what.other.amounts, -1);
  for (const std::uint32_t gpu : gpus) node.gpu_used_e4.at(gpu) -= held_of_each(what.gpu_e4);
}

/// It holds what held_by() says, or (sign -1) no more: of its bundle, or of its node and its job's queue.
void ClusterMachine::book(const Actor& actor, int sign) {
  const ActorRecord& record = actor.record;
  if (Group* group = groups_.find(record.spec.demand.group)) {
    use_bundle(*group, actor, sign);
    return show(*group, static_cast<std::size_t>(record.bundle));
  }
  const ActorDemand held = held_by(actor);
  const BundleDemand room{held.cpu_e4, held.gpu_e4, held.other};
  Node& node = nodes_.at(record.node);
  sign > 0 ? hold_room(node, room, record.gpus) : free_room(node, room, record.gpus);
  if (const Job* job = jobs_.find(record.spec.job)) charge(job->queue, scheduler::Room::of(held), sign);
}

void ClusterMachine::hold(const Actor& actor) {
  const ActorRecord& record = actor.record;
  book(actor, 1);
  nodes_.at(record.node).actors.insert(record.actor);
  if (Job* job = jobs_.find(record.spec.job)) {
    job->actors.insert(record.actor);
    ++job->actors_on[record.node];
  }
  refresh(record.node);
  note_lease(actor);
}

void ClusterMachine::release(Actor& actor) {
  const ActorRecord& record = actor.record;
  Node& node = nodes_.at(record.node);
  Group* group = groups_.find(record.spec.demand.group);
  book(actor, -1);
  leases_.remove(record.actor);
  actor.waits = false;
  const bool was_there = node.actors.erase(record.actor) == 1;
  TROUPE_ASSERT(was_there && node.cpu_used_e4 >= 0, "an actor is released once");
  if (Job* job = jobs_.find(record.spec.job)) {
    job->actors.erase(record.actor);
    if (--job->actors_on.at(record.node) == 0) job->actors_on.erase(record.node);
    jobs_.settle(record.spec.job, now_ + config_.keep_ended_jobs);
  }
  if (group != nullptr) forget_if_empty(*group);
  if (membership_.liveness(record.node) == Liveness::kDead) return;
  refresh(record.node);
  freed_.push_back(record.node);
}

void ClusterMachine::handle(const ActorWaits& e) {
  Actor* actor = actors_.find(e.actor);
  const bool is_there = actor != nullptr && is_registered(e.node) &&
                        nodes_.at(e.node).actors.contains(e.actor) &&
                        actor->record.incarnation == e.incarnation;
  if (is_there) set_waits(*actor, e.waits);
}

/// What waits gives its CPUs to others. When it goes on it holds them at once, whoever has them now: nothing
/// new is placed there until as many are free again.
void ClusterMachine::set_waits(Actor& actor, bool waits) {
  // A worker of tasks has one life. Others do not say so: their next one would begin as if it waited.
  if (actor.waits == waits || actor.record.spec.is_restartable()) return;
  book(actor, -1);
  actor.waits = waits;
  actor.has_waited = true;
  book(actor, 1);
  note_lease(actor);
  refresh(actor.record.node);
  if (waits) freed_.push_back(actor.record.node);
}

}  // namespace troupe::cluster
