// What holds between the indices of the machine, for tests.
#include <algorithm>

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"
#include "scheduler/placement/group_plan.hpp"

namespace troupe::cluster {

/// How many actors are in groups.
std::size_t ClusterMachine::check_groups() const {
  groups_.check();
  std::size_t actors = 0;
  for (const auto& [id, group] : groups_.all()) {
    actors += group.actors.size();
    std::vector<Group::Use> used;
    for (const PlacedBundle& bundle : group.record.placed) used.push_back({0, GpuUse(bundle.gpus.size()), 0});
    std::vector<std::int64_t> never_waited(used.size());  // the CPUs of those: tasks that go on may hold more
    for (const ActorId actor_id : group.actors) {
      const ActorRecord& record = actors_.at(actor_id).record;
      const auto at = static_cast<std::size_t>(record.bundle);
      used[at].cpu_e4 += held_by(actors_.at(actor_id)).cpu_e4;
      if (!actors_.at(actor_id).has_waited) never_waited[at] += record.spec.demand.cpu_e4;
      ++used[at].actors;
      add_amounts(used[at].other, record.spec.demand.other.amounts, 1);
      for (const std::uint32_t gpu : record.gpus) {
        const auto& gpus = group.record.placed[at].gpus;
        used[at].gpus[static_cast<std::size_t>(std::find(gpus.begin(), gpus.end(), gpu) - gpus.begin())] +=
            held_of_each(record.spec.demand.gpu_e4);
      }
    }
    TROUPE_ASSERT(used == group.used, "a bundle's room is held by the actors in it");
    for (std::size_t i = 0; i < used.size(); ++i) {
      const BundleDemand& has = group.record.spec.bundles[i];
      const NodeId on = group.record.placed[i].node;
      TROUPE_ASSERT(never_waited[i] <= has.cpu_e4 && has_amounts(has.other.amounts, {}, used[i].other),
                    "no bundle is used beyond what it holds");
      for (const std::int64_t gpu : used[i].gpus)
        TROUPE_ASSERT(gpu <= held_of_each(has.gpu_e4), "no bundle's GPU is dealt beyond what it is");
      const auto shown = group.room.nodes().find(id_of_bundle(static_cast<std::int32_t>(i)));
      const auto seen = index_.nodes().find(on);
      const bool is_shown = shown != group.room.nodes().end();
      TROUPE_ASSERT(is_shown == (seen != index_.nodes().end()), "a bundle takes actors where a node does");
      if (!is_shown) continue;
      const NodeView as_is = without_kept(view_of_bundle(group, i, seen->second), {id, shown->first});
      TROUPE_ASSERT(shown->second.suspect == seen->second.suspect &&
                        shown->second.cpu_used_e4 == as_is.cpu_used_e4 && shown->second.gpus == as_is.gpus &&
                        shown->second.other_used == as_is.other_used &&
                        shown->second.actors == used[i].actors,
                    "a bundle is shown as it is, without what is kept for those whose turn it is");
    }
    const std::uint64_t none = group.number + 1;
    const bool has_its_turn =
        std::min(next_group_to_try_.value_or(none), try_again_from_.value_or(none)) <= group.number;
    const bool starts = group.record.spec.start_only;
    TROUPE_ASSERT(!starts || group.record.state == GroupState::kWaiting, "it is gone when its actors start");
    TROUPE_ASSERT(group.record.state != GroupState::kWaiting || group.cut_off || has_its_turn ||
                      (starts && !are_all_there(group)) || !over_quota(group).empty() ||
                      !scheduler::plan_group(group.record.spec, group.record.placed, index_).is_placed,
                  "a group that waits fits nowhere");
  }
  return actors;
}

/// What jobs of a queue hold is counted, each thing once.
void ClusterMachine::check_queues() const {
  std::map<std::string, scheduler::Room> used, programs;
  const auto add = [&](const std::string& queue, const auto& held) {
    used[queue].add(scheduler::Room::of(held));
  };
  for (const auto& [id, node] : nodes_) {
    for (const ActorId actor : node.actors) {
      const ActorDemand has = held_by(actors_.at(actor));
      const Job* job = jobs_.find(actors_.at(actor).record.spec.job);
      if (job != nullptr && !has.group) add(job->queue, has);
    }
    for (const std::string& driver : node.drivers) {
      const SubmissionSpec& spec = submissions_.find(driver)->spec;
      add(cluster::queue_of(spec), spec);
      programs[cluster::queue_of(spec)].add(scheduler::Room::of(spec));
    }
  }
  for (const auto& [id, group] : groups_.all()) {
    for (std::size_t i = 0; i < group.record.placed.size(); ++i) {
      const BundleDemand& has = group.record.spec.bundles[i];
      if (group.record.placed[i].node) add(group.queue, has);
    }
  }
  used.erase("");
  for (const auto& [name, queue] : queues_.all()) {
    TROUPE_ASSERT(queue.load.used == used[name], "a queue's load is what its jobs hold");
    TROUPE_ASSERT(queue.load.programs == programs[name], "and of that what their programs hold");
  }
  for (const auto& [name, room] : used)
    TROUPE_ASSERT(room == scheduler::Room{} || queues_.find(name) != nullptr, "what holds is in a queue");
}

void ClusterMachine::check_invariants() const {
  jobs_.check();
  actors_.check();
  std::size_t dead = 0, held = 0, in_groups = 0;
  std::map<NodeId, std::int64_t> used;
  std::map<NodeId, std::map<std::size_t, std::int64_t>> gpu_used;
  std::map<NodeId, ResourceAmounts> other_used;
  LeaseTurns leases{LeaseTurns::Config{}};
  for (const auto& [id, actor] : actors_.all()) {
    const ActorRecord& record = actor.record;
    if (is_leased(actor)) leases.set(actor, may_be_told(actor));
    if (record.state == ActorState::kDead) {
      TROUPE_ASSERT(!actor.waits, "what is gone gives its CPUs back once");
      ++dead;
      continue;
    }
    if (record.state == ActorState::kRestarting) {
      const Job* of = jobs_.find(record.spec.job);
      TROUPE_ASSERT(
          record.spec.is_restartable() && of != nullptr && of->runs() && of->restarting.contains(id),
          "only actors of a running job restart");
      TROUPE_ASSERT(has_its_arguments(record), "and only while there is who has their arguments");
      continue;
    }
    TROUPE_ASSERT(nodes_.contains(record.node) && nodes_.at(record.node).actors.contains(id),
                  "an actor is on a live node, which knows it");
    TROUPE_ASSERT(holds_what_it_asked(record), "an actor holds the GPUs that it asked for");
    if (const Group* group = groups_.find(record.spec.demand.group)) {
      TROUPE_ASSERT(group->actors.contains(id) && is_in_its_bundle(*group, record),
                    "an actor in a group is where its bundle is");
      ++in_groups;
    } else {
      TROUPE_ASSERT(!record.spec.demand.group, "a group outlives what runs in it");
      used[record.node] += held_by(actor).cpu_e4;
      add_amounts(other_used[record.node], record.spec.demand.other.amounts, 1);
      for (const std::uint32_t gpu : record.gpus)
        gpu_used[record.node][gpu] += held_of_each(record.spec.demand.gpu_e4);
    }
    ++held;
    const Job* job = jobs_.find(record.spec.job);
    TROUPE_ASSERT(job == nullptr || job->actors.contains(id), "a job knows its actors");
    TROUPE_ASSERT(record.state != ActorState::kStarting || (job != nullptr && job->runs()),
                  "only a running job starts actors");
  }
  TROUPE_ASSERT(leases.is_same(leases_), "workers of tasks are known as they are");
  in_groups -= check_groups();
  TROUPE_ASSERT(in_groups == 0, "a group knows its actors");
  for (const auto& [id, group] : groups_.all()) {
    for (std::size_t i = 0; i < group.record.placed.size(); ++i) {
      const PlacedBundle& on = group.record.placed[i];
      if (!on.node) continue;
      TROUPE_ASSERT(nodes_.contains(on.node) && nodes_.at(on.node).groups.contains(id),
                    "a bundle is on a live node, which knows it");
      used[on.node] += group.record.spec.bundles[i].cpu_e4;
      add_amounts(other_used[on.node], group.record.spec.bundles[i].other.amounts, 1);
      for (const std::uint32_t gpu : on.gpus)
        gpu_used[on.node][gpu] += held_of_each(group.record.spec.bundles[i].gpu_e4);
    }
  }
  submissions_.check();
  for (const auto& [id, submission] : submissions_.all()) {
    const bool holds = submission.state == SubmissionState::kStarting ||
                       submission.state == SubmissionState::kRunning ||
                       submission.state == SubmissionState::kStopping;
    const auto at = nodes_.find(submission.node);
    TROUPE_ASSERT(holds == (at != nodes_.end() && at->second.drivers.contains(id)),
                  "a driver is on a live node, which knows it");
    if (!holds) continue;
    used[submission.node] += submission.spec.cpu_e4;
    add_amounts(other_used[submission.node], submission.spec.other.amounts, 1);
    for (const std::uint32_t gpu : submission.gpus)
      gpu_used[submission.node][gpu] += held_of_each(submission.spec.gpu_e4);
  }
  TROUPE_ASSERT(dead <= config_.max_dead_actors, "the dead are bounded");
  TROUPE_ASSERT(dead_nodes_.size() == forget_nodes_.size() && dead_nodes_.size() <= config_.max_dead_nodes,
                "dead nodes are bounded");
  for (const auto& [id, node] : nodes_) {
    TROUPE_ASSERT(!dead_nodes_.contains(id), "a node is dead or not");
    TROUPE_ASSERT(node.cpu_used_e4 == used[id], "a node's CPUs are held by its actors, drivers and bundles");
    TROUPE_ASSERT(node.other_used == other_used[id], "and what else they hold");
    for (std::size_t gpu = 0; gpu < node.gpu_used_e4.size(); ++gpu) {
      TROUPE_ASSERT(node.gpu_used_e4[gpu] == gpu_used[id][gpu], "a node's GPUs are held by its actors");
      TROUPE_ASSERT(node.gpu_used_e4[gpu] <= kGpu, "no GPU is dealt beyond what it is");
    }
    TROUPE_ASSERT(held >= node.actors.size(), "actors are on one node each");
    held -= node.actors.size();
    for (const NodeId peer : node.peers)
      TROUPE_ASSERT(nodes_.contains(peer) && nodes_.at(peer).peers.contains(id), "peers know each other");
    for (const JobId lease : node.leases)
      TROUPE_ASSERT(jobs_.runs(lease) && jobs_.find(lease)->leases.contains(id),
                    "a lease is of a running job");
    const auto seen = index_.nodes().find(id);
    const bool hidden = node.info.gateway || node.leaving || node.drain;
    TROUPE_ASSERT(node.drain.has_value() == draining_.contains(id), "those that drain are known");
    TROUPE_ASSERT((seen == index_.nodes().end()) == hidden,
                  "placement sees all but gateways and those that leave or drain");
    const NodeView as_is = shown(id);
    TROUPE_ASSERT(hidden || seen->second.cpu_used_e4 == as_is.cpu_used_e4,
                  "and sees them as they are, without what is kept for those whose turn it is");
    TROUPE_ASSERT(hidden || seen->second.other_used == as_is.other_used, "also that");
    TROUPE_ASSERT(hidden || seen->second.gpus == as_is.gpus, "and of GPUs what they are");
    TROUPE_ASSERT(hidden || seen->second.gpus.size() == node.info.gpus.size(), "with their GPUs");
  }
  TROUPE_ASSERT(held == 0, "every actor is on a node");
  check_queues();
  const SubmissionRecord* first = first_that_waits();
  for (const auto& [place, id] : submissions_.queue()) {
    const SubmissionSpec& spec = submissions_.find(id)->spec;
    const ActorDemand demand = demand_of(spec);
    if (index_.place(demand).verdict != PlacementVerdict::kPlaced) continue;
    if (!over_quota(cluster::queue_of(spec), scheduler::Room::of(spec)).empty()) continue;
    TROUPE_ASSERT(first != nullptr && first->spec.id != id, "the first that waits fits nowhere");
    TROUPE_ASSERT(competes(demand_of(first->spec), demand), "and holds up those alone that ask for the same");
    const NodeId kept = kept_for(demand_of(first->spec));
    for (const auto& [node, view] : index_.nodes())
      TROUPE_ASSERT(node == kept || !index_.fits(node, demand),
                    "room that is not kept for the first is used");
  }
  std::size_t payload_bytes = 0;
  for (const auto& [number, spawn] : waiting_.all()) {
    payload_bytes += spawn.spec.payload.size();
    TROUPE_ASSERT(jobs_.runs(spawn.spec.job), "only spawns of running jobs wait");
    const Actor* actor = actors_.of_request(spawn.requester);
    TROUPE_ASSERT(actor == nullptr || (actor->record.state == ActorState::kRestarting &&
                                       actor->record.actor == spawn.restarts),
                  "a spawn waits or is answered");
    if (spawn.stopped_by != 0) {
      TROUPE_ASSERT(queue_that_stops(spawn.spec) == spawn.stopped_by,
                    "what a queue stops is too much for it");
    } else {
      TROUPE_ASSERT(place(spawn.spec.demand).verdict != PlacementVerdict::kPlaced, "what waits fits nowhere");
    }
  }
  TROUPE_ASSERT(payload_bytes == waiting_.payload_bytes(), "payloads are counted");
  for (const auto& [id, job] : jobs_.all()) {
    TROUPE_ASSERT(!job.record.parked || !job.actors.empty() || !job.restarting.empty(),
                  "a parked job has detached actors, or some that end");
    TROUPE_ASSERT(!job.record.parked || job.leases.empty(), "and no light ones");
    for (const auto& [name, requester] : job.names)
      TROUPE_ASSERT(!job.runs() || has_request(requester), "a name is of an actor that lives or waits");
    for (const NodeId node : job.leases)
      TROUPE_ASSERT(nodes_.contains(node) && nodes_.at(node).leases.contains(id),
                    "a lease is known to its node");
  }
}

}  // namespace troupe::cluster
