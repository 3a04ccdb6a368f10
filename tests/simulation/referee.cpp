/// What must hold of what drivers decide.
#include <algorithm>

#include "actors/train/driver/driver_machine.hpp"
#include "actors/train/driver/history.hpp"
#include "tests/simulation/cluster.hpp"
#include "tests/simulation/group.hpp"

namespace troupe::sim {

train::Mutations Floor::mutations() const {
  return cluster_.scenario.mutations;
}

void Floor::watch(const train::TrainerMachine& machine, ActorId trainer) {
  auto& process = dynamic_cast<Trainer&>(Hosted::current());
  process.machine = &machine;
  process.actor = trainer;
  cluster_.trainers[trainer] = &process;
}

void Floor::watch(const train::DriverMachine& machine, const train::DriverEvent& event,
                  const std::vector<train::DriverAction>& actions) {
  const auto& driver = dynamic_cast<const Driver&>(Hosted::current());
  Knows& knows = knows_[&driver];
  if (!machine.ignored().empty()) cluster_.world.trace(driver.name, "ignored: " + machine.ignored());
  check_staleness(event, actions);
  check_report(event);
  if (const auto* up = std::get_if<train::TrainerReady>(&event)) knows.members.insert(up->actor);
  if (const auto* down = std::get_if<train::TrainerDown>(&event)) {
    if (knows.members.erase(down->actor) == 0)
      cluster_.world.violation(driver.name + " is told of a death twice, or of a stranger's");
  }
  cluster_.generations = std::max(cluster_.generations, static_cast<int>(machine.generation().counter));
  for (const auto& action : actions) {
    if (const auto* fence = std::get_if<train::KillActor>(&action)) {
      knows.killed.insert(fence->actor);
      cluster_.world.trace(driver.name,
                           "kills " + to_string(fence->actor).substr(0, 4) + ": " + fence->reason);
    }
    check(machine, action);
  }
  knows.generation = machine.generation();
}

/// Who says what state it holds has it.
void Floor::check_report(const train::DriverEvent& event) {
  const auto* report = std::get_if<train::TrainerReport>(&event);
  const auto* held = report == nullptr ? nullptr : std::get_if<train::TrainerQuiesced>(report);
  if (held == nullptr || held->steps == train::kNoState) return;
  const Trainer* trainer = cluster_.trainers.at(held->actor);
  if (!trainer->alive || trainer->state == nullptr) return;
  if (*trainer->state != cluster_.reference.at(held->steps))
    cluster_.world.violation(trainer->name + " holds another state after " + std::to_string(held->steps) +
                             " steps");
}

/// Nothing is accepted from an old generation.
void Floor::check_staleness(const train::DriverEvent& event,
                            const std::vector<train::DriverAction>& actions) {
  const auto* report = std::get_if<train::TrainerReport>(&event);
  // What is written beside the steps outlives their generation.
  if (report == nullptr || std::holds_alternative<train::CheckpointWritten>(*report) ||
      std::holds_alternative<train::CheckpointFailed>(*report))
    return;
  const Generation before = knows_[&dynamic_cast<const Driver&>(Hosted::current())].generation;
  const Generation of = std::visit(
      [&](const auto& r) {
        if constexpr (requires { r.generation; }) return r.generation;
        return before;
      },
      *report);
  if (of == before) return;
  for (const auto& action : actions) {
    const bool harmless = std::holds_alternative<train::KillActor>(action) ||
                          std::holds_alternative<train::Notice>(action) ||
                          std::holds_alternative<train::DeadlineExpired>(action) ||
                          std::holds_alternative<train::SpawnActor>(action);
    if (!harmless)
      cluster_.world.violation("a report of generation " + to_string(of) + " was accepted in " +
                               to_string(before));
  }
}

void Floor::check(const train::DriverMachine& machine, const train::DriverAction& action) {
  World& world = cluster_.world;
  const std::string& who = Hosted::current().name;
  if (const auto* commit = std::get_if<train::CommitStep>(&action)) {
    check(machine, *commit);
  } else if (const auto* epoch = std::get_if<train::EpochDone>(&action)) {
    check(*epoch);
  } else if (const auto* accept = std::get_if<train::AcceptCheckpoint>(&action)) {
    if (accept->checkpoint.hash != train::final_hash(cluster_.reference.at(accept->checkpoint.step).parts()))
      world.violation("a checkpoint holds another state");
    check_seen(accept->checkpoint);
    cluster_.accepted.push_back(accept->checkpoint);
  } else if (const auto* rewind = std::get_if<train::RewindLedger>(&action)) {
    check(machine, *rewind);
  } else if (const auto* done = std::get_if<train::JobDone>(&action)) {
    world.trace(who, "done: " + done->hash);
    check(machine, *done);
  } else if (const auto* failed = std::get_if<train::JobFailed>(&action)) {
    world.violation("the job failed: " + failed->reason);
  } else if (const auto* notice = std::get_if<train::Notice>(&action)) {
    world.trace(who, notice->text);
  }
}

void Floor::check(const train::DriverMachine& machine, const train::CommitStep& commit) {
  const auto step = commit.entry.step;
  World& world = cluster_.world;
  ++cluster_.commits;
  world.trace(Hosted::current().name,
              "commits step " + std::to_string(step) + " in " + to_string(commit.entry.generation));
  for (const auto& slot : commit.entry.slots) {
    if (slot.indices_hash != cluster_.indices.at(step).at(slot.leaf))
      world.violation("a slot of step " + std::to_string(step) + " has other samples");
  }
  // Committed means that every member has it: whoever of them lives holds it.
  const auto group = cluster_.groups.find(machine.generation());
  if (group == cluster_.groups.end()) return;
  for (const Group::Rank& rank : group->second->ranks) {
    const Trainer* trainer = rank.trainer;
    if (trainer != nullptr && trainer->alive && trainer->machine->generation() == machine.generation() &&
        trainer->machine->steps() <= step)
      world.violation("step " + std::to_string(step) + " is committed, and " + trainer->name +
                      " has not applied it");
  }
}

void Floor::check(const train::EpochDone& epoch) {
  const auto& scenario = cluster_.scenario;
  World& world = cluster_.world;
  world.trace(Hosted::current().name, "epoch " + std::to_string(epoch.epoch) + " is done");
  if (epoch.count != scenario.test_samples)
    world.violation("an evaluation counted " + std::to_string(epoch.count) + " samples");
  if (!epoch.ended) {
    const auto [told, first] = cluster_.within.emplace(epoch.step, epoch.metrics);
    if (!first && told->second != epoch.metrics)
      world.violation("an evaluation came to other metrics than before");
    return;
  }
  // Also when a driver took up in the middle of the epoch: its checkpoint told of the steps before.
  if (epoch.train.at(0).weight != static_cast<double>(cluster_.sampler.options().dataset_size))
    world.violation("an epoch's figures are not of each of its samples once");
  const auto [told, first] = cluster_.metrics.emplace(epoch.epoch + 1, epoch.metrics);
  if (!first && told->second != epoch.metrics) world.violation("an epoch came to other metrics than before");
}

/// A checkpoint says what was evaluated up to its state, each once, however far a driver had been.
void Floor::check_seen(const train::CheckpointInfo& checkpoint) {
  if (cluster_.scenario.test_samples == 0) return;
  const auto& rule = cluster_.scenario.job.stop_early;
  const auto seen = train::decode_history(checkpoint.history).value();
  std::int64_t evaluated = 0;
  train::Best best;
  for (const auto& [step, metrics] : cluster_.within) {
    if (step <= checkpoint.step) evaluated = step;
  }
  for (const auto& [epoch, metrics] : cluster_.metrics) {
    const std::int64_t step = epoch * cluster_.scenario.steps_per_epoch;
    if (step > checkpoint.step) break;
    evaluated = std::max(evaluated, step);
    if (!rule.metric.empty())
      best = train::observe(best, rule.metric, rule.mode, rule.min_delta, step, metrics.at(rule.metric));
  }
  if (seen.evaluated != evaluated || seen.patience != best)
    cluster_.world.violation("a checkpoint of step " + std::to_string(checkpoint.step) +
                             " has seen evaluations up to step " + std::to_string(seen.evaluated) +
                             ", the job up to " + std::to_string(evaluated) + ", or one twice");
}

void Floor::check(const train::DriverMachine& machine, const train::RewindLedger& rewind) {
  ++cluster_.rewinds;
  const auto& driver = dynamic_cast<const Driver&>(Hosted::current());
  const Knows& knows = knows_[&driver];
  for (const Worker* worker : cluster_.living_workers()) {
    const auto* trainer = dynamic_cast<const Trainer*>(worker);
    if (trainer == nullptr || trainer->machine == nullptr || !knows.members.contains(trainer->actor))
      continue;
    if (!knows.killed.contains(trainer->actor) && trainer->machine->generation() == machine.generation() &&
        trainer->machine->steps() >= rewind.from)
      cluster_.world.violation("steps are voided though " + trainer->name + " holds them");
  }
}

void Floor::check(const train::DriverMachine& machine, const train::JobDone& done) {
  const auto& scenario = cluster_.scenario;
  World& world = cluster_.world;
  const std::int64_t total = expected_epochs(done.history) * scenario.steps_per_epoch;
  if (machine.ledger().committed() != total)
    world.violation("the ledger is not whole, or the job stopped early");
  if (done.hash != train::final_hash(cluster_.reference.at(total).parts()))
    world.violation("the job ends with another hash");
  if (done.stopped_early != (total < scenario.job.settings.epochs * scenario.steps_per_epoch))
    world.violation("the job does not say that it stopped early");
}

/// How many epochs the job has to run by what they came to, and whether `history` says the same.
int Floor::expected_epochs(const std::string& history) {
  const auto& job = cluster_.scenario.job;
  const bool tests = cluster_.scenario.test_samples > 0;
  double best = -1;
  int best_epoch = 0;
  int last = tests ? 0 : job.settings.epochs;
  for (const auto& [epoch, metrics] : cluster_.metrics) {
    if (!tests) break;
    last = epoch;
    if (metrics.at("test/accuracy") > best) best_epoch = epoch, best = metrics.at("test/accuracy");
    if (!job.stop_early.metric.empty() && epoch - best_epoch >= job.stop_early.patience) break;
  }
  const auto seen = train::decode_history(history).value();
  if (!job.keep_best.empty() && last > 0 &&
      (seen.kept.step != best_epoch * cluster_.scenario.steps_per_epoch || seen.kept.value != best))
    cluster_.world.violation("the driver takes another epoch for the best");
  return last;
}

}  // namespace troupe::sim
