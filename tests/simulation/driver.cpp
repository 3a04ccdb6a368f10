/// The driver program.
#include "runtime/wire/codec.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Driver::Driver(Cluster& in, Node& gateway, int number)
    : Hosted(in, gateway, {}, "driver " + std::to_string(number), gateway.host) {}

/// Its gateway is a member, and knows it as its driver.
void Driver::on_control(const wire::Control& message) {
  if (const auto* configure = std::get_if<wire::Configure>(&message)) {
    process = configure->process;
    to_node("hello", wire::Hello{});
    start_pulse();
    return register_job();
  }
  Hosted::on_control(message);
}

void Driver::register_job() {
  const std::uint64_t request = next_request();
  ask("job", request, wire::JobAsk{request, "main"}, [this](const wire::Answer& answer) {
    const auto job_answer = wire::decode<wire::JobAnswer>(answer.value);
    if (!answer.ok || !job_answer || !job_answer->job)
      return cluster.world.kill(*this, ("no job: " + answer.error.message()).c_str());
    job = job_answer->job;
    on_job(job_answer->incarnation);
  });
}

void Driver::on_job(std::uint32_t incarnation) {
  if (incarnation <= cluster.last_incarnation) cluster.world.violation("an incarnation was given twice");
  cluster.last_incarnation = incarnation;
  train::DriverConfig config = cluster.scenario.job;
  config.incarnation = incarnation;
  config.resume = cluster.accepted;
  config.expected_indices = [seed = cluster.scenario.seed](int epoch, std::int64_t step, int leaf) {
    return sampler(seed, epoch, step, leaf);
  };
  machine = std::make_unique<train::DriverMachine>(config, cluster.scenario.mutations);
  for (const auto& action : machine->start(cluster.world.now())) carry(action);
  cluster.world.every(*this, milliseconds(100), "~driver tick", [this] { on(train::DriverTick{}); });
}

// Actors come and go, as actors/train/train_driver.cpp has it.

void Driver::spawn(std::uint64_t token, train::SpawnKind kind) {
  const bool trainer = kind == train::SpawnKind::kTrainer;
  wire::ActorPayload payload;
  payload.constructor = trainer ? 1 : 2;
  payload.label = trainer ? "trainer" : "loader";
  payload.driver = address();
  payload.package = cluster.scenario.foreign_driver ? "the driver's" : "";
  payload.args = wire::encode(StartArgs{token, address()});
  const wire::Bytes bytes = wire::encode(payload);
  cluster::ActorSpec spec;
  spec.type = payload.label;
  spec.payload.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  spec.demand = {trainer ? cluster::kCpu : cluster::kCpu / 2, true, {}};
  const std::uint64_t request = next_request();
  ask("spawn", request, wire::SpawnAsk{request, spec}, [this, token, kind](const wire::Answer& answer) {
    if (!answer.ok) {
      // A refusal is for good: the job has ended for the cluster.
      if (answer.error.code == ErrorCode::kRefused)
        return cluster.world.kill(*this, ("refused: " + answer.error.message()).c_str());
      return on(train::SpawnFailed{token, answer.error.message()});
    }
    const auto spawned = wire::decode<wire::SpawnAnswer>(answer.value);
    if (!spawned) return cluster.world.violation("a spawn's answer does not decode");
    up(token, kind, spawned->address);
  });
}

void Driver::up(std::uint64_t token, train::SpawnKind kind, ActorAddress actor) {
  if (cancelled_.contains(token)) return kill(actor, "it is not wanted any more");
  cluster.homes[actor.actor] = actor;
  const auto hello = [](Hosted& at, const FramePtr& call) { at.reply(*call, true); };
  call(actor.home(), "say hello", hello, [this, token, kind, actor](const Frame& reply) {
    if ((reply.header.flags & wire::kFlagError) == 0) return ready(token, kind, actor);
    kill(actor, "it did not say hello");
    on(train::SpawnFailed{token, reply.error.message()});
  });
}

