/// The driver program.
#include "runtime/wire/codec.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Driver::Driver(Cluster& in, Node& gateway, int number)
    : Hosted(in, gateway, {}, "driver " + std::to_string(number), gateway.host) {}

/// Its gateway is a member, and knows it as its driver.
void Driver::up() {
  const auto job = runtime->begin_job("main");
  const auto asking = expect("a job", seconds(80));
  job->on_ready([this, job, asking] {
    met(asking);
    if (!job->outcome().ok())
      return cluster.world.kill(*this, ("no job: " + job->outcome().error().message()).c_str());
    session().spawn_async<DriverActor>({.here = true});
    if (cluster.scenario.callers > 0) session().spawn_async<CallerActor>({.here = true});
  });
}

/// The program may go on for a while: its calls fail.
void Driver::told_to_leave() {
  if (!lost_node_) return cluster.world.kill(*this, "told to leave");
  if (std::exchange(leaving_, true)) return;
  leave_soon();
}

void Driver::leave_soon() {
  const Duration delay = cluster.world.between(milliseconds(1), milliseconds(50));
  const Instant due = cluster.world.now() + delay;
  cluster.world.after(*this, delay, "program ends", [this, due] {
    if (cluster.world.now() > due) return leave_soon();  // it was stopped meanwhile, and has heard nothing
    if (runtime->calls_under_way() != 0 || !expected.empty())
      cluster.world.violation(name + " has lost its node, and waits for " +
                              (expected.empty() ? "a call" : expected.begin()->second.what));
    cluster.world.kill(*this, "its gateway is gone");
  });
}

DriverActor::DriverActor() {
  dynamic_cast<Driver&>(Hosted::current()).start();
}
void DriverActor::report(const train::TrainerReport& report) {
  dynamic_cast<Driver&>(Hosted::current()).on(report);
}
void DriverActor::loader_lives(ActorId loader, const train::Progress& progress) {
  dynamic_cast<Driver&>(Hosted::current()).on(train::LoaderHeartbeat{loader, progress});
}

void Driver::start() {
  self_ = this_actor().self<DriverActor>();
  const std::uint32_t incarnation = runtime->config().incarnation;
  if (incarnation <= cluster.last_incarnation) cluster.world.violation("an incarnation was given twice");
  cluster.last_incarnation = incarnation;
  train::DriverConfig config = cluster.scenario.job;
  config.incarnation = incarnation;
  config.resume = cluster.accepted;
  config.expected_indices = [seed = cluster.scenario.seed](int epoch, std::int64_t step, int leaf) {
    return sampler(seed, epoch, step, leaf);
  };
  machine = std::make_unique<train::DriverMachine>(config, cluster.scenario.mutations);
  for (const auto& action : machine->start(now())) carry(action);
  tick();
}

void Driver::tick() {
  on(train::DriverTick{});
  this_actor().run_after(milliseconds(100), [this] { tick(); });
}

// Actors come and go, as actors/train/train_driver.cpp has it.

template <class A>
void Driver::spawn(std::uint64_t token, train::SpawnKind kind) {
  ActorOptions options;
  options.num_cpus = kind == train::SpawnKind::kTrainer ? 1 : 0.5;
  options.isolated = true;
  options.label = kind == train::SpawnKind::kTrainer ? "trainer" : "loader";
  const auto spawning = expect("a spawn", seconds(80));
  session().spawn_async<A>(options, *self_).then([this, spawning, token, kind](Result<ActorHandle<A>> actor) {
    met(spawning);
    if (actor) return up(token, kind, *actor);
    // A refusal is for good: the job has ended for the cluster.
    if (actor.error().code == ErrorCode::kRefused)
      return cluster.world.kill(*this, ("refused: " + actor.error().message()).c_str());
    on(train::SpawnFailed{token, actor.error().message()});
  });
}

template <class A>
void Driver::up(std::uint64_t token, train::SpawnKind kind, ActorHandle<A> actor) {
  if (cancelled_.contains(token)) return kill(actor.address(), "it is not wanted any more");
  cluster.homes[actor.address().actor] = actor.address();
  const auto asking = expect("a hello", seconds(45));
  actor.template call<&A::hello>().then([this, asking, token, kind, actor](Result<bool> hello) {
    met(asking);
    if (hello) return ready(token, kind, actor);
    kill(actor.address(), "it did not say hello");
    on(train::SpawnFailed{token, hello.error().message()});
  });
}

