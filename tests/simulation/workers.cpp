/// Trainer and loader processes.
#include <algorithm>

#include "runtime/wire/codec.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Worker::Worker(Cluster& in, Node& on, ProcessId as, std::int64_t cpus, const std::string& kind)
    : Hosted(in, on, as, kind + to_string(as).substr(0, 4), on.host), cpu_e4(cpus) {}

void Worker::on_control(const wire::Control& message) {
  if (const auto* configure = std::get_if<wire::Configure>(&message)) {
    job = configure->job;
    // It loads its libraries.
    cluster.world.after(*this, cluster.world.between(milliseconds(5), milliseconds(100)), "worker up",
                        [this] {
                          to_node("hello", wire::Hello{});
                          start_pulse();
                        });
  } else if (const auto* here = std::get_if<wire::StartActorHere>(&message)) {
    actor = here->actor;
    const auto decoded = wire::decode<StartArgs>(here->args);
    if (!decoded) return cluster.world.violation("a constructor's arguments do not decode");
    args = *decoded;
    start();
    to_node("actor up", wire::ActorUp{actor});
  } else if (const auto* stop = std::get_if<wire::StopActor>(&message)) {
    to_node("actor ended", wire::ActorEnded{stop->actor, stop->reason});
  } else {
    Hosted::on_control(message);
  }
}

Trainer::Trainer(Cluster& in, Node& on, ProcessId as)
    : Worker(in, on, as, cluster::kCpu, "trainer "),
      prefetcher_(in.scenario.job.logical_ranks, 2 * in.scenario.job.logical_ranks, seconds(2)) {}

void Trainer::report(const train::TrainerReport& report, const char* label) {
  tell(args.driver, label, [report](Hosted& to, const FramePtr&) { static_cast<Driver&>(to).on(report); });
}

void Trainer::start() {
  machine = std::make_unique<train::TrainerMachine>(actor, cluster.scenario.mutations);
  cluster.world.every(*this, seconds(1), "~trainer heartbeat", [this] {
    report(train::TrainerHeartbeat{actor}, "~trainer lives");
    pump_batches();
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
    report(said, "report");
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
  if (busy && waits_in_group) finish(task_number, train::TaskAborted{"the group was aborted", {}});
}

void Trainer::end_after(Duration delay, const char* label, std::function<train::TrainerResult()> result) {
  cluster.world.after(*this, delay, label, [this, which = task_number, result = std::move(result)] {
    if (busy && task_number == which) finish(which, result());
  });
}

void Trainer::time_out_after(Duration delay) {
  cluster.world.after(*this, delay, "time out", [this, which = task_number] {
    if (!busy || task_number != which) return;
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
  const std::uint64_t request = next_request();
  ask("region", request, wire::RegionAsk{request, "group " + to_string(t.plan.generation), 4096, name, true},
      [this, which = task_number](const wire::Answer& answer) {
        if (!busy || task_number != which) return;
        if (!answer.ok) return finish(which, train::TaskAborted{answer.error.message(), {}});
        group->join(machine->rank(), *this);
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
  cluster.world.after(*this, cluster.world.between(milliseconds(1), milliseconds(6)), "computed",
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
                        group->contribute(machine->rank(), step,
                                          partial_sums(gradients, leaves, group->plan.logical_ranks));
                      });
}

void Trainer::perform(const train::ApplyStep& t) {
  end_after(cluster.world.between(microseconds(100), milliseconds(2)), "applied", [this, step = t.step, prove = t.prove] {
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
  end_after(microseconds(100), "pruned", [this, path = t.order.oldest_kept] {
    auto& accepted = cluster.accepted;
    const auto kept = std::find_if(accepted.begin(), accepted.end(), [&](const auto& c) { return c.path == path; });
    if (kept != accepted.end()) accepted.erase(accepted.begin(), kept);
    return train::TaskDone{};
  });
}

void Trainer::perform(const train::RunEvaluation& t) {
  end_after(cluster.world.between(milliseconds(1), milliseconds(10)), "evaluated", [this, e = t.order] {
    train::Evaluated done;
    for (auto piece = e.begin; piece < e.end; ++piece)
      done.pieces.push_back({piece, 0, 1, evaluate(state, piece, piece + 1), 0.0});
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
  for (const train::BatchRequest& request : prefetcher_.requests(cluster.world.now())) {
    const auto home = cluster.homes.find(request.loader);
    if (home == cluster.homes.end()) continue;
    call(
        home->second.home(), "batch request",
        [step = request.step, leaf = request.leaf](Hosted& to, const FramePtr& asked_for) {
          static_cast<Loader&>(to).on_request(asked_for, step, leaf);
        },
        [this, step = request.step, leaf = request.leaf](const Frame& reply) {
          if ((reply.header.flags & wire::kFlagError) != 0) return prefetcher_.failed(step, leaf);
          on_batch(step, leaf, std::any_cast<std::uint64_t>(reply.value));
        });
  }
}

void Trainer::on_batch(std::int64_t step, int leaf, std::uint64_t indices_hash) {
  if (!prefetcher_.arrived(step, leaf)) return;
  batches_[{step, leaf}] = indices_hash;
  pump_batches();
  compute_when_fed();
}

Loader::Loader(Cluster& in, Node& on, ProcessId as) : Worker(in, on, as, cluster::kCpu / 2, "loader ") {}

void Loader::start() {
  cluster.world.every(*this, seconds(1), "~loader heartbeat", [this] {
    tell(args.driver, "~loader lives", [a = actor](Hosted& to, const FramePtr&) {
      static_cast<Driver&>(to).on(train::LoaderHeartbeat{a});
    });
  });
}

void Loader::on_request(const FramePtr& asked_for, std::int64_t step, int leaf) {
  const auto& config = cluster.scenario.job;
  const std::uint64_t indices =
      sampler(cluster.scenario.seed, static_cast<int>(step / config.steps_per_epoch),
              step % config.steps_per_epoch, leaf);
  cluster.world.after(*this, cluster.world.between(microseconds(100), milliseconds(3)), "batch made",
                      [this, asked_for, indices] { reply(*asked_for, indices); });
}

}  // namespace troupe::sim
