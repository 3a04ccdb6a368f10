#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

Group::Group(Cluster& in, train::GenerationPlan with)
    : cluster(in), plan(std::move(with)), ranks(plan.members.size()) {}

bool Group::reaches(int from, int to) const {
  return cluster.world.reachable(ranks[from].trainer->host, ranks[to].trainer->host);
}

/// Whom `rank` waits for: those that are not here, have not contributed to `step`, or cannot be heard.
std::vector<ActorId> Group::missing(int rank, std::int64_t step) const {
  std::vector<ActorId> who;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    if (r == rank) continue;
    const auto round = rounds.find(step);
    const bool there = ranks[r].trainer != nullptr &&
                       (step < 0 || (round != rounds.end() && round->second.partials.contains(r)));
    if (!there || !reaches(r, rank)) who.push_back(plan.members[r].actor);
  }
  return who;
}

void Group::join(int rank, Trainer& trainer) {
  ranks[rank].trainer = &trainer;
  if (ranks[rank].aborted) return trainer.abort_local();
  for (const Rank& r : ranks) {
    if (r.trainer == nullptr) return;
  }
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) complete_forming(r);
}

void Group::complete_forming(int rank) {
  Trainer& trainer = *ranks[rank].trainer;
  const std::uint64_t task = trainer.task_number;
  cluster.world.after(trainer, cluster.world.between(microseconds(100), milliseconds(3)), "formed",
                      [this, self = trainer.group, rank, task, &trainer] {
                        if (ranks[rank].aborted || !trainer.busy || trainer.task_number != task) return;
                        if (missing(rank, -1).empty()) return trainer.finish(task, train::TaskDone{});
                        cluster.world.after(trainer, milliseconds(100), "form again",
                                            [this, self, rank, task, &trainer] {
                                              if (trainer.busy && trainer.task_number == task)
                                                complete_forming(rank);
                                            });
                      });
}

void Group::contribute(int rank, std::int64_t step, std::vector<std::uint64_t> partials) {
  Round& round = rounds[step];
  round.partials[rank] = std::move(partials);
  if (round.partials.size() < ranks.size()) return;
  std::vector<std::uint64_t> all;
  std::vector<collectives::LeafInterval> intervals;
  for (const auto& [r, sums] : round.partials) {
    all.insert(all.end(), sums.begin(), sums.end());
    const auto nodes = collectives::canonical_nodes(plan.members[r].leaves, plan.logical_ranks);
    intervals.insert(intervals.end(), nodes.begin(), nodes.end());
  }
  round.sum = sum_partials(std::move(all), intervals, plan.logical_ranks);
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r)
    complete_round(r, step, ranks[r].trainer->task_number);
}

void Group::complete_round(int rank, std::int64_t step, std::uint64_t task) {
  Trainer& trainer = *ranks[rank].trainer;
  cluster.world.after(trainer, cluster.world.between(microseconds(20), milliseconds(2)), "reduced",
                      [this, self = trainer.group, rank, step, task, &trainer] {
                        if (ranks[rank].aborted || !trainer.busy || trainer.task_number != task) return;
                        if (!missing(rank, step).empty()) return complete_round(rank, step, task);
                        trainer.sum = rounds[step].sum;
                        trainer.finish(task, train::Reduced{slots[step]});
                      });
}

/// Called by source and receivers when they are ready for it; words flow once both are.
void Group::transfer(int rank) {
  ranks[rank].wants_transfer = true;
  if (!ranks[plan.source].wants_transfer) return;
  for (const int r : plan.receivers) {
    if (ranks[r].wants_transfer && (r == rank || rank == plan.source)) {
      receive_word(r, 0, ranks[r].trainer->task_number);
    }
  }
}

void Group::receive_word(int rank, int word, std::uint64_t task) {
  Trainer& to = *ranks[rank].trainer;
  cluster.world.after(to, cluster.world.between(microseconds(100), milliseconds(4)), "word",
                      [this, self = to.group, rank, word, task, &to] {
                        Trainer& from = *ranks[plan.source].trainer;
                        if (ranks[rank].aborted || !to.busy || to.task_number != task) return;
                        if (!from.alive)
                          return;  // nothing more comes; an abort or the deadline ends the wait
                        if (from.stopped || !reaches(plan.source, rank))
                          return receive_word(rank, word, task);
                        TrainState& into = cluster.scenario.mutations.install_in_place ? to.state : to.spare;
                        into.words[word] = from.state.words[word];
                        if (word + 1 < TrainState::kWords) return receive_word(rank, word + 1, task);
                        ranks[rank].transferred = true;
                        to.finish_receive(task);
                        for (const int r : plan.receivers) {
                          if (!ranks[r].transferred) return;
                        }
                        cluster.world.send(to, from, "sent all", [this, self, &from] {
                          const auto* doing = std::get_if<train::TransferState>(&from.task);
                          if (from.busy && doing != nullptr && doing->generation == plan.generation &&
                              !ranks[plan.source].aborted) {
                            from.finish(from.task_number, train::TaskDone{});
                          }
                        });
                      });
}

void Group::abort(int host, const std::string& reason) {
  cluster.world.trace("group " + to_string(plan.generation), "aborted: " + reason);
  for (Rank& rank : ranks) {
    Trainer* trainer = rank.trainer;
    if (trainer == nullptr) {
      rank.aborted = true;  // seen when it joins
      continue;
    }
    if (trainer->host != host && !cluster.world.reachable(host, trainer->host)) continue;
    const Duration delay = trainer->host == host ? cluster.world.between(microseconds(1), milliseconds(1))
                                                 : cluster.world.between(microseconds(100), milliseconds(5));
    cluster.world.after(*trainer, delay, "abort word", [this, self = trainer->group, &rank, trainer] {
      if (std::exchange(rank.aborted, true)) return;
      if (trainer->group.get() == this) trainer->abort_local();
    });
  }
}

}  // namespace troupe::sim
