/// Trainer and loader processes.
#include <algorithm>

#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Worker::Worker(Cluster& in, Node& on, ProcessId as, std::int64_t cpus, const std::string& kind)
    : Hosted(in, on, as, kind + to_string(as).substr(0, 4), on.host), cpu_e4(cpus) {}

void Worker::start(ActorHandle<DriverActor> of) {
  turn_ = &this_actor();
  actor = turn_->address().actor;
  driver = of;
}

void Worker::later(Duration delay, const char* label, std::function<void()> what) {
  cluster.world.after(*this, delay, label, [this, what = std::move(what)] {
    if (turn_ != nullptr) turn_->run(what);
  });
}

// The actors in them.

TrainerActor::TrainerActor(ActorHandle<DriverActor> driver) {
  dynamic_cast<Trainer&>(Hosted::current()).start(driver);
}
TrainerActor::~TrainerActor() {
  dynamic_cast<Trainer&>(Hosted::current()).ended();
}
void TrainerActor::order(const train::TrainerOrder& order) {
  dynamic_cast<Trainer&>(Hosted::current()).on_order(order);
}

LoaderActor::LoaderActor(ActorHandle<DriverActor> driver) {
  auto& me = dynamic_cast<Worker&>(Hosted::current());
  me.start(driver);
  me.cluster.world.every(me, seconds(1), "~loader heartbeat", [&me] {
    me.driver.tell<&DriverActor::loader_lives>(me.actor, train::Progress{0, me.hung, "a batch"});
  });
  if (me.cluster.scenario.callers > 1 && me.cluster.world.chance(0.5))
    me.session().spawn_async<CallerActor>({.here = true});
}
LoaderActor::~LoaderActor() {
  dynamic_cast<Worker&>(Hosted::current()).ended();
}

Future<std::uint64_t> LoaderActor::batch(std::int64_t step, int leaf) {
  auto& me = dynamic_cast<Worker&>(Hosted::current());
  const auto& scenario = me.cluster.scenario;
  const std::int64_t steps = scenario.job.steps_per_epoch;
  const std::uint64_t indices = sampler(scenario.seed, static_cast<int>(step / steps), step % steps, leaf);
  Promise<std::uint64_t> made;
  me.hung = me.hung || me.hangs;
  if (me.hung) return made.future();
  me.later(me.cluster.world.between(microseconds(100), milliseconds(3)), "batch made",
           [made, indices]() mutable { made.set(indices); });
  return made.future();
}

Trainer::Trainer(Cluster& in, Node& on, ProcessId as)
    : Worker(in, on, as, cluster::kCpu, "trainer "),
      prefetcher_(in.scenario.job.logical_ranks, 2 * in.scenario.job.logical_ranks, seconds(2)) {}

void Trainer::start(ActorHandle<DriverActor> of) {
  Worker::start(of);
  machine = std::make_unique<train::TrainerMachine>(actor, cluster.scenario.mutations);
  cluster.world.every(*this, seconds(1), "~trainer heartbeat", [this] {
    driver.tell<&DriverActor::report>(machine->heartbeat());
    if (turn_ != nullptr) turn_->run([this] { pump_batches(); });
  });
}

void Trainer::on_order(const train::TrainerOrder& order) {
  carry(machine->on(order));
  if (machine->plan().generation != planned_) {
    planned_ = machine->plan().generation;
    prefetcher_.restart(machine->leaves(), machine->plan().first_step, machine->plan().total_steps);
  }
  pump();
}

void Trainer::carry(const train::TrainerOutput& out) {
  if (!out.reason.empty()) cluster.world.trace(name, out.reason);
  if (out.abort_group && group) group->abort(host, out.reason);
  if (out.loaders_changed) {
    prefetcher_.set_loaders(machine->loaders());
    pump_batches();
  }
  for (const train::TrainerReport& said : out.reports) {
    if (const auto* q = std::get_if<train::TrainerQuiesced>(&said);
        q != nullptr && q->steps != train::kNoState) {
      if (state.hash() != cluster.reference[q->steps]) {
        cluster.world.violation(name + " holds another state after " + std::to_string(q->steps) + " steps");
      }
    }
    driver.tell<&DriverActor::report>(said);
  }
}

