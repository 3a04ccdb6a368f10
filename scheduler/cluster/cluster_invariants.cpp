// What holds between the indices of the machine, for tests.
#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {

void ClusterMachine::check_invariants() const {
  jobs_.check();
  actors_.check();
  std::size_t dead = 0, held = 0;
  std::map<NodeId, std::int64_t> used;
  std::map<NodeId, std::map<std::size_t, std::int64_t>> gpu_used;
  for (const auto& [id, actor] : actors_.all()) {
    const ActorRecord& record = actor.record;
    if (record.state == ActorState::kDead) {
      ++dead;
      continue;
    }
    if (record.state == ActorState::kRestarting) {
      const Job* of = jobs_.find(record.spec.job);
      TROUPE_ASSERT(
          record.spec.is_restartable() && of != nullptr && of->runs() && of->restarting.contains(id),
          "only actors of a running job restart");
      TROUPE_ASSERT(nodes_.contains(record.requester.from.node), "and only while there is who spawned them");
      continue;
    }
    TROUPE_ASSERT(nodes_.contains(record.node) && nodes_.at(record.node).actors.contains(id),
                  "an actor is on a live node, which knows it");
    used[record.node] += record.spec.demand.cpu_e4;
    TROUPE_ASSERT(holds_what_it_asked(record), "an actor holds the GPUs that it asked for");
    for (const std::uint32_t gpu : record.gpus)
      gpu_used[record.node][gpu] += held_of_each(record.spec.demand.gpu_e4);
    ++held;
    const Job* job = jobs_.find(record.spec.job);
    TROUPE_ASSERT(job == nullptr || job->actors.contains(id), "a job knows its actors");
    TROUPE_ASSERT(record.state != ActorState::kStarting || (job != nullptr && job->runs()),
                  "only a running job starts actors");
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
    for (const std::uint32_t gpu : submission.gpus)
      gpu_used[submission.node][gpu] += held_of_each(submission.spec.gpu_e4);
  }
  TROUPE_ASSERT(dead <= config_.max_dead_actors, "the dead are bounded");
  TROUPE_ASSERT(dead_nodes_.size() == forget_nodes_.size() && dead_nodes_.size() <= config_.max_dead_nodes,
                "dead nodes are bounded");
  for (const auto& [id, node] : nodes_) {
    TROUPE_ASSERT(!dead_nodes_.contains(id), "a node is dead or not");
    TROUPE_ASSERT(node.cpu_used_e4 == used[id], "a node's CPUs are held by its actors and drivers");
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
    TROUPE_ASSERT(hidden || seen->second.cpu_used_e4 == node.cpu_used_e4, "and sees them as they are");
    TROUPE_ASSERT(hidden || seen->second.gpus.size() == node.info.gpus.size(), "with their GPUs");
  }
  TROUPE_ASSERT(held == 0, "every actor is on a node");
  const SubmissionRecord* first = first_that_waits();
  for (const auto& [place, id] : submissions_.queue()) {
    const ActorDemand demand = demand_of(submissions_.find(id)->spec);
    if (index_.place(demand).verdict != PlacementVerdict::kPlaced) continue;
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
    TROUPE_ASSERT(index_.place(spawn.spec.demand).verdict != PlacementVerdict::kPlaced,
                  "what waits fits nowhere");
  }
  TROUPE_ASSERT(payload_bytes == waiting_.payload_bytes(), "payloads are counted");
  for (const auto& [id, job] : jobs_.all()) {
    for (const auto& [name, requester] : job.names)
      TROUPE_ASSERT(!job.runs() || has_request(requester), "a name is of an actor that lives or waits");
    for (const NodeId node : job.leases)
      TROUPE_ASSERT(nodes_.contains(node) && nodes_.at(node).leases.contains(id),
                    "a lease is known to its node");
  }
}

}  // namespace troupe::cluster