void Driver::ready(std::uint64_t token, train::SpawnKind kind, ActorAddress actor) {
  seats[actor.actor] = {kind, actor};
  const bool trainer = kind == train::SpawnKind::kTrainer;
  monitor(actor, [this, id = actor.actor, trainer](const std::string& reason) {
    seats.erase(id);
    killed.insert(id);
    if (trainer) {
      on(train::TrainerDown{id, reason});
    } else {
      on(train::LoaderDown{id, reason});
    }
  });
  if (trainer) {
    on(train::TrainerReady{token, actor.actor, actor.node, "its data address"});
  } else {
    on(train::LoaderReady{token, actor.actor, actor.node, "its address"});
  }
}

void Driver::kill(const ActorAddress& actor, const std::string& reason) {
  killed.insert(actor.actor);
  cluster.world.trace(name, "kills " + to_string(actor.actor).substr(0, 4) + ": " + reason);
  to_node("kill", wire::KillAsk{actor, reason});
}

void Driver::on(const train::DriverEvent& event) {
  if (!machine) return;
  const Generation before = machine->generation();
  const auto actions = machine->on(event, cluster.world.now());
  if (!machine->ignored().empty()) cluster.world.trace(name, "ignored: " + machine->ignored());
  check_staleness(event, before, actions);
  cluster.generations = std::max(cluster.generations, static_cast<int>(machine->generation().counter));
  for (const train::DriverAction& action : actions) {
    if (!alive) return;
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

void Driver::carry(const train::DriverAction& action) {
  check(action);
  World& world = cluster.world;
  if (const auto* wanted = std::get_if<train::SpawnActor>(&action)) {
    spawn(wanted->token, wanted->kind);
  } else if (const auto* cancel = std::get_if<train::CancelSpawn>(&action)) {
    cancelled_.insert(cancel->token);
  } else if (const auto* send = std::get_if<train::SendOrder>(&action)) {
    const auto at = seats.find(send->trainer);
    if (at == seats.end()) return;
    tell(at->second.address.home(), "order",
         [order = send->order](Hosted& to, const FramePtr&) { static_cast<Trainer&>(to).on_order(order); });
  } else if (const auto* fence = std::get_if<train::KillActor>(&action)) {
    if (const auto at = seats.find(fence->actor); at != seats.end()) kill(at->second.address, fence->reason);
  } else if (const auto* notice = std::get_if<train::Notice>(&action)) {
    world.trace(name, notice->text);
  } else if (const auto* accept = std::get_if<train::AcceptCheckpoint>(&action)) {
    cluster.accepted.push_back(accept->checkpoint);
    std::stable_sort(cluster.accepted.begin(), cluster.accepted.end(),
                     [](const auto& a, const auto& b) { return a.step < b.step; });
  } else if (const auto* done = std::get_if<train::JobDone>(&action)) {
    cluster.job_done = true;
    cluster.job_hash = done->hash;
    for (const auto& [who, seat] : seats) kill(seat.address, "the job is over");
    to_node("job end", wire::JobEnd{"done"});
    world.after(*this, milliseconds(20), "program ends",
                [this] { cluster.world.kill(*this, "its program has ended"); });
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
      if (rank.trainer != nullptr && rank.trainer->machine->generation() == machine->generation() &&
          rank.trainer->machine->steps() <= commit->entry.step) {
        world.violation("step " + std::to_string(commit->entry.step) + " is committed, and " +
                        rank.trainer->name + " has not applied it");
      }
    }
  } else if (const auto* epoch = std::get_if<train::EpochDone>(&action)) {
    world.trace(name, "epoch " + std::to_string(epoch->epoch) + " is done");
    if (epoch->count != job_config.test_pieces)
      world.violation("an evaluation counted " + std::to_string(epoch->count) + " samples");
  } else if (const auto* accept = std::get_if<train::AcceptCheckpoint>(&action)) {
    if (accept->checkpoint.hash != cluster.reference[accept->checkpoint.step])
      world.violation("a checkpoint holds another state");
  } else if (const auto* rewind = std::get_if<train::RewindLedger>(&action)) {
    ++cluster.rewinds;
    for (const Worker* worker : cluster.living_workers()) {
      const auto* trainer = dynamic_cast<const Trainer*>(worker);
      if (trainer != nullptr && trainer->args.driver == address() && !killed.contains(trainer->actor) &&
          seats.contains(trainer->actor) && trainer->machine->generation() == machine->generation() &&
          trainer->machine->steps() >= rewind->from) {
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
