/// Head and node processes.
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

using namespace cluster;  // NOLINT: the events and actions of the cluster machine

// Head.

Head::Head(Cluster& in) : Process("head", 0), cluster(in), machine({}, in.ids) {}

void Head::start() {
  Restored restored;
  for (const auto& [key, record] : cluster.store) restored.records.push_back(record);
  on(restored);
  cluster.world.every(*this, milliseconds(500), "head tick", [this] { on(Tick{}); });
}

void Head::on(const ClusterEvent& event) {
  for (const ClusterAction& action : machine.on(event, cluster.world.now())) {
    if (die_after_actions >= 0 && die_after_actions-- == 0)
      return cluster.world.kill(*this, "between two actions");
    carry(action);
  }
}

void Head::carry(const ClusterAction& action) {
  World& world = cluster.world;
  const auto to_node = [&](NodeId to, const char* label, auto what) {
    if (Node* node = cluster.find_node(to)) world.send(*this, *node, label, [node, what] { what(*node); });
  };
  const auto to_driver = [&](NodeId to, const char* label, auto what) {
    Driver* driver = cluster.driver;
    if (driver != nullptr && driver->info.id == to)
      world.send(*this, *driver, label, [driver, what] { what(*driver); });
  };
  if (const auto* a = std::get_if<Persist>(&action)) {
    cluster.store[a->key] = a->record;
  } else if (const auto* a2 = std::get_if<Erase>(&action)) {
    cluster.store.erase(a2->key);
  } else if (const auto* start = std::get_if<StartActor>(&action)) {
    if (!cluster.store.contains("actor/" + to_string(start->actor)))
      world.violation("an actor is started before it is persisted");
    to_node(start->node, "start actor", [s = *start](Node& n) { n.on_start_actor(s.actor, s.spec); });
  } else if (const auto* kill = std::get_if<cluster::KillActor>(&action)) {
    to_node(kill->node, "kill actor", [k = *kill](Node& n) { n.on_kill(k.actor, nullptr); });
  } else if (const auto* spawned = std::get_if<SpawnAnswered>(&action)) {
    to_driver(spawned->to.from.node, "spawn answered", [s = *spawned](Driver& d) { d.on_spawn_answered(s); });
  } else if (const auto* job = std::get_if<JobAnswered>(&action)) {
    const auto stored = cluster.store.find("job/main");
    if (stored == cluster.store.end() || std::get<JobRecord>(stored->second).incarnation < job->incarnation) {
      world.violation("a job's registration is acknowledged before it is persisted");
    }
    to_driver(job->to.node, "job answered", [j = *job](Driver& d) { d.on_job(j.job, j.incarnation); });
  } else if (const auto* dead = std::get_if<NodeDead>(&action)) {
    to_driver(dead->to, "node dead", [n = *dead](Driver& d) { d.on_node_dead(n.node, n.reason); });
  } else if (const auto* end = std::get_if<EndJob>(&action)) {
    to_node(end->to, "end job", [j = end->job](Node& n) { n.on_end_job(j); });
    to_driver(end->to, "end job", [w = &world, j = end->job](Driver& d) {
      if (d.job == j && !d.cluster.job_done) w->kill(d, "its job was ended");
    });
  } else if (const auto* refuse = std::get_if<RefuseNode>(&action)) {
    to_node(refuse->node, "refused", [](Node& n) { n.on_refused(); });
    to_driver(refuse->node, "refused",
              [w = &world](Driver& d) { w->kill(d, "the cluster counts it as dead"); });
  } else if (const auto* ask = std::get_if<RequestRegistration>(&action)) {
    to_node(ask->node, "register again", [](Node& n) { n.join(); });
    to_driver(ask->node, "register again", [](Driver& d) { d.join(); });
  }
}

// Node.

