#include "scheduler/cluster/actor_table.hpp"

#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::cluster {
namespace {

std::size_t bytes_of(const Actor& actor) {
  return actor.record.spec.payload.size() + actor.state.bytes.size();
}

}  // namespace

Actor& ActorTable::add(Actor actor) {
  const ActorId id = actor.record.actor;
  const bool is_new = requests_.emplace(actor.record.requester, id).second;
  TROUPE_ASSERT(is_new && !actors_.contains(id), "a request leads to one actor");
  payload_bytes_ += bytes_of(actor);
  if (actor.record.state == ActorState::kRestarting) restarting_.insert(id);
  if (actor.record.spec.detached) {
    detached_[actor.record.started_by].insert(id);
    ++detached_of_[actor.record.submission];
  }
  if (actor.record.spec.is_kept()) all_kept_.insert(id);
  return actors_.emplace(id, std::move(actor)).first->second;
}

Actor* ActorTable::find(ActorId id) {
  const auto at = actors_.find(id);
  return at == actors_.end() ? nullptr : &at->second;
}

Actor* ActorTable::of_request(const Requester& requester) {
  const auto at = requests_.find(requester);
  return at == requests_.end() ? nullptr : &actors_.at(at->second);
}

const Actor* ActorTable::of_request(const Requester& requester) const {
  const auto at = requests_.find(requester);
  return at == requests_.end() ? nullptr : &actors_.at(at->second);
}

std::vector<ActorId> ActorTable::asked_by(NodeId node) const {
  std::vector<ActorId> found;
  for (auto at = requests_.lower_bound(Requester{{node, {}}, 0});
       at != requests_.end() && at->first.from.node == node; ++at)
    found.push_back(at->second);
  return found;
}

void ActorTable::set_payload(Actor& actor, std::string payload) {
  const ActorState state = actor.record.state;
  const bool needs_it = state == ActorState::kStarting || state == ActorState::kRestarting ||
                        (state == ActorState::kAlive && actor.record.spec.is_kept());
  TROUPE_ASSERT(needs_it && !actor.has_payload, "it comes back once");
  payload_bytes_ += payload.size();
  actor.record.spec.payload = std::move(payload);
  actor.has_payload = true;
}

void ActorTable::set_state(Actor& actor, SavedState state) {
  TROUPE_ASSERT(actor.record.spec.is_kept() && actor.record.state != ActorState::kEnding &&
                    actor.record.state != ActorState::kDead,
                "what ends needs no state");
  payload_bytes_ -= actor.state.bytes.size();
  actor.state = std::move(state);
  payload_bytes_ += actor.state.bytes.size();
}

std::string ActorTable::take_payload(Actor& actor) {
  payload_bytes_ -= actor.record.spec.payload.size();
  actor.has_payload = false;
  return std::exchange(actor.record.spec.payload, {});
}

void ActorTable::drop_payload(Actor& actor) {
  payload_bytes_ -= bytes_of(actor);
  actor.record.spec.payload = {};
  actor.has_payload = false;
  actor.state = {};
}

void ActorTable::alive(Actor& actor, ProcessId process) {
  TROUPE_ASSERT(actor.record.state == ActorState::kStarting, "an actor comes up once");
  if (!actor.record.spec.is_kept()) drop_payload(actor);
  actor.record.state = ActorState::kAlive;
  actor.record.process = process;
  due_.erase(actor.record.actor);
}

void ActorTable::restarting(Actor& actor, std::string reason, Instant at) {
  TROUPE_ASSERT(actor.record.state != ActorState::kDead, "the dead stay dead");
  if (!actor.record.spec.is_kept()) drop_payload(actor);
  actor.reason = std::move(reason);
  ActorRecord& record = actor.record;
  record.state = ActorState::kRestarting;
  record.node = {};
  record.process = {};
  record.gpus.clear();
  record.bundle = -1;
  ++record.incarnation;
  actor.restart_at = at;
  restarting_.insert(record.actor);
  due_.set(record.actor, at);
}

void ActorTable::starting(Actor& actor, std::string payload, Instant deadline) {
  TROUPE_ASSERT(actor.record.state == ActorState::kRestarting, "only another life starts so");
  restarting_.erase(actor.record.actor);
  actor.record.state = ActorState::kStarting;
  set_payload(actor, std::move(payload));
  set_deadline(actor, deadline);
}