template <class A>
void Driver::ready(std::uint64_t token, train::SpawnKind kind, ActorHandle<A> actor) {
  const ActorId who = actor.address().actor;
  const bool trainer = kind == train::SpawnKind::kTrainer;
  seats[who].address = actor.address();
  if constexpr (std::is_same_v<A, TrainerActor>) seats[who].trainer = actor;
  session().monitor(actor, [this, who, trainer](const std::string& reason) {
    if (seats.erase(who) == 0) return cluster.world.violation(name + " is told of a death twice");
    killed.insert(who);
    if (trainer) {
      on(train::TrainerDown{who, reason});
    } else {
      on(train::LoaderDown{who, reason});
    }
  });
  if (trainer) {
    on(train::TrainerReady{token, who, actor.address().node, "its data address"});
  } else {
    on(train::LoaderReady{token, who, actor.address().node, "its address"});
  }
}

void Driver::kill(const ActorAddress& actor, const std::string& reason) {
  killed.insert(actor.actor);
  cluster.world.trace(name, "kills " + to_string(actor.actor).substr(0, 4) + ": " + reason);
  session().kill(actor, reason);
}

void Driver::on(const train::DriverEvent& event) {
  if (!machine) return;
  const Generation before = machine->generation();
  const auto actions = machine->on(event, now());
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
                          std::holds_alternative<train::DeadlineExpired>(action) ||
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
    if (wanted->kind == train::SpawnKind::kTrainer) {
      spawn<TrainerActor>(wanted->token, wanted->kind);
    } else {
      spawn<LoaderActor>(wanted->token, wanted->kind);
    }
  } else if (const auto* cancel = std::get_if<train::CancelSpawn>(&action)) {
    cancelled_.insert(cancel->token);
  } else if (const auto* send = std::get_if<train::SendOrder>(&action)) {
    const auto at = seats.find(send->trainer);
    if (at != seats.end()) at->second.trainer.tell<&TrainerActor::order>(send->order);
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
    runtime->begin_end();
    world.after(*this, milliseconds(20), "program ends",
                [this] { cluster.world.kill(*this, "its program has ended"); });
  }
}

/// How many epochs the job has to run by what they came to, and whether `history` says the same.
int Driver::expected_epochs(const std::string& history) {
  const auto& job = cluster.scenario.job;
  double best = -1;
  int best_epoch = 0;
  int last = job.test_pieces == 0 ? job.epochs : 0;
  for (const auto& [epoch, metrics] : cluster.metrics) {
    if (job.test_pieces == 0) break;
    last = epoch;
    if (metrics.at("test/accuracy") > best) best_epoch = epoch, best = metrics.at("test/accuracy");
    if (!job.stop_early.metric.empty() && epoch - best_epoch >= job.stop_early.patience) break;
  }
  const auto seen = train::decode_history(history).value();
  const bool watched = !job.keep_best.empty() && last > 0;
  if (watched && (seen.kept.epoch != best_epoch || seen.kept.value != best))
    cluster.world.violation("the driver takes another epoch for the best");
  return last;
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
    // Also when a driver took up in the middle of the epoch: its checkpoint told of the steps before.
    if (epoch->train.at(0).weight !=
        static_cast<double>(job_config.logical_ranks * job_config.steps_per_epoch))
      world.violation("an epoch's figures are not of each of its slots once");
    const auto [told, first] = cluster.metrics.emplace(epoch->epoch + 1, epoch->metrics);
    if (!first && told->second != epoch->metrics)
      world.violation("an epoch came to other metrics than before");
  } else if (const auto* accept = std::get_if<train::AcceptCheckpoint>(&action)) {
    if (accept->checkpoint.hash != cluster.reference[accept->checkpoint.step])
      world.violation("a checkpoint holds another state");
  } else if (const auto* rewind = std::get_if<train::RewindLedger>(&action)) {
    ++cluster.rewinds;
    for (const Worker* worker : cluster.living_workers()) {
      const auto* trainer = dynamic_cast<const Trainer*>(worker);
      if (trainer != nullptr && trainer->driver == self_ && !killed.contains(trainer->actor) &&
          seats.contains(trainer->actor) && trainer->machine->generation() == machine->generation() &&
          trainer->machine->steps() >= rewind->from) {
        world.violation("steps are voided though " + trainer->name + " holds them");
      }
    }
  } else if (const auto* done = std::get_if<train::JobDone>(&action)) {
    world.trace(name, "done: " + done->hash);
    const std::int64_t total = expected_epochs(done->history) * job_config.steps_per_epoch;
    if (machine->ledger().committed() != total)
      world.violation("the ledger is not whole, or the job stopped early");
    if (done->hash != cluster.reference[total]) world.violation("the job ends with another hash");
    if (done->stopped_early != (total < job_config.epochs * job_config.steps_per_epoch))
      world.violation("the job does not say that it stopped early");
  } else if (const auto* failed = std::get_if<train::JobFailed>(&action)) {
    world.violation("the job failed: " + failed->reason);
  }
}

}  // namespace troupe::sim
