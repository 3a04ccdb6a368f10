/// The driver program: gateway, session and driver machine.
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Driver::Driver(Cluster& in, int number)
    : Process("driver " + std::to_string(number), in.scenario.driver_host), cluster(in) {
  info.id = NodeId{in.ids.next()};
  info.name = name;
  info.gateway = true;
}

void Driver::start() {
  join();
  cluster.world.every(*this, seconds(1), "gateway heartbeat",
                      [this] { cluster.to_head(*this, cluster::Heartbeat{info.id}); });
  cluster.world.every(*this, seconds(2), "ask again", [this] {
    if (cluster.job_done) return cluster.to_head(*this, cluster::JobEnded{info.id, job, "done"});
    if (!machine)
      cluster.to_head(
          *this, cluster::JobRegistered{"main", {info.id, ProcessId{static_cast<std::uint64_t>(id)}}, 1});
    for (const auto& [token, kind] : unanswered) ask_for(token, kind);
  });
  cluster.world.every(*this, milliseconds(100), "driver tick", [this] { on(train::DriverTick{}); });
}

void Driver::join() {
  cluster::NodeJoined joined{info, {}, {}};
  joined.peers.assign(peers.begin(), peers.end());
  cluster.to_head(*this, joined);
  if (!machine)
    cluster.to_head(*this,
                    cluster::JobRegistered{"main", {info.id, ProcessId{static_cast<std::uint64_t>(id)}}, 1});
  for (const auto& [token, kind] : unanswered) ask_for(token, kind);
}

void Driver::on_job(JobId answered, std::uint32_t incarnation) {
  if (machine) return;
  if (incarnation <= cluster.last_incarnation) cluster.world.violation("an incarnation was given twice");
  cluster.last_incarnation = incarnation;
  job = answered;
  train::DriverConfig config = cluster.scenario.job;
  config.incarnation = incarnation;
  config.resume = cluster.accepted;
  config.expected_indices = [seed = cluster.scenario.seed](int epoch, std::int64_t step, int leaf) {
    return sampler(seed, epoch, step, leaf);
  };
  machine = std::make_unique<train::DriverMachine>(config, cluster.scenario.mutations);
  for (const auto& action : machine->start(cluster.world.now())) carry(action);
}

void Driver::on(const train::DriverEvent& event) {
  if (!machine) return;
  if (const auto* ready = std::get_if<train::TrainerReady>(&event))
    actors[ready->actor] = train::SpawnKind::kTrainer;
  if (const auto* ready = std::get_if<train::LoaderReady>(&event))
    actors[ready->actor] = train::SpawnKind::kLoader;
  const Generation before = machine->generation();
  const auto actions = machine->on(event, cluster.world.now());
  if (!machine->ignored().empty()) cluster.world.trace(name, "ignored: " + machine->ignored());
  check_staleness(event, before, actions);
  cluster.generations = std::max(cluster.generations, static_cast<int>(machine->generation().counter));
  for (const train::DriverAction& action : actions) {
    if (die_after_actions >= 0 && die_after_actions-- == 0)
      return cluster.world.kill(*this, "between two actions");
    carry(action);
  }
}

/// Nothing is accepted from an old generation.
void Driver::check_staleness(const train::DriverEvent& event, Generation before,
                             const std::vector<train::DriverAction>& actions) {
  const auto* report = std::get_if<train::TrainerReport>(&event);
  if (report == nullptr) return;
  const Generation of = std::visit(
      [&](const auto& r) {
        if constexpr (requires { r.generation; }) return r.generation;
        return before;
      },
      *report);
  if (of == before) return;
  for (const train::DriverAction& action : actions) {
    const bool harmless = std::holds_alternative<train::KillActor>(action) ||
                          std::holds_alternative<train::Notice>(action) ||
                          std::holds_alternative<train::SpawnActor>(action);
    if (!harmless)
      cluster.world.violation("a report of generation " + to_string(of) + " was accepted in " +
                              to_string(before));
  }
}

void Driver::ask_for(std::uint64_t token, train::SpawnKind kind) {
  cluster::ActorSpec spec;
  spec.job = job;
  spec.type = kind == train::SpawnKind::kTrainer ? "trainer" : "loader";
  spec.payload = std::to_string(id) + " " + std::to_string(token);
  spec.demand = {kind == train::SpawnKind::kTrainer ? cluster::kCpu : cluster::kCpu / 2,
                 kind == train::SpawnKind::kTrainer,
                 {}};
  unanswered[token] = kind;
  cluster.to_head(
      *this, cluster::SpawnRequested{{{info.id, ProcessId{static_cast<std::uint64_t>(id)}}, token}, spec});
}

void Driver::on_spawn_answered(const cluster::SpawnAnswered& answer) {
  const bool waited = unanswered.erase(answer.to.request) > 0;
  if (answer.ok) {
    homes[answer.actor] = answer.address.node;
    if (peers.insert(answer.address.node).second)
      cluster.to_head(*this, cluster::PeerWanted{info.id, answer.address.node});
  } else if (waited) {
    on(train::SpawnFailed{answer.to.request, answer.error.message()});
  }
}

void Driver::on_node_dead(NodeId node, const std::string& reason) {
  peers.erase(node);
  for (const auto& [actor, home] : std::map(homes)) {
    if (home == node) on_down(actor, "its node is dead: " + reason);
  }
}

