// Detached actors: a job that its driver leaves is parked while it has some, and goes on under the next
// driver of its name. What they are constructed with is kept here and on two nodes, for their next lives.
#include <algorithm>
#include <set>
#include <utility>

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t kMostDetachedEnds = 1000;
constexpr std::size_t kMostEndsShown = 16;
/// Nodes that may have a newer state than the first that has answered.
constexpr Duration kOthersAnswer = std::chrono::seconds(1);
/// A node that is stopped, or far away, holds no answers up.
constexpr Duration kKeeperAnswers = std::chrono::milliseconds(250);

bool has_lived(const ActorRecord& record) {
  return record.process || record.incarnation > 1;
}

/// Nodes may have what its lives need. A first life's arguments come with its request, which starts it again.
bool wants_kept(const ActorRecord& record) {
  return has_lived(record) && record.state != ActorState::kEnding && record.state != ActorState::kDead;
}

}  // namespace

/// Those that outlive the driver. One that starts, and whose spawn nobody has an answer to, is the driver's
/// alone.
std::vector<ActorId> ClusterMachine::staying(const Job& job) const {
  std::vector<ActorId> all;
  for (const std::set<ActorId>* some : {&job.actors, &job.restarting}) {
    for (const ActorId id : *some) {
      const ActorRecord& record = actors_.at(id).record;
      if (record.spec.detached && record.state != ActorState::kEnding &&
          (has_lived(record) || job.record.parked))
        all.push_back(id);
    }
  }
  return all;
}

/// Whose program it is of: that of the detached actor which spawned it, where one did, or else the job's.
void ClusterMachine::name_program(ActorRecord& detached) const {
  const auto as = [&](const auto& of) {
    detached.started_by = of.started_by;
    detached.submission = of.submission;
  };
  const ProcessAddress by = detached.requester.from;
  if (const auto node = nodes_.find(by.node); node != nodes_.end()) {
    for (const ActorId id : node->second.actors) {
      const ActorRecord& record = actors_.at(id).record;
      if (record.spec.detached && record.process == by.process && record.spec.job == detached.spec.job)
        return as(record);
    }
  }
  as(jobs_.find(detached.spec.job)->record);
}

void ClusterMachine::log_detached(const ActorRecord& actor, const std::string& what) {
  if (!actor.spec.detached) return;
  const Job* job = jobs_.find(actor.spec.job);
  log_.push_back("detached actor " + name_of(actor) + " of job " +
                 (job == nullptr ? to_string(actor.spec.job) : job->record.name) + " " + what);
}

void ClusterMachine::detached_ended(const ActorRecord& actor, const std::string& why) {
  log_detached(actor, "has ended: " + why);
  const Job* job = jobs_.find(actor.spec.job);
  if (!actor.spec.detached || job == nullptr) return;
  detached_ends_.push_front({job->record.name, actor.spec.name, why});
  if (detached_ends_.size() > kMostDetachedEnds) detached_ends_.pop_back();
}

std::string ClusterMachine::how_ended(const std::string& job, const std::string& actor) const {
  const auto found = std::find_if(detached_ends_.begin(), detached_ends_.end(), [&](const DetachedEnd& end) {
    return end.job == job && end.actor == actor;
  });
  return found == detached_ends_.end() ? "" : found->why;
}

std::vector<std::string> ClusterMachine::detached_ends(const std::string& job) const {
  std::vector<std::string> ends;
  for (const DetachedEnd& end : detached_ends_) {
    if (end.job == job && ends.size() < kMostEndsShown) ends.push_back(end.actor + ": " + end.why);
  }
  return ends;
}

void ClusterMachine::take_over(Job& job, const JobRegistered& e) {
  TROUPE_ASSERT(job.record.parked, "a job has one driver");
  jobs_.take_over(job, e.driver, e.request);
  job.record.started_by = e.started_by;
  job.record.submission = e.submission;
  const JobRecord& record = job.record;
  persist(record);
  out_.push_back(JobAnswered{
      e.driver,
      e.request,
      record.job,
      record.incarnation,
      "incarnation " + std::to_string(record.incarnation) + ", with the detached actors of an earlier one",
      {}});
  for (const auto& [node, count] : job.actors_on) {
    if (is_live(node)) out_.push_back(JobTaken{node, record.job, e.driver});
  }
  change_queue(job);
}

/// Whether something needs that submission's record, its package or its folders on nodes: the job that it
/// drives, or did last, whose queue it says, and detached actors that its program spawned.
bool ClusterMachine::is_needed(const std::string& submission) const {
  const auto is_its = [&](const auto& job) {
    return job.second.runs() && job.second.record.submission == submission;
  };
  return actors_.has_detached_of(submission) || std::any_of(jobs_.all().begin(), jobs_.all().end(), is_its);
}