void Trainer::pump() {
  if (busy) return;
  task = machine->take();
  if (std::holds_alternative<train::Wait>(task)) return;
  busy = true;
  ++task_number;
  computing_ = false;
  std::visit([this](const auto& t) { perform(t); }, task);
}

void Trainer::finish(std::uint64_t which, const train::TrainerResult& result) {
  if (!busy || task_number != which) return;
  busy = false;
  carry(machine->done(result));
  pump();
}

/// The group's abort word was seen by whoever waits in the group.
void Trainer::abort_local() {
  const bool waits_in_group = std::holds_alternative<train::FormGroup>(task) ||
                              std::holds_alternative<train::TransferState>(task) ||
                              std::holds_alternative<train::ComputeStep>(task);
  if (busy && waits_in_group && !hung) finish(task_number, train::TaskAborted{"the group was aborted", {}});
}

void Trainer::end_after(Duration delay, const char* label, std::function<train::TrainerResult()> result) {
  later(delay, label, [this, which = task_number, result = std::move(result)] {
    if (busy && task_number == which) finish(which, result());
  });
}

void Trainer::time_out_after(Duration delay) {
  later(delay, "time out", [this, which = task_number] {
    if (!busy || task_number != which || hung) return;
    const auto* step = std::get_if<train::ComputeStep>(&task);
    if (step != nullptr && !computing_)
      return time_out_after(seconds(30));  // it waits for batches, not for ranks
    const auto suspects =
        group ? group->missing(machine->rank(), step == nullptr ? -1 : step->step) : std::vector<ActorId>{};
    finish(which, train::TaskAborted{"timed out", suspects});
  });
}

void Trainer::perform(const train::FormGroup& t) {
  auto& shared = cluster.groups[t.plan.generation];
  if (!shared) shared = std::make_shared<Group>(cluster, t.plan);
  group = shared;
  time_out_after(seconds(20));
  // Its abort word is in a region that all members of this host share.
  const auto asked = runtime->ask_for_region("group " + to_string(t.plan.generation), 4096, name, true).state;
  const auto asking = expect("a region", seconds(80));
  asked->on_ready([this, asked, asking, which = task_number, context = turn_] {
    met(asking);
    context->run([this, asked, which] {
      if (!busy || task_number != which) return;
      const auto& answer = asked->outcome();
      if (!answer.ok()) return finish(which, train::TaskAborted{answer.error().message(), {}});
      group->join(machine->rank(), *this);
    });
  });
}

void Trainer::perform(const train::TransferState&) {
  time_out_after(seconds(30));
  group->transfer(machine->rank());
}

void Trainer::finish_receive(std::uint64_t which) {
  ++cluster.transfers;
  if (!cluster.scenario.mutations.install_in_place) state = spare;
  finish(which, train::StateReady{});
}

void Trainer::perform(const train::MakeInitialState&) {
  end_after(cluster.world.between(milliseconds(1), milliseconds(5)), "initial state", [this] {
    state = initial_state(cluster.scenario.seed);
    return train::StateReady{};
  });
}

void Trainer::perform(const train::LoadCheckpoint& t) {
  end_after(cluster.world.between(milliseconds(1), milliseconds(20)), "load checkpoint",
            [this, path = t.path, hash = t.hash]() -> train::TrainerResult {
              const Checkpoint& file = cluster.files.at(path);
              if (file.corrupt) return train::TaskAborted{"a checksum does not hold", {}};
              if (file.missing_on == host) return train::TaskAborted{"no such file", {}};
              if (file.state.hash() != hash) return train::TaskAborted{"it is another one", {}};
              state = file.state;
              return train::StateReady{};
            });
}

void Trainer::perform(const train::ComputeStep&) {
  time_out_after(seconds(30));
  pump_batches();
  compute_when_fed();
}

