// Jobs: who drives which, and what ends with a driver.
#include <utility>

#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {

void ClusterMachine::handle(const JobRegistered& e) {
  if (!is_registered(e.driver.node)) return;
  const auto reply = [&](JobId job, std::uint32_t incarnation, std::string reason, ErrorInfo error = {}) {
    out_.push_back(JobAnswered{e.driver, e.request, job, incarnation, std::move(reason), std::move(error)});
  };
  if (auto wrong = check_job_name(e.name)) return reply({}, 0, wrong->why, *wrong);
  if (Job* known = jobs_.named(e.name); known != nullptr && known->runs()) {
    const JobRecord& record = known->record;
    if (record.driver == e.driver && record.request == e.request)
      return reply(record.job, record.incarnation, "registered before");
    if (known->has_driver()) end_job(*known, "a newer driver registered job " + e.name);
    if (known->record.parked) return take_over(*known, e);
  }
  const std::uint32_t incarnation = jobs_.next_incarnation(e.name);
  Job& job = jobs_.add({e.name, incarnation, JobId{ids_.next()}, e.driver, e.request, false, e.submission,
                        false, e.started_by});
  find_queue(job);
  persist(job.record);
  reply(job.record.job, incarnation, "incarnation " + std::to_string(incarnation));
}

void ClusterMachine::handle(const JobEnded& e) {
  Job* job = jobs_.find(e.job);
  const bool is_parked = job != nullptr && job->record.parked;
  if (job != nullptr && !is_parked && job->record.driver.node != e.node) return;
  if (job != nullptr && job->has_driver()) {
    const ProcessId driver = job->record.driver.process;
    if (e.driver && e.driver != driver) return;  // one before it, of which another driver took the job over
    return end_job(*job, clipped(e.reason));
  }
  // It repeats this until it is told.
  if (is_live(e.node))
    out_.push_back(EndJob{e.node, e.job, kJobIsOver, is_parked ? staying(*job) : std::vector<ActorId>()});
}

/// Its nodes are told once each, and kill all of it. Actors that are still there when a node registers again,
/// or when their deadline comes, are killed one by one.
void ClusterMachine::end_job(Job& job, const std::string& reason, bool ends_all) {
  const JobId id = job.record.job;
  const NodeId driver = job.record.driver.node;
  const std::vector<ActorId> stays = ends_all ? std::vector<ActorId>() : staying(job);
  const std::set<ActorId> stay(stays.begin(), stays.end());
  if (job.record.parked || !stays.empty())
    log_.push_back("job " + job.record.name +
                   (stays.empty() ? ", which was parked, has ended: " : " is parked: ") + reason);
  stays.empty() ? jobs_.end(job) : jobs_.park(job);
  persist(job.record);
  std::set<NodeId> told = std::exchange(job.leases, {});
  for (const NodeId node : told) nodes_.at(node).leases.erase(id);
  for (const auto& [node, count] : job.actors_on) told.insert(node);
  told.insert(driver);
  for (const NodeId node : told) {
    if (is_live(node)) out_.push_back(EndJob{node, id, reason, stays});
  }
  // The driver that a newer one replaces lives on, with its futures.
  const auto over = [&](const ActorSpec& spec) {
    return ErrorInfo{ErrorCode::kRefused, "cannot spawn " + spec.type, "its job ended: " + reason, ""};
  };
  for (const Requester& requester : waiting_.of_job(id)) {
    if (stay.contains(waiting_.at(requester).restarts)) continue;
    const auto spawn = waiting_.take(requester);
    refuse(*spawn, over(spawn->spec));
  }
  for (const SpawnRequested& spawn :
       claims_.take_if([&](const SpawnRequested& claim) { return claim.spec.job == id; })) {
    const ErrorInfo error = over(spawn.spec);
    answer(SpawnAnswered{spawn.requester, false, {}, {}, error, error.why});
  }
  const std::string ended = "job " + job.record.name + " ended: " + reason;
  for (const ActorId actor : job.actors) {
    if (stay.contains(actor)) continue;
    Actor& ends = actors_.at(actor);  // one that was killed before ended for that
    actors_.ending(ends, ends.record.state == ActorState::kEnding ? ends.reason : ended,
                   now_ + config_.end_again);
    if (!ends.wanted_at) ends.wanted_at = now_;
    note_lease(ends);
    if (!stays.empty()) persist(ends.record);  // the job's record does not say it
  }
  for (const ActorId actor : std::set(job.restarting)) {
    if (!stay.contains(actor))
      end_restart(actors_.at(actor),
                  {ErrorCode::kActorDied, name_of(actors_.at(actor).record) + " died", ended, {}});
  }
  for (const GroupId group : groups_.of_job(id)) remove_group(groups_.at(group), ended);
  jobs_.settle(id, now_ + config_.keep_ended_jobs);
}

void ClusterMachine::handle(const LeaseRequested& e) {
  if (!is_registered(e.node)) return;
  Job* job = jobs_.find(e.job);
  if (job == nullptr || !job->runs()) return out_.push_back(LeaseAnswered{e.node, e.job, false, kJobIsOver});
  if (const auto parked = no_driver(*job, ""))
    return out_.push_back(LeaseAnswered{e.node, e.job, false, parked->why});
  job->leases.insert(e.node);
  nodes_.at(e.node).leases.insert(e.job);
  out_.push_back(LeaseAnswered{e.node, e.job, true, "the job runs", job->record.driver});
}

/// Whether processes of that job may be on that node: its driver, or actors of it.
bool ClusterMachine::holds_job(NodeId node, JobId id) const {
  const Job* job = jobs_.find(id);
  return job != nullptr &&
         (job->record.driver.node == node || job->leases.contains(node) || job->actors_on.contains(node));
}

}  // namespace troupe::cluster