Node::Node(Cluster& in, int on_host, std::int64_t cpus) : Process("node", on_host), cluster(in) {
  info.id = NodeId{in.ids.next()};
  info.name = "n" + std::to_string(on_host);
  info.cpu_e4 = cpus;
  name = info.name + "." + to_string(info.id).substr(0, 4);
}

void Node::start() {
  join();
  cluster.world.every(*this, seconds(1), "node heartbeat",
                      [this] { cluster.to_head(*this, Heartbeat{info.id}); });
}

void Node::join() {
  NodeJoined joined{info, {}, {}};
  for (const auto& [actor, worker] : workers) {
    joined.actors.push_back(
        {actor, worker->alive ? ProcessId{static_cast<std::uint64_t>(worker->id)} : ProcessId{}});
  }
  cluster.to_head(*this, joined);
}

void Node::on_start_actor(ActorId actor, const ActorSpec& spec) {
  if (!seen.insert(actor).second) return;
  cpu_used += spec.demand.cpu_e4;
  if (cpu_used > info.cpu_e4) cluster.world.violation("node " + name + " has more actors than CPUs");
  const auto space = spec.payload.find(' ');
  const int driver_process = std::stoi(spec.payload.substr(0, space));
  auto* driver = dynamic_cast<Driver*>(cluster.processes.at(driver_process - 1).get());
  const std::uint64_t token = std::stoull(spec.payload.substr(space + 1));
  std::unique_ptr<Worker> made;
  if (spec.type == "trainer") {
    made = std::make_unique<Trainer>(cluster, *this, actor, driver, token, spec.demand.cpu_e4);
  } else {
    made = std::make_unique<Loader>(cluster, *this, actor, driver, token, spec.demand.cpu_e4, "loader ");
  }
  Worker& worker = cluster.own(std::move(made));
  worker.job = spec.job;
  workers[actor] = &worker;
  worker.on_death = [this, &worker] {
    cluster.world.after(*this, cluster.world.between(microseconds(10), milliseconds(1)), "pidfd",
                        [this, &worker] { worker_died(worker); });
  };
  cluster.world.after(
      worker, cluster.world.between(milliseconds(5), milliseconds(100)), "worker up", [this, &worker] {
        worker.start();
        cluster.world.after(*this, microseconds(100), "worker said hello", [this, &worker] {
          if (worker.alive)
            cluster.to_head(
                *this, ActorStarted{info.id, worker.actor, ProcessId{static_cast<std::uint64_t>(worker.id)}});
        });
      });
}

/// Its node sets the abort word of the worker's group, then tells the driver and the head.
void Node::worker_died(Worker& worker) {
  if (workers.erase(worker.actor) == 0) return;
  cpu_used -= worker.cpu_e4;
  if (auto* trainer = dynamic_cast<Trainer*>(&worker); trainer != nullptr && trainer->group) {
    trainer->group->abort(host, worker.name + " died");
  }
  cluster.world.send(*this, *worker.driver, "worker down",
                     [d = worker.driver, a = worker.actor] { d->on_down(a, "its process ended"); });
  cluster.to_head(*this, ActorDown{info.id, worker.actor, "its process ended"});
}

void Node::on_kill(ActorId actor, Driver* answer_to) {
  if (const auto it = workers.find(actor); it != workers.end())
    return cluster.world.kill(*it->second, "on request");
  if (answer_to != nullptr) {
    cluster.world.send(*this, *answer_to, "not here",
                       [answer_to, actor] { answer_to->on_down(actor, "no such process"); });
  }
  seen.insert(actor);  // a start that comes later comes too late
  cluster.to_head(*this, ActorDown{info.id, actor, "no such process"});
}

void Node::on_end_job(JobId job) {
  for (const auto& [actor, worker] : std::map(workers)) {
    if (worker->job == job) cluster.world.kill(*worker, "its job ended");
  }
}

void Node::on_refused() {
  // A supervisor would start it anew; its workers die with it.
  cluster.world.kill(*this, "the cluster counts it as dead");
}

}  // namespace troupe::sim
