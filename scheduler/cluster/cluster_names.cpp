// Names of actors: who has one, who is found by it, and when it is refused.
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {
namespace {

/// Spawns that wait for the answer about a name's holder; further ones are refused at once.
constexpr std::size_t kMostClaims = 1000;

}  // namespace

void ClusterMachine::free_name(const ActorSpec& spec) {
  if (Job* job = jobs_.find(spec.job); job != nullptr && !spec.name.empty()) job->names.erase(spec.name);
}

/// Whoever wants it may have heard of its holder's end before the head. So the holder's process is asked, and
/// the name is refused only if the holder lives after it was wanted.
void ClusterMachine::want_taken_name(const SpawnRequested& e, const Job& job) {
  const Actor* holder = actors_.of_request(job.names.at(e.spec.name));
  // One that ends need not have been up: the next driver of a parked job uses its names again.
  const bool may_end =
      holder != nullptr && (holder->record.process || holder->record.state == ActorState::kEnding);
  if (!may_end || claims_.size() >= kMostClaims) return refuse_taken_name(e);
  const NodeId node = holder->record.node;
  const std::uint32_t incarnation = holder->record.incarnation;
  const std::uint64_t question = claims_.add(e, node, holder->record.actor, incarnation);
  if (is_registered(node)) out_.push_back(ConfirmActor{node, holder->record.actor, question, incarnation});
}

void ClusterMachine::refuse_taken_name(const SpawnRequested& e) {
  end_start(e.spec, "an actor that was to start with it has a name that is taken");
  const std::string why = "the name " + e.spec.name + std::string(kNameIsTaken);
  answer(SpawnAnswered{
      e.requester,
      false,
      {},
      {},
      {ErrorCode::kRefused, "cannot spawn " + e.spec.type, why, "choose another name, or look the actor up"},
      why});
}

void ClusterMachine::handle(const ActorLives& e) {
  const Actor* actor = actors_.find(e.actor);
  if (actor == nullptr || actor->record.node != e.node) return;
  for (const SpawnRequested& refused : claims_.take_where(e.actor, e.question)) refuse_taken_name(refused);
}

void ClusterMachine::handle(const LookupActor& e) {
  if (!is_registered(e.requester.from.node)) return;
  const Job* job = jobs_.find(e.job);
  const auto no = [&](std::string what, std::string todo) {
    out_.push_back(NameAnswered{
        e.requester, false, {}, {}, {ErrorCode::kUnavailable, std::move(what), {}, std::move(todo)}});
  };
  const auto named =
      job == nullptr ? std::map<std::string, Requester>::const_iterator{} : job->names.find(e.name);
  if (job == nullptr || named == job->names.end()) {
    const std::string how = job == nullptr ? "" : how_ended(job->record.name, e.name);
    return no("no actor of this job is named '" + clipped(e.name) + "'" +
                  (how.empty() ? "" : ", and the last one that was has ended: " + how),
              "spawn one with that name, or ask again");
  }
  const Actor* known = actors_.of_request(named->second);
  if (known == nullptr) return no("actor " + e.name + " waits for resources", "ask again");
  const ActorRecord& record = known->record;
  // Who calls it looks its place up.
  const bool restarts = record.state == ActorState::kRestarting ||
                        (record.state == ActorState::kStarting && record.incarnation > 1);
  if (record.state != ActorState::kAlive && !restarts)
    return no("actor " + e.name + " is not up", "ask again");
  out_.push_back(NameAnswered{e.requester, true, record.actor, {record.node, record.process}, {}});
}

}  // namespace troupe::cluster