void ActorTable::ending(Actor& actor, std::string reason, Instant deadline) {
  TROUPE_ASSERT(actor.record.state != ActorState::kDead && actor.record.state != ActorState::kRestarting,
                "what is on no node does not end there");
  drop_payload(actor);
  actor.record.state = ActorState::kEnding;
  actor.record.ends_for = reason;
  actor.reason = std::move(reason);
  set_deadline(actor, deadline);
}

void ActorTable::dead(Actor& actor, Instant forget_at) {
  TROUPE_ASSERT(actor.record.state != ActorState::kDead, "an actor dies once");
  drop_payload(actor);
  due_.erase(actor.record.actor);
  restarting_.erase(actor.record.actor);
  forget_detached(actor.record);
  all_kept_.erase(actor.record.actor);
  actor.record.state = ActorState::kDead;
  dead_.set(actor.record.actor, forget_at);
}

Actor ActorTable::take(ActorId id) {
  Actor actor = std::move(actors_.extract(id).mapped());
  payload_bytes_ -= bytes_of(actor);
  requests_.erase(actor.record.requester);
  due_.erase(id);
  dead_.erase(id);
  restarting_.erase(id);
  forget_detached(actor.record);
  all_kept_.erase(id);
  return actor;
}

void ActorTable::forget_detached(const ActorRecord& record) {
  const auto some = detached_.find(record.started_by);
  if (some == detached_.end() || some->second.erase(record.actor) == 0) return;
  if (some->second.empty()) detached_.erase(some);
  const auto of = detached_of_.find(record.submission);
  if (--of->second == 0) detached_of_.erase(of);
}

void ActorTable::trim(Instant now, std::size_t most) {
  for (;;) {
    const auto id = dead_.size() > most ? dead_.pop_first() : dead_.pop_due(now);
    if (!id) return;
    const Actor forgotten = take(*id);
    TROUPE_ASSERT(forgotten.record.state == ActorState::kDead, "only the dead are forgotten");
  }
}

void ActorTable::check() const {
  std::size_t bytes = 0;
  for (const auto& [id, actor] : actors_) {
    const ActorState state = actor.record.state;
    const bool has_deadline = state == ActorState::kStarting || state == ActorState::kEnding;
    bytes += bytes_of(actor);
    TROUPE_ASSERT(requests_.contains(actor.record.requester), "an actor came from a request");
    TROUPE_ASSERT(requests_.at(actor.record.requester) == id, "a request leads to its actor");
    TROUPE_ASSERT(due_.contains(id) == has_deadline || state == ActorState::kRestarting,
                  "what starts or ends has a deadline");
    TROUPE_ASSERT(restarting_.contains(id) == (state == ActorState::kRestarting), "who restarts is known");
    TROUPE_ASSERT(state == ActorState::kDead || bool(actor.record.node) != (state == ActorState::kRestarting),
                  "who restarts is on no node");
    TROUPE_ASSERT(dead_.contains(id) == (state == ActorState::kDead), "the dead are forgotten");
    const bool is_kept = actor.record.spec.is_kept() && state != ActorState::kDead;
    TROUPE_ASSERT(all_kept_.contains(id) == is_kept, "kept ones are known");
    const auto some = detached_.find(actor.record.started_by);
    const bool is_detached = some != detached_.end() && some->second.contains(id);
    TROUPE_ASSERT(is_detached == (actor.record.spec.detached && state != ActorState::kDead),
                  "detached ones are known");
    TROUPE_ASSERT(!is_detached || has_detached_of(actor.record.submission), "their programs are known");
    TROUPE_ASSERT((is_kept && state != ActorState::kEnding) || actor.state.bytes.empty(),
                  "a state goes with the last life");
    TROUPE_ASSERT(state == ActorState::kStarting || state == ActorState::kRestarting ||
                      (is_kept && state == ActorState::kAlive) || actor.record.spec.payload.empty(),
                  "a payload goes when its actor is up");
  }
  TROUPE_ASSERT(requests_.size() == actors_.size(), "a request leads to one actor");
  TROUPE_ASSERT(bytes == payload_bytes_, "payloads are counted");
}

}  // namespace troupe::cluster
