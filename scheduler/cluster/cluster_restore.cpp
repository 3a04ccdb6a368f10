// A head that starts again: what the store kept, and what follows from it.
#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {

/// It died while no head was there to record it.
void ClusterMachine::forget_restored(const ActorRecord& actor) {
  detached_ended(actor, "its node ended while no head was there, and it has no other life");
  out_.push_back(Erase{"actor/" + to_string(actor.actor)});
}

void ClusterMachine::handle(const Restored& e) {
  TROUPE_ASSERT(nodes_.empty() && actors_.all().empty(), "a head is restored before anything else");
  for (const Record& record : e.records) {
    if (const auto* node = std::get_if<NodeRecord>(&record)) {
      const NodeId id = node->node.id;
      if (check_node(node->node)) {  // of an older build, which took what this one refuses
        out_.push_back(Erase{"node/" + to_string(id)});
        continue;
      }
      membership_.join(id, now_);
      if (!node->dead) {
        nodes_[id].info = node->node;
        refresh(id);
        continue;
      }
      membership_.leave(id);
      dead_nodes_.emplace(id, kBeforeThisHead);
      forget_nodes_.set(id, now_ + config_.keep_dead_nodes);
    } else if (const auto* job = std::get_if<JobRecord>(&record)) {
      if (job->name.empty()) {
        jobs_.raise_floor(job->incarnation);
        continue;
      }
      jobs_.add(*job);
    }
  }
  for (const Record& record : e.records) {
    const auto* queue = std::get_if<QueueRecord>(&record);
    if (queue != nullptr && !check_queue(*queue)) queues_.set(*queue);
  }
  for (const Record& record : e.records) {
    if (const auto* submission = std::get_if<SubmissionRecord>(&record)) restore_submission(*submission);
  }
  for (const auto& [id, job] : jobs_.all()) find_queue(*jobs_.find(id));
  for (const Record& record : e.records) {
    if (const auto* group = std::get_if<GroupRecord>(&record)) restore_group(*group);
  }
  std::vector<ActorId> orphans;
  for (const Record& record : e.records) {
    const auto* actor = std::get_if<ActorRecord>(&record);
    if (actor == nullptr) continue;
    const bool may_restart = actor->spec.is_restartable() && actor->state != ActorState::kEnding;
    if (may_restart && !nodes_.contains(actor->node) && !check_spec(actor->spec)) {
      restore_restart(*actor);
      continue;
    }
    if (!nodes_.contains(actor->node) || check_spec(actor->spec) || !holds_what_it_asked(*actor) ||
        !is_where_its_bundle_is(*actor)) {  // its node's death was recorded, its own not
      forget_restored(*actor);
      continue;
    }
    std::string reason = "known from before the head restarted";
    if (actor->state == ActorState::kEnding) {
      reason = actor->ends_for;
      if (reason.empty()) reason = "an older head had it ended, and did not write down why";
    }
    Actor& restored = actors_.add({*actor, false, 0, std::move(reason)});
    restored.started_at = now_;
    restored.has_waited = true;  // its node says whether it does
    if (actor->state == ActorState::kEnding) restored.wanted_at = now_;
    if (actor->state != ActorState::kAlive) actors_.set_deadline(restored, now_ + config_.start_deadline);
    if (Job* job = jobs_.find(actor->spec.job); job != nullptr && job->runs() && !actor->spec.name.empty())
      job->names[actor->spec.name] = actor->requester;
    hold(restored);
    // The head may have died between recording a job's end and telling the nodes.
    if (!jobs_.runs(actor->spec.job)) orphans.push_back(actor->actor);
  }
  for (const auto& [id, job] : std::map(jobs_.all())) {
    if (job.has_driver() && !nodes_.contains(job.record.driver.node))
      end_job(*jobs_.find(id), "its driver's node is dead");
    end_if_deserted(id);
    jobs_.settle(id, now_ + config_.keep_ended_jobs);
  }
  std::vector<GroupId> groups;
  for (const auto& [id, group] : groups_.all()) groups.push_back(id);
  for (const GroupId id : groups) {
    Group& group = groups_.at(id);
    if (!jobs_.runs(group.record.spec.job)) remove_group(group, "its job has ended");
    if (Group* left = groups_.find(id)) forget_if_empty(*left);  // what ran in it was gone already
  }
  for (const ActorId id : orphans) end_actor(actors_.at(id), "its job has ended");
}

}  // namespace troupe::cluster
