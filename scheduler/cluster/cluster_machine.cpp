#include "scheduler/cluster/cluster_machine.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"
#include "runtime/core/names.hpp"

namespace troupe::cluster {
namespace {

std::string key_of_record(const NodeRecord& r) {
  return "node/" + to_string(r.node.id);
}
std::string key_of_record(const JobRecord& r) {
  return "job/" + r.name;
}
std::string key_of_record(const ActorRecord& r) {
  return "actor/" + to_string(r.actor);
}
std::string key_of_record(const GroupRecord& r) {
  return "group/" + to_string(r.group);
}
std::string key_of_record(const QueueRecord& r) {
  return "queue/" + r.name;
}
std::string key_of_record(const SubmissionRecord& r) {
  return "submission/" + r.spec.id;
}

/// What helps where no node could ever hold a spawn.
std::string todo_of(const ActorDemand& demand, bool has_group, bool has_node) {
  if (demand.group && !has_group) return "make a placement group again, and spawn or submit in that one";
  if (demand.group) return "ask for less, or make a placement group whose bundles have it";
  if (demand.affinity && !has_node) return "name a live node (Session::nodes() lists them), or none";
  if (demand.affinity) return "ask for less, or name another node or none";
  return "ask for less, or add a node that has it";
}

ProcessAddress address_of(const ActorRecord& r) {
  return {r.node, r.process};
}

}  // namespace

std::string key_of(const Record& record) {
  return std::visit([](const auto& r) { return key_of_record(r); }, record);
}

ClusterMachine::ClusterMachine(ClusterConfig config, Random& ids)
    : config_(config),
      ids_(ids),
      membership_(config.membership),
      time_(2 * config.membership.heartbeat),
      leases_({config.lease_turn, config.turn_soon, config.turn_within}) {}

std::vector<ClusterAction> ClusterMachine::on(const ClusterEvent& event, Instant now) {
  now_ = time_.at(now);
  log_.clear();
  std::visit([&](const auto& e) { handle(e); }, event);
  return follow_up();
}

std::vector<ClusterAction> ClusterMachine::withdraw_submission(const std::string& id, Instant now) {
  now_ = time_.at(now);
  SubmissionRecord* submission = submissions_.find(id);
  if (submission == nullptr) return {};
  withdraw(*submission);
  return follow_up();
}

std::vector<ClusterAction> ClusterMachine::spawn_refused(const SpawnRequested& spawn, const ErrorInfo& why,
                                                         Instant now) {
  now_ = time_.at(now);
  const Group* group = groups_.find(spawn.spec.demand.group);
  const bool is_its = group != nullptr && group->record.spec.job == spawn.spec.job &&
                      holds_job(spawn.requester.from.node, spawn.spec.job);
  if (is_its) end_start(spawn.spec, "an actor that was to start with it was refused: " + why.why, why.code);
  return follow_up();
}

/// What has become possible by an event.
std::vector<ClusterAction> ClusterMachine::follow_up() {
  look_at_queue_ = look_at_queue_ || !freed_.empty();
  if (!turns_.empty()) take_turns();
  if (std::exchange(look_at_groups_, false) || !freed_.empty()) place_groups();
  for (const NodeId node : std::exchange(freed_, {})) {
    fill_bundles(node);
    fill(node);
  }
  start_parked();
  start_submissions();  // after actors: jobs that run go before jobs that wait
  keep_on_two_nodes();
  trim();
  return std::exchange(out_, {});
}

bool ClusterMachine::has_request(const Requester& requester) const {
  return actors_.of_request(requester) != nullptr || waiting_.contains(requester) ||
         claims_.contains(requester);
}

bool ClusterMachine::is_registered(NodeId node) const {
  const auto at = nodes_.find(node);
  return at != nodes_.end() && at->second.registered;
}

bool ClusterMachine::is_live(NodeId node) const {
  return nodes_.contains(node) && !dead_nodes_.contains(node);
}

std::vector<ClusterAction> ClusterMachine::ask_all_to_register(const std::string& reason) const {
  std::vector<ClusterAction> asked;
  for (const auto& [id, node] : nodes_) asked.push_back(RequestRegistration{id, reason});
  return asked;
}

/// Constructor arguments may hold a secret, such as a job's key: they are never stored.
void ClusterMachine::persist(Record record) {
  if (auto* actor = std::get_if<ActorRecord>(&record)) actor->spec.payload.clear();
  std::string key = key_of(record);
  out_.push_back(Persist{std::move(key), std::move(record)});
}

// Time.

void ClusterMachine::handle(const Tick&) {
  want_keepers_.merge(std::exchange(lack_keepers_, {}));
  for (auto held = held_saves_.begin(); held != held_saves_.end();)
    held = held->second.until <= now_ ? release(held) : std::next(held);
  for (const NodeId node : std::set(draining_)) move_next(node);
  for (const LivenessChange& change : membership_.tick(now_)) {
    if (change.to == Liveness::kDead) {
      node_gone(change.node, change.reason);
    } else {
      refresh(change.node);
    }
  }
  while (const auto id = actors_.pop_due(now_)) {
    Actor& actor = actors_.at(*id);
    if (actor.record.state == ActorState::kStarting) {
      start_is_due(actor);
    } else if (actor.record.state == ActorState::kRestarting) {
      restart_when_due(actor);
    } else {
      TROUPE_ASSERT(actor.record.state == ActorState::kEnding, "only what starts or ends is due");
      actors_.set_deadline(actor, now_ + config_.end_again);
      kill(actor.record.node, *id, actor.record.incarnation, actor.reason);
    }
  }
  forget_losses();
  end_late_starts();
  tell_members_again();
  tell_spawns_again();
  release_idle_bundles();
  search_again();
  give_turns();
  while (submissions_.pop_due(now_)) look_at_queue_ = true;
}

/// What waited for a node like one that has died, or has drained, is refused when none has come in time.
void ClusterMachine::forget_losses() {
  if (std::erase_if(losses_, [&](const Loss& loss) { return loss.until <= now_; }) == 0) return;
  if (index_.nodes().empty()) return;
  std::vector<Requester> hopeless;
  for (const auto& [number, spawn] : waiting_.all()) {
    const ActorDemand& demand = spawn.spec.demand;
    if (!demand.affinity && !demand.group && !index_.has_room_for(demand) && !may_come_back(demand))
      hopeless.push_back(spawn.requester);
  }
  for (const Requester& requester : hopeless) settle(*waiting_.take(requester));
  end_hopeless_starts();
}

void ClusterMachine::trim() {
  actors_.trim(now_, config_.max_dead_actors);
  while (forget_nodes_.size() > 0) {
    const auto id = forget_nodes_.size() > config_.max_dead_nodes ? forget_nodes_.pop_first()
                                                                  : forget_nodes_.pop_due(now_);
    if (!id) break;
    membership_.forget(*id);
    dead_nodes_.erase(*id);
    out_.push_back(Erase{"node/" + to_string(*id)});
  }
  const std::uint32_t floor = jobs_.floor();
  while (const auto forgotten = jobs_.trim(now_, config_.max_ended_jobs))
    out_.push_back(Erase{key_of(*forgotten)});
  // No job has an empty name: this record keeps incarnations from being given twice.
  if (jobs_.floor() > floor) persist(JobRecord{"", jobs_.floor(), {}, {}, 0, true});
  trim_submissions();
}

// Actors.

void ClusterMachine::answer(SpawnAnswered answered) {
  if (is_live(answered.to.from.node)) out_.push_back(std::move(answered));
}

void ClusterMachine::kill(NodeId node, ActorId actor, std::uint32_t incarnation, const std::string& reason) {
  out_.push_back(KillActor{node, actor, reason, incarnation});
}

void ClusterMachine::refuse(const PendingSpawn& spawn, ErrorInfo error) {
  if (spawn.restarts) return end_restart(actors_.at(spawn.restarts), error);
  free_name(spawn.spec);
  const std::string why = error.why;
  answer(SpawnAnswered{spawn.requester, false, {}, {}, std::move(error), why});
}

/// Ends a wait of which nobody needs to hear.
void ClusterMachine::drop(const Requester& waiting) {
  const auto spawn = waiting_.take(waiting);
  if (!spawn) return;  // it was to start with one that was dropped before
  if (!spawn->restarts) {
    free_name(spawn->spec);
    end_start(spawn->spec, "an actor that was to start with it is not wanted any more");
    return;
  }
  end_restart(actors_.at(spawn->restarts), {ErrorCode::kActorDied,
                                            name_of(actors_.at(spawn->restarts).record) + " died",
                                            "nobody waits for it any more",
                                            {}});
}

void ClusterMachine::handle(const SpawnRequested& e) {
  if (!is_registered(e.requester.from.node)) return;
  if (waiting_.contains(e.requester) || claims_.contains(e.requester)) return;
  if (Actor* known = actors_.of_request(e.requester))
    return answer_again(e.requester, *known, e.spec.payload);
  // The group that its request names is gone since its actors started, of which this is one.
  if (lost_starts_.erase(e.requester) == 1 && e.spec.demand.group) {
    SpawnRequested alone = e;
    alone.spec.demand.group = {};
    alone.spec.demand.bundle = -1;
    return handle(alone);
  }

  const auto no = [&](ErrorInfo error) {
    const std::string why = error.why;
    answer(SpawnAnswered{e.requester, false, {}, {}, std::move(error), why});
  };
  if (auto wrong = check_spec(e.spec)) return no(*std::move(wrong));
  const std::string what = "cannot spawn " + e.spec.type;
  if (auto wrong = check_name(e.spec.name, what)) return no(*std::move(wrong));
  Job* job = jobs_.find(e.spec.job);
  if (job == nullptr || !job->runs() || job->was_driven_by(e.requester.from)) {
    return no({ErrorCode::kRefused, what, kJobIsOver, "give each program that runs a job name of its own"});
  }
  if (!holds_job(e.requester.from.node, e.spec.job)) {
    return no({ErrorCode::kRefused, what, "its node holds no process of that job",
               "a process starts actors of its own job alone"});
  }
  if (e.spec.detached && config_.ends_with_program) {
    return no({ErrorCode::kRefused, what + " detached",
               "the program brought its cluster itself, which ends with it: nothing would outlive it",
               "start a cluster (troupe start --head), and the program with --address"});
  }
  if (auto parked = no_driver(*job, what); parked && !e.spec.detached) return no(*std::move(parked));
  if (auto wrong = group_of_wrong(e.spec)) return no(*std::move(wrong));
  if (!e.spec.name.empty() && job->names.contains(e.spec.name)) return want_taken_name(e, *job);
  const std::size_t payload_bytes =
      actors_.payload_bytes() + waiting_.payload_bytes() + claims_.payload_bytes();
  if (waiting_.size() >= config_.max_waiting ||
      payload_bytes + e.spec.payload.size() > config_.max_payload_bytes) {
    end_start(e.spec, "an actor that was to start with it was refused", ErrorCode::kLimit);
    return no({ErrorCode::kLimit, what,
               "too many spawns wait: " + std::to_string(waiting_.size()) +
                   ", and those that wait or start hold " + std::to_string(payload_bytes >> 20) +
                   " MiB of arguments",
               "try again when some have started"});
  }
  if (!e.spec.name.empty()) job->names[e.spec.name] = e.requester;
  settle({e.requester, e.spec, 0});
}

void ClusterMachine::answer_again(const Requester& requester, Actor& actor, const std::string& payload) {
  const ActorRecord& record = actor.record;
  switch (record.state) {
    case ActorState::kAlive:
      return answer(SpawnAnswered{requester, true, record.actor, address_of(record), {}, "asked again"});
    case ActorState::kDead:
      return answer(SpawnAnswered{requester,
                                  false,
                                  record.actor,
                                  {},
                                  {ErrorCode::kActorDied, "the actor has ended", actor.reason, {}},
                                  "asked again"});
    case ActorState::kEnding:
      return;  // answered when it is gone
    case ActorState::kRestarting:
      return;  // answered when it is up
    case ActorState::kStarting:
      break;
  }
  if (actor.has_payload || payload.size() > kMaxPayloadBytes) return;
  const bool is_registered_there = is_registered(record.node);
  if (is_registered_there && record.incarnation > 1) return;  // its node is asked whether that life began
  actors_.set_payload(actor, payload);
  // A node that has heard of it ignores this; one that is still to register is told then.
  if (is_registered_there) {
    out_.push_back(start_of(actor, "its node may not have heard before the head restarted"));
  }
}

/// Starts the spawn, has it wait, or refuses it.
void ClusterMachine::settle(PendingSpawn spawn) {
  const Placement placement = place(spawn.spec.demand);
  spawn.stopped_by = placement.verdict == PlacementVerdict::kNever ? 0 : queue_that_stops(spawn.spec);
  if (spawn.stopped_by != 0) return wait(std::move(spawn));
  if (placement.verdict == PlacementVerdict::kPlaced && spawn.restarts)
    return start_again(std::move(spawn), placement);
  if (placement.verdict == PlacementVerdict::kPlaced) return start(std::move(spawn), placement);
  if (placement.verdict == PlacementVerdict::kWait || may_come_back(spawn.spec.demand))
    return wait(std::move(spawn));
  const ActorDemand& demand = spawn.spec.demand;
  refuse(spawn,
         {ErrorCode::kRefused, "cannot place " + spawn.spec.type, placement.reason,
          todo_of(demand, groups_.find(demand.group) != nullptr, index_.nodes().contains(demand.affinity))});
}

void ClusterMachine::start(PendingSpawn spawn, const Placement& placement) {
  const ActorId id = placed_actor_id(ids_.next(), spawn.spec.is_restartable());
  ActorRecord record{id, std::move(spawn.spec), spawn.requester, placement.node};
  record.gpus = placement.gpus;
  record.bundle = placement.bundle;
  if (record.spec.detached) name_program(record);
  const Actor& actor = actors_.add({std::move(record), true, spawn.attempts, placement.reason});
  actors_.at(id).started_at = now_;
  actors_.set_deadline(actors_.at(id), now_ + std::min(config_.slow_start, config_.start_deadline));
  hold(actor);
  persist(actor.record);
  out_.push_back(start_of(actor, placement.reason));
}

StartActor ClusterMachine::start_of(const Actor& actor, std::string reason) const {
  const ActorRecord& record = actor.record;
  StartActor start{record.node, record.actor, record.spec, std::move(reason), {}, record.incarnation};
  if (const Job* job = jobs_.find(record.spec.job)) {
    start.driver = job->record.driver;
    start.package_from = package_from(actor, *job);
  }
  start.state = actor.state;
  const std::vector<std::string>& names = nodes_.at(record.node).info.gpus;
  for (const std::uint32_t gpu : record.gpus) {
    if (gpu < names.size()) start.gpus.push_back(names[gpu]);  // else its node came back with fewer
  }
  return start;
}

/// Its process is told, and may ask for others meanwhile.
void ClusterMachine::wait(PendingSpawn spawn) {
  const Requester to = spawn.requester;
  const ActorId restarts = spawn.restarts;
  Group* group = groups_.find(spawn.spec.demand.group);
  spawn.since = now_;
  if (group != nullptr && group->record.spec.start_only) return wait_together(std::move(spawn), *group);
  const std::string why = restarts ? "" : why_waits_briefly(spawn);
  spawn.told_at = now_;
  spawn.told = std::hash<std::string>()(why);
  if (is_live(to.from.node) && !restarts) out_.push_back(SpawnWaits{to, why});
  waiting_.add(std::move(spawn));
  if (restarts) tell_watchers(actors_.at(restarts));  // its calls wait, too
}

/// What stood in the way may be gone, and others there: some hear of it at each tick.
void ClusterMachine::tell_spawns_again() {
  constexpr std::size_t kToldAtTick = 8;  // a reason may look at all nodes
  auto at = waiting_.all().lower_bound(next_told_);
  for (std::size_t looks = 0; at != waiting_.all().end() && looks < kToldAtTick; ++at, ++looks) {
    const PendingSpawn& spawn = at->second;
    const Group* group = groups_.find(spawn.spec.demand.group);
    const bool is_member = group != nullptr && group->record.spec.start_only;  // tell_members_again()
    if (is_member || spawn.restarts || now_ - spawn.told_at < config_.tell_again) continue;
    const std::string why = why_waits_briefly(spawn);
    const std::size_t hash = std::hash<std::string>()(why);
    if (hash != spawn.told && is_live(spawn.requester.from.node))
      out_.push_back(SpawnWaits{spawn.requester, why});
    waiting_.set_told(spawn.requester, now_, hash);
  }
  next_told_ = at == waiting_.all().end() ? 0 : at->first;
}

/// Gives the room that a node has to those that wait for it.
void ClusterMachine::fill(NodeId node) {
  const auto fits = [&](const ActorDemand& demand) { return index_.fits(node, demand); };
  for (;;) {
    const PendingSpawn* first =
        waiting_.first_fit({{}, node}, index_.free_of(node), fits, index_.has_free_gpus(node));
    if (first == nullptr) return;
    const Requester requester = first->requester;
    settle(*waiting_.take(requester));
    const bool is_placed = actors_.of_request(requester) != nullptr;
    TROUPE_ASSERT(is_placed || waiting_.at(requester).stopped_by != 0, "what fits a node is placed");
  }
}

/// The node died or leaves that was to start it.
void ClusterMachine::place_again(ActorId id, int attempts) {
  release(actors_.at(id));
  Actor actor = actors_.take(id);
  const JobId job = actor.record.spec.job;
  out_.push_back(Erase{key_of(actor.record)});
  if (actor.has_payload) {
    settle({actor.record.requester, std::move(actor.record.spec), attempts});
  } else {  // it starts anew when its request is repeated
    free_name(actor.record.spec);
    if (!actor.record.spec.demand.group) lost_starts_.insert(actor.record.requester);
  }
  end_if_deserted(job);
}

/// Whoever spawned it hears that it takes long, once; then it is given up.
void ClusterMachine::start_is_due(Actor& actor) {
  const Instant slow = actor.started_at + std::min(config_.slow_start, config_.start_deadline);
  if (now_ < slow) return actors_.set_deadline(actor, slow);
  const Instant until = actor.started_at + config_.start_deadline;
  if (now_ < until) {
    actors_.set_deadline(actor, until);
    const Requester& to = actor.record.requester;
    if (actor.record.incarnation > 1) return tell_watchers(actor);
    if (is_live(to.from.node)) out_.push_back(SpawnWaits{to, why(actor)});
    return;
  }
  actor.is_hung = true;
  end_actor(actor, not_started(actor, config_.start_deadline));
}

void ClusterMachine::handle(const SpawnCancelled& e) {
  claims_.take_if([&](const SpawnRequested& spawn) { return spawn.requester == e.requester; });
  lost_starts_.erase(e.requester);
  for (const auto& [number, id] : groups_.waiting()) groups_.at(id).awaiting.erase(e.requester);
  if (Group* group = groups_.of_request(e.requester))
    return remove_group(*group, "its requester cancelled it");
  if (waiting_.contains(e.requester)) return drop(e.requester);
  if (Actor* actor = actors_.of_request(e.requester)) end_actor(*actor, "its requester cancelled it");
}

void ClusterMachine::handle(const ActorStarted& e) {
  if (!is_registered(e.node)) return;
  Actor* actor = actors_.find(e.actor);
  if (actor == nullptr || actor->record.node != e.node || actor->record.state == ActorState::kDead ||
      actor->record.incarnation != e.incarnation) {
    kill(e.node, e.actor, e.incarnation, "the head does not know it as living there");
  } else if (actor->record.state == ActorState::kEnding) {
    kill(e.node, e.actor, e.incarnation, actor->reason);
  } else if (actor->record.state == ActorState::kStarting) {
    actor_alive(*actor, e.process);
  }
}

void ClusterMachine::actor_alive(Actor& actor, ProcessId process) {
  actors_.alive(actor, process);
  actor.not_begun = 0;
  if (actor.record.spec.is_kept()) want_keepers_.insert(actor.record.actor);
  actor.up_at = now_;
  note_lease(actor);
  persist(actor.record);
  tell_watchers(actor);
  const NodeId node = actor.record.node;
  if (nodes_.at(node).drain) tell_leaves(actor, nodes_.at(node).drain->reason, false);
  answer(SpawnAnswered{
      actor.record.requester, true, actor.record.actor, address_of(actor.record), {}, actor.reason});
}

void ClusterMachine::handle(const ActorFailed& e) {
  Actor* actor = actors_.find(e.actor);
  if (actor == nullptr || actor->record.node != e.node || actor->record.incarnation != e.incarnation) return;
  ErrorInfo why = clipped(e.error);
  if (why.what.empty()) why.what = name_of(actor->record) + " died";
  if (e.not_begun && starts_later(*actor, why)) return;
  // A constructor that throws would throw again.
  actor_gone(*actor, why, e.error.code == ErrorCode::kActorDied);
}

void ClusterMachine::handle(const ActorDown& e) {
  Actor* actor = actors_.find(e.actor);
  if (actor == nullptr || actor->record.node != e.node || actor->record.incarnation != e.incarnation) return;
  actor_gone(*actor, {ErrorCode::kActorDied, name_of(actor->record) + " died", clipped(e.reason), {}},
             !e.on_purpose);
}

void ClusterMachine::handle(const KillRequested& e) {
  Actor* actor = actors_.find(e.actor);
  const bool is_over = actor == nullptr || actor->record.state == ActorState::kDead ||
                       actor->record.state == ActorState::kEnding;
  const bool is_its = is_over || (actor->record.spec.job == e.job && holds_job(e.node, e.job));
  if (is_its && !is_over) end_actor(*actor, clipped(e.reason));
  if (e.request == 0 || !is_registered(e.node)) return;
  ErrorInfo refused;
  if (!is_its)
    refused = {ErrorCode::kRefused, "cannot kill " + name_of(e.actor),
               "it is of another job, or this one's program has been replaced",
               "let a program of its job kill it, or troupe actor kill"};
  out_.push_back(Acknowledged{{{e.node, e.process}, e.request}, is_its, std::move(refused)});
}

/// Has its node kill it. It keeps its CPUs until the node says that it is gone.
void ClusterMachine::end_actor(Actor& actor, const std::string& reason) {
  if (actor.record.state == ActorState::kDead || actor.record.state == ActorState::kEnding) return;
  if (actor.record.state == ActorState::kRestarting) {
    return end_restart(actor, {ErrorCode::kActorDied, name_of(actor.record) + " died", clipped(reason), {}});
  }
  actors_.ending(actor, reason, now_ + config_.end_again);
  if (!actor.wanted_at) actor.wanted_at = now_;
  note_lease(actor);
  persist(actor.record);
  kill(actor.record.node, actor.record.actor, actor.record.incarnation, reason);
}

/// It is on its node no more. `may_restart`: it is no end that somebody wanted.
void ClusterMachine::actor_gone(Actor& actor, const ErrorInfo& why, bool may_restart) {
  const ActorState state = actor.record.state;
  if (state == ActorState::kDead || state == ActorState::kRestarting) return;
  release(actor);
  const bool moves = std::exchange(actor.moves, false) && state == ActorState::kAlive &&
                     jobs_.runs(actor.record.spec.job) && has_its_arguments(actor.record);
  if (moves) return begin_restart(actor, why.why, true);
  if (may_restart && state != ActorState::kEnding && has_another_life(actor))
    return begin_restart(actor, why.why.empty() ? why.message() : why.why);
  const int lives = actor.record.spec.max_restarts;
  if (!may_restart || state == ActorState::kEnding || lives <= 0 || actor.record.restarts < lives)
    return actor_dead(actor, why);
  const std::string used_up = "it was started again " + count_of(static_cast<std::uint64_t>(lives), "time") +
                              ", as max_restarts says";
  actor_dead(actor, {why.code, why.what, why.why.empty() ? used_up : why.why + "; " + used_up, why.todo});
}

void ClusterMachine::actor_dead(Actor& actor, const ErrorInfo& why) {
  const ActorRecord& record = actor.record;
  free_name(record.spec);
  if (record.state != ActorState::kEnding) actor.reason = why.message();
  detached_ended(record, actor.reason);
  actors_.dead(actor, now_ + config_.keep_dead_actors);
  out_.push_back(Erase{key_of(record)});
  if (!record.process) {
    // Told from a death: trying it again would take as long.
    const ErrorInfo hung{ErrorCode::kTimeout, "cannot start " + record.spec.type, actor.reason,
                         "look at what its constructor waits for"};
    answer(
        SpawnAnswered{record.requester, false, record.actor, {}, actor.is_hung ? hung : why, actor.reason});
  }
  tell_watchers(actor);
  // Its name is free: the first who wanted it gets it.
  for (const SpawnRequested& claim : claims_.take_where(record.actor)) handle(claim);
  end_if_deserted(record.spec.job);
}

}  // namespace troupe::cluster
