/// The shell of the head: what scheduler/head/head.cpp is in production, over simulated lines and a simulated
/// disk.
#include "runtime/wire/codec.hpp"
#include "scheduler/head/addressing.hpp"
#include "scheduler/store/records.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

namespace {

const char* label_of(const cluster::ClusterAction& action) {
  if (std::holds_alternative<cluster::StartActor>(action)) return "start actor";
  if (std::holds_alternative<cluster::KillActor>(action)) return "kill actor";
  if (std::holds_alternative<cluster::SpawnAnswered>(action)) return "spawn answered";
  if (std::holds_alternative<cluster::JobAnswered>(action)) return "job answered";
  if (std::holds_alternative<cluster::NodeDead>(action)) return "node dead";
  if (std::holds_alternative<cluster::EndJob>(action)) return "end job";
  if (std::holds_alternative<cluster::RefuseNode>(action)) return "refused";
  if (std::holds_alternative<cluster::RequestRegistration>(action)) return "register again";
  if (std::holds_alternative<cluster::NodeAccepted>(action)) return "accepted";
  return "from head";
}

}  // namespace

bool Disk::apply(const StoreBatch& batch) {
  if (!storage.apply(batch).ok()) return false;
  for (const auto& change : batch.changes()) written.insert(change.key);
  return true;
}

Head::Head(Cluster& in) : Process("head", 0), cluster(in), machine({}, in.ids) {}

void Head::start() {
  std::vector<cluster::Record> records;
  const auto entries = cluster.disk.storage.scan("");
  for (const auto& entry : *entries) {
    auto record = decode_record(entry.value);
    if (!record)
      return cluster.world.violation("the head cannot read its store: " + record.error().message());
    records.push_back(*std::move(record));
  }
  carry_out(machine.restore(std::move(records), cluster.now_at(*this)));
  cluster.world.every(*this, milliseconds(250), "~head tick",
                      [this] { carry_out(machine.tick(cluster.now_at(*this))); });
}

bool Head::accept(const LinePtr& line) {
  LinePtr& known = lines_[line->from];
  if (known) known->server_open = false;
  known = line;
  return true;
}

void Head::line_lost(const LinePtr& line, const std::string& /*why*/) {
  const auto at = lines_.find(line->from);
  if (at != lines_.end() && at->second == line) lines_.erase(at);  // no death: heartbeats decide
}

void Head::on(const cluster::ClusterEvent& event) {
  const auto* joined = std::get_if<cluster::NodeJoined>(&event);
  const auto* leaving = std::get_if<cluster::NodeLeaving>(&event);
  if (joined != nullptr && joined->leaving) leaving_.emplace(joined->node.id, starting_on(joined->node.id));
  if (leaving != nullptr) leaving_.emplace(leaving->node, starting_on(leaving->node));
  const auto& broken = cluster.scenario.floor;
  if (!broken.ignore_leaving && !broken.start_too_often)
    return carry_out(machine.on(event, cluster.now_at(*this)));
  if (broken.ignore_leaving && leaving != nullptr) return;
  cluster::ClusterEvent heard = event;
  auto* join = std::get_if<cluster::NodeJoined>(&heard);
  if (broken.ignore_leaving && join != nullptr) join->leaving = false;
  auto* spawn = std::get_if<cluster::SpawnRequested>(&heard);
  if (broken.start_too_often && spawn != nullptr && spawn->spec.max_restarts > 0) ++spawn->spec.max_restarts;
  carry_out(machine.on(heard, cluster.now_at(*this)));
}