void Trainer::compute_when_fed() {
  const auto* t = std::get_if<train::ComputeStep>(&task);
  if (!busy || computing_ || t == nullptr || !prefetcher_.ready(t->step)) return;
  computing_ = true;
  machine->computes("its leaves");
  hung = hangs;
  if (hung) return;
  later(cluster.world.between(milliseconds(1), milliseconds(6)), "computed",
        [this, which = task_number, step = t->step, leaves = t->leaves] {
          if (!busy || task_number != which) return;
          std::vector<std::uint64_t> gradients;
          for (int leaf = leaves.begin; leaf < leaves.end; ++leaf) {
            const std::uint64_t used = batches_.at({step, leaf});
            gradients.push_back(gradient(state, step, leaf, used));
          }
          auto& slots = group->slots[step];
          if (slots.empty()) slots.resize(group->plan.logical_ranks);
          for (int leaf = leaves.begin; leaf < leaves.end; ++leaf) {
            slots[leaf] = {leaf, batches_.at({step, leaf}), static_cast<double>(leaf), 1, {}};
          }
          machine->waits();
          group->contribute(machine->rank(), step,
                            partial_sums(gradients, leaves, group->plan.logical_ranks));
        });
}

void Trainer::perform(const train::ApplyStep& t) {
  end_after(cluster.world.between(microseconds(100), milliseconds(2)), "applied",
            [this, step = t.step, prove = t.prove] {
              state.apply(step, sum);
              if (state.hash() != cluster.reference[step + 1]) {
                cluster.world.violation(name + " has another state after step " + std::to_string(step));
              }
              prefetcher_.release(step);
              std::erase_if(batches_, [&](const auto& batch) { return batch.first.first <= step; });
              return train::Applied{prove ? state.parts() : std::vector<train::PartHash>()};
            });
}

void Trainer::perform(const train::HashState&) {
  end_after(cluster.world.between(microseconds(100), milliseconds(2)), "hashed",
            [this] { return train::Hashed{state.hash()}; });
}

void Trainer::perform(const train::HashParts&) {
  end_after(cluster.world.between(microseconds(100), milliseconds(2)), "hashed",
            [this] { return train::PartsHashed{state.parts()}; });
}

void Trainer::perform(const train::RunPrune& t) {
  end_after(microseconds(100), "pruned", [this, order = t.order] {
    auto& accepted = cluster.accepted;
    const auto kept = std::find_if(accepted.begin(), accepted.end(),
                                   [&](const auto& c) { return c.path == order.oldest_kept; });
    if (kept != accepted.end())
      accepted.erase(
          std::remove_if(accepted.begin(), kept, [&](const auto& c) { return c.path != order.spared; }),
          kept);
    return train::TaskDone{};
  });
}

void Trainer::perform(const train::RunEvaluation& t) {
  end_after(cluster.world.between(milliseconds(1), milliseconds(10)), "evaluated", [this, e = t.order] {
    train::Evaluated done;
    for (auto piece = e.begin; piece < e.end; ++piece)
      done.pieces.push_back(
          {piece, 0, 1, {{"accuracy", static_cast<double>(evaluate(state, piece, piece + 1)), 1}}});
    return done;
  });
}

void Trainer::perform(const train::RunCheckpoint& t) {
  end_after(cluster.world.between(milliseconds(1), milliseconds(20)), "checkpoint",
            [this, step = t.order.step]() -> train::TrainerResult {
              if (cluster.disk_full) return train::TaskAborted{"the disk is full", {}};
              const std::string path = "step-" + std::to_string(step) + "-by-" + name;
              cluster.files[path] = {state, step};
              return train::CheckpointStored{path, state.hash(), state.parts()};
            });
}

// Batches.

void Trainer::pump_batches() {
  for (const train::BatchRequest& request : prefetcher_.requests(now())) {
    const auto home = cluster.homes.find(request.loader);
    if (home == cluster.homes.end()) continue;
    const auto asking = expect("a batch", seconds(45));
    ActorHandle<LoaderActor>(runtime.get(), home->second)
        .call<&LoaderActor::batch>(request.step, request.leaf)
        .then([this, asking, request](Result<std::uint64_t> made) {
          met(asking);
          if (made) {
            on_batch(request.step, request.leaf, *made);
          } else {
            prefetcher_.failed(request.step, request.leaf);
          }
        });
  }
}

void Trainer::on_batch(std::int64_t step, int leaf, std::uint64_t indices_hash) {
  if (!prefetcher_.arrived(step, leaf)) return;
  batches_[{step, leaf}] = indices_hash;
  pump_batches();
  compute_when_fed();
}

}  // namespace troupe::sim