void Driver::on_down(ActorId actor, const std::string& reason) {
  const auto it = actors.find(actor);
  if (it == actors.end()) return;
  killed.insert(actor);
  if (it->second == train::SpawnKind::kTrainer) {
    on(train::TrainerDown{actor, reason});
  } else {
    on(train::LoaderDown{actor, reason});
  }
}

void Driver::carry(const train::DriverAction& action) {
  check(action);
  World& world = cluster.world;
  if (const auto* spawn = std::get_if<train::SpawnActor>(&action)) {
    ask_for(spawn->token, spawn->kind);
  } else if (const auto* cancel = std::get_if<train::CancelSpawn>(&action)) {
    unanswered.erase(cancel->token);
    cluster.to_head(*this, cluster::SpawnCancelled{
                               {{info.id, ProcessId{static_cast<std::uint64_t>(id)}}, cancel->token}});
  } else if (const auto* send = std::get_if<train::SendOrder>(&action)) {
    if (auto* trainer = dynamic_cast<Trainer*>(cluster.find_worker(send->trainer))) {
      world.send(*this, *trainer, "order", [trainer, order = send->order] { trainer->on_order(order); });
    }
  } else if (const auto* kill = std::get_if<train::KillActor>(&action)) {
    killed.insert(kill->actor);
    world.trace(name, "kills " + to_string(kill->actor).substr(0, 4) + ": " + kill->reason);
    if (Worker* worker = cluster.find_worker(kill->actor)) {
      world.send(*this, *worker->node, "kill",
                 [n = worker->node, a = kill->actor, d = this] { n->on_kill(a, d); });
    }
  } else if (const auto* notice = std::get_if<train::Notice>(&action)) {
    world.trace(name, notice->text);
  } else if (const auto* accept = std::get_if<train::AcceptCheckpoint>(&action)) {
    cluster.accepted.push_back(accept->checkpoint);
    std::stable_sort(cluster.accepted.begin(), cluster.accepted.end(),
                     [](const auto& a, const auto& b) { return a.step < b.step; });
  } else if (const auto* done = std::get_if<train::JobDone>(&action)) {
    cluster.job_done = true;
    cluster.job_hash = done->hash;
    cluster.to_head(*this, cluster::JobEnded{info.id, job, "done"});
  }
}

/// The invariants that an action can break.
void Driver::check(const train::DriverAction& action) {
  World& world = cluster.world;
  const auto& job_config = cluster.scenario.job;
  if (const auto* commit = std::get_if<train::CommitStep>(&action)) {
    ++cluster.commits;
    world.trace(name, "commits step " + std::to_string(commit->entry.step) + " in " +
                          to_string(commit->entry.generation));
    for (const auto& slot : commit->entry.slots) {
      const auto step = commit->entry.step;
      if (slot.indices_hash != sampler(cluster.scenario.seed,
                                       static_cast<int>(step / job_config.steps_per_epoch),
                                       step % job_config.steps_per_epoch, slot.leaf)) {
        world.violation("a slot of step " + std::to_string(step) + " has other samples");
      }
    }
    // Committed means that every member has it: whoever of them lives holds it.
    const auto group = cluster.groups.find(machine->generation());
    if (group == cluster.groups.end()) return;
    for (const Group::Rank& rank : group->second->ranks) {
      if (rank.trainer != nullptr && rank.trainer->machine.generation() == machine->generation() &&
          rank.trainer->machine.steps() <= commit->entry.step) {
        world.violation("step " + std::to_string(commit->entry.step) + " is committed, and " +
                        rank.trainer->name + " has not applied it");
      }
    }
  } else if (const auto* epoch = std::get_if<train::EpochDone>(&action)) {
    world.trace(name, "epoch " + std::to_string(epoch->epoch) + " is done");
    if (epoch->count != job_config.test_samples)
      world.violation("an evaluation counted " + std::to_string(epoch->count) + " samples");
  } else if (const auto* accept = std::get_if<train::AcceptCheckpoint>(&action)) {
    if (accept->checkpoint.hash != cluster.reference[accept->checkpoint.step])
      world.violation("a checkpoint holds another state");
  } else if (const auto* rewind = std::get_if<train::RewindLedger>(&action)) {
    ++cluster.rewinds;
    for (const Worker* worker : cluster.living_workers()) {
      const auto* trainer = dynamic_cast<const Trainer*>(worker);
      if (trainer != nullptr && trainer->driver == this && !killed.contains(trainer->actor) &&
          actors.contains(trainer->actor) && trainer->machine.generation() == machine->generation() &&
          trainer->machine.steps() >= rewind->from) {
        world.violation("steps are voided though " + trainer->name + " holds them");
      }
    }
  } else if (const auto* done = std::get_if<train::JobDone>(&action)) {
    world.trace(name, "done: " + done->hash);
    if (done->hash != cluster.reference.back()) world.violation("the job ends with another hash");
    const std::int64_t total = job_config.epochs * job_config.steps_per_epoch;
    if (machine->ledger().committed() != total) world.violation("the ledger is not whole");
  } else if (const auto* failed = std::get_if<train::JobFailed>(&action)) {
    world.violation("the job failed: " + failed->reason);
  }
}

}  // namespace troupe::sim