/// It may have missed that their drivers went or came: lines of theirs would wait for one that is gone.
void ClusterMachine::tell_drivers_of_detached(NodeId node) {
  std::set<JobId> told;
  for (const ActorId id : nodes_.at(node).actors) {
    const ActorSpec& spec = actors_.at(id).record.spec;
    if (!spec.detached || !told.insert(spec.job).second) continue;
    const Job* job = jobs_.find(spec.job);
    if (job == nullptr || !job->runs()) continue;
    if (job->record.parked) {
      out_.push_back(EndJob{node, spec.job, kJobIsOver, staying(*job)});
    } else {
      out_.push_back(JobTaken{node, spec.job, job->record.driver});
    }
  }
}

/// A parked job is there for its detached actors alone.
void ClusterMachine::end_if_deserted(JobId id) {
  Job* job = jobs_.find(id);
  if (job != nullptr && job->record.parked && staying(*job).empty())
    end_job(*job, "its last detached actor has ended", true);
}

/// Those of that name, or that the submission of that id left.
std::vector<JobId> ClusterMachine::parked_jobs_of(const std::string& name) const {
  std::vector<JobId> found;
  for (const auto& [id, job] : jobs_.all()) {
    if (job.record.parked && (job.record.name == name || job.record.submission == name)) found.push_back(id);
  }
  return found;
}

/// Why it may not start anything but detached actors now; nothing: it has a driver.
std::optional<ErrorInfo> ClusterMachine::no_driver(const Job& job, const std::string& what) const {
  if (!job.record.parked) return std::nullopt;
  return ErrorInfo{ErrorCode::kRefused, what,
                   "no program of job " + job.record.name + " runs, and what is not detached ends with that",
                   "start a program of that job name, or spawn it with .detached = true"};
}

bool ClusterMachine::has_its_arguments(const ActorRecord& record) const {
  return record.spec.is_kept() || is_live(record.requester.from.node);
}

bool ClusterMachine::has_keeper(const Actor& actor) const {
  return actor.keeper != actor.record.node && is_live(actor.keeper);
}

/// Its own node and another one keep what it needs for its next life, over the death of either and of the
/// head.
void ClusterMachine::keep_on_two_nodes() {
  std::set<ActorId> looked_at = std::exchange(want_keepers_, {});
  if (std::exchange(look_at_keepers_, false)) looked_at = actors_.all_kept();
  for (const ActorId id : looked_at) {
    if (!actors_.all_kept().contains(id)) continue;
    Actor& actor = actors_.at(id);
    const ActorRecord& record = actor.record;
    if (record.state != ActorState::kAlive || !actor.has_payload) continue;
    if (has_keeper(actor)) continue;
    for (const auto& [node, view] : index_.nodes()) {
      if (node == record.node || view.suspect) continue;
      actor.keeper = node;
      out_.push_back(KeepArguments{node, record.spec.job, id, record.spec.payload, record.node, actor.state});
      break;
    }
  }
}

/// Where the executable of an actor that is to start is, if not where its payload says.
NodeId ClusterMachine::package_from(const Actor& actor, const Job& job) const {
  const ActorRecord& record = actor.record;
  if (record.spec.is_kept() && record.incarnation > 1) {
    std::vector<NodeId> have;
    for (const NodeId node :
         {actor.was_at, actor.keeper, record.requester.from.node, job.record.driver.node}) {
      if (node != record.node && is_live(node) && std::find(have.begin(), have.end(), node) == have.end())
        have.push_back(node);
    }
    // One that could not give it is asked again after the others.
    if (!have.empty()) return have[static_cast<std::size_t>(actor.not_begun) % have.size()];
  }
  // Whoever spawned it runs it: the driver that its payload names may be gone.
  return record.requester.from == job.record.driver ? NodeId{} : record.requester.from.node;
}

/// The node that is started after one that was killed has its name, and has kept its executables.
void ClusterMachine::take_place_of_dead(NodeId node) {
  for (const ActorId id : actors_.all_kept()) {
    Actor& actor = actors_.at(id);
    if (actor.was_at && !is_live(actor.was_at) && actor.was_on == nodes_.at(node).info.name)
      actor.was_at = node;
  }
}

/// Of one whose arguments the head does not have: it has started again.
void ClusterMachine::ask_for_arguments(const Actor& actor, NodeId node) {
  if (!actor.has_payload && wants_kept(actor.record) && !waiting_.contains(actor.record.requester))
    out_.push_back(ArgumentsWanted{actor.record.requester, actor.record.actor, node});
}