void Head::carry_out(HeadMachine::Output output) {
  World& world = cluster.world;
  for (const Node* node : cluster.nodes) {
    if (node->is_member && !machine.cluster().nodes().contains(node->info.id))
      cluster.declared_dead.insert(node->info.id);
  }
  check_leaving();
  check_moves();
  for (const auto& line : output.log) world.trace(name, line.text);
  for (const HeadMessage& message : output.send) {
    if (die_after_actions >= 0 && die_after_actions-- == 0) return world.kill(*this, "between two actions");
    send(std::get<cluster::ClusterAction>(message));
  }
  if (!output.write) return;
  Disk& disk = cluster.disk;
  disk.under_way = output.write;
  const Duration takes = disk.slow ? world.between(milliseconds(10), seconds(3))
                                   : world.between(microseconds(20), milliseconds(3));
  if (cluster.scenario.floor.say_before_durable) {
    world.after(*this, Duration{0}, "said to be written",
                [this] { carry_out(machine.written(Result<void>(), cluster.now_at(*this))); });
    world.after(*this, takes, "written", [this, batch = output.write] {
      cluster.disk.apply(*batch);
      if (cluster.disk.under_way == batch) cluster.disk.under_way = nullptr;
    });
    return;
  }
  // It may die between the write and hearing of it.
  world.after(*this, takes, "written", [this, batch = output.write] {
    Result<void> how;
    if (cluster.disk.fails || !cluster.disk.apply(*batch)) {
      how = ErrorInfo{ErrorCode::kIo, "cannot write", "no space left on device", "make room"};
    }
    cluster.disk.under_way = nullptr;
    cluster.world.after(*this, cluster.world.between(microseconds(10), milliseconds(1)), "write acknowledged",
                        [this, how] { carry_out(machine.written(how, cluster.now_at(*this))); });
  });
}

void Head::send(const cluster::ClusterAction& action) {
  check(action);
  const auto at = lines_.find(receiver_of(action));
  if (at == lines_.end()) return;  // it registers again when it is back
  auto* to = static_cast<Node*>(at->second->client);
  at->second->to_client(cluster.world, label_of(action), [to, action] { to->tell(node::HeadSaid{action}); });
}

std::set<ActorId> Head::starting_on(NodeId node) const {
  std::set<ActorId> starting;
  for (const auto& [actor_id, actor] : machine.cluster().actors()) {
    if (actor.record.state == cluster::ActorState::kStarting && actor.record.node == node)
      starting.insert(actor_id);
  }
  return starting;
}

/// A node that leaves is given nothing more. (A start that was decided before may still go out.)
void Head::check_leaving() {
  for (const auto& [node, before] : leaving_) {
    for (const ActorId actor : starting_on(node)) {
      if (!before.contains(actor)) cluster.world.violation("an actor is placed on a node that leaves");
    }
  }
}

/// What moves lives on a node that drains. (Its death uses up no restart, whatever it died of.)
void Head::check_moves() {
  if (cluster.drained.empty()) return;
  for (const auto& [actor_id, actor] : machine.cluster().actors()) {
    if (!actor.moves) continue;
    if (!cluster.drained.contains(actor.record.node))
      cluster.world.violation("an actor is to move from a node that does not drain");
    cluster.load.moves(actor_id, actor.record.incarnation);
  }
}

/// What is said was written.
void Head::check(const cluster::ClusterAction& action) {
  const auto stored = [&](const std::string& key) { return *cluster.disk.storage.get(key); };
  if (const auto* start = std::get_if<cluster::StartActor>(&action)) {
    // (It may have ended meanwhile, and be gone from there again.)
    const std::string key = "actor/" + to_string(start->actor);
    const auto bytes = stored(key);
    const auto record = bytes ? decode_record(*bytes) : Result<cluster::Record>(ErrorInfo{});
    const bool is_older = record && std::get<cluster::ActorRecord>(*record).incarnation < start->incarnation;
    if (is_older || !cluster.disk.written.contains(key))
      cluster.world.violation("an actor is started before it is durable");
  } else if (const auto* job = std::get_if<cluster::JobAnswered>(&action); job != nullptr && job->job) {
    const auto bytes = stored("job/main");
    const auto record = bytes ? decode_record(*bytes) : Result<cluster::Record>(ErrorInfo{});
    if (!record || std::get<cluster::JobRecord>(*record).incarnation < job->incarnation)
      cluster.world.violation("a job's registration is acknowledged before it is durable");
  }
}

}  // namespace troupe::sim