void ClusterMachine::take_kept_arguments(Actor& actor, const ActorArguments& e) {
  if (!wants_kept(actor.record)) return;
  NodeId& died_on = actor.record.died_on;
  const bool lacks_state = actor.record.has_saved && e.state.version == 0;  // as the node of its spawner's
  if (!e.kept || lacks_state || state_too_large(e.actor, e.payload.size(), e.state)) {  // another may have it
    if (e.node != died_on) return;
    died_on = {};
    return want_arguments(actor);
  }
  // Of those that have them some have missed what it saved last: the node of its last life has not.
  const NodeId last = actor.record.state == ActorState::kAlive ? actor.record.node : died_on;
  const bool others_know_better =
      actor.record.state == ActorState::kStarting || (e.node != last && is_live(last));
  const bool is_newer = e.state.version > actor.state.version;
  if (others_know_better || (actor.has_payload && !is_newer)) return;
  const bool is_first = !actor.has_payload;
  if (is_first) actors_.set_payload(actor, e.payload);
  if (is_newer) actors_.set_state(actor, e.state);
  want_keepers_.insert(e.actor);
  if (actor.record.state != ActorState::kRestarting) return;
  if (!is_live(actor.was_at)) actor.was_at = e.node;  // it has the executable, too
  const auto answers =
      std::count_if(nodes_.begin(), nodes_.end(), [](const auto& node) { return node.second.registered; });
  if (actor.record.has_saved && is_first && e.node != last && answers > 1) {
    actor.restart_at = std::max(actor.restart_at, now_ + kOthersAnswer);
    actors_.set_deadline(actor, actor.restart_at);
  }
  if (now_ >= actor.restart_at) restart_when_due(actor);
}

/// Why that state is not kept; nothing: it is.
std::optional<ErrorInfo> ClusterMachine::state_refused(const Actor* actor, const StateSaved& e) const {
  const std::string what = "cannot keep the state of " + name_of(e.actor);
  const bool lives =
      actor != nullptr && actor->record.spec.is_kept() && actor->record.node == e.requester.from.node &&
      actor->record.incarnation == e.incarnation &&
      (actor->record.state == ActorState::kAlive || actor->record.state == ActorState::kStarting);
  if (!lives)
    return ErrorInfo{ErrorCode::kActorDied, what, "it has ended, or another life of it has begun", ""};
  if (auto too_large = state_too_large(e.actor, actor->record.spec.payload.size(), e.state)) return too_large;
  const std::size_t held = actors_.payload_bytes() - actor->state.bytes.size() + waiting_.payload_bytes() +
                           claims_.payload_bytes();
  if (held + e.state.bytes.size() <= config_.max_payload_bytes) return std::nullopt;
  return ErrorInfo{ErrorCode::kLimit, what,
                   "it has " + std::to_string(e.state.bytes.size()) + " bytes, and " +
                       std::to_string(held >> 20) + " of " + std::to_string(config_.max_payload_bytes >> 20) +
                       " MiB of the head hold what other actors are constructed with and have saved",
                   "let save() return less"};
}

void ClusterMachine::handle(const StateSaved& e) {
  if (!is_registered(e.requester.from.node)) return;
  Actor* actor = actors_.find(e.actor);
  const auto held = held_saves_.find(e.actor);
  if (const auto refused = state_refused(actor, e)) {
    out_.push_back(Acknowledged{e.requester, false, *refused});
  } else if (e.state.version <= actor->state.version) {
    if (held == held_saves_.end() || held->second.requester != e.requester)
      out_.push_back(Acknowledged{e.requester, true, {}});
  } else {
    if (held != held_saves_.end()) release(held);
    actors_.set_state(*actor, e.state);
    if (!std::exchange(actor->record.has_saved, true)) persist(actor->record);
    if (!has_keeper(*actor)) {
      lack_keepers_.insert(e.actor);
      return out_.push_back(Acknowledged{e.requester, true, {}});
    }
    // Callers may have been answered when head and node die, one before the other is back.
    out_.push_back(KeepState{actor->keeper, e.actor, e.state});
    held_saves_[e.actor] = {e.requester, e.state.version, now_ + kKeeperAnswers};
  }
}

void ClusterMachine::handle(const StateKept& e) {
  const auto held = held_saves_.find(e.actor);
  if (is_registered(e.node) && held != held_saves_.end() && held->second.version <= e.version) release(held);
}

ClusterMachine::HeldSaves::iterator ClusterMachine::release(HeldSaves::iterator held) {
  out_.push_back(Acknowledged{held->second.requester, true, {}});
  return held_saves_.erase(held);
}

}  // namespace troupe::cluster
