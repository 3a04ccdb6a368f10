/// Commits, and what is done between them: evaluation, checkpoints, the final hash.
#include <algorithm>
#include <limits>
#include <utility>

#include "actors/train/driver/driver_machine.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::train {
void DriverMachine::to_members(const TrainerOrder& order, Actions& out) {
  for (const ActorId member : members_) out.push_back(SendOrder{member, order});
}

void DriverMachine::recovered(Instant now, Actions& out) {
  if (auto told = interruption_.end(generation_, members(), now)) out.push_back(*std::move(told));
}

// Steps.

void DriverMachine::report(const StepApplied& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  const bool runs = state_ == State::kRunning && is_member(from);
  if (!runs && !mutations_.accept_old_generation) return ignore("no steps run now");
  if (r.report.step != from.applied) {
    return ignore(describe(from) + " reports step " + std::to_string(r.report.step) + ", its next one is " +
                  std::to_string(from.applied));
  }
  if (failed(steps_.merge(r.report), out)) return;
  if (const std::int64_t steps = r.report.step + 1; proofs_.wants(steps)) {
    if (!agrees(from, steps, r.parts, out)) return;
    if (r.proven) proofs_.told_whole(steps);
  }
  ++from.applied;
  moved(now);
  recovered(now, out);
  commit(now, out);
}

/// Compares what trainers that hold the same steps say of their bits. False, and the job has failed, if they
/// are not the same and must be.
bool DriverMachine::agrees(const Trainer& from, std::int64_t step, const std::vector<PartHash>& parts,
                           Actions& out) {
  if (!config_.exact) return true;
  const auto proof = proofs_.differs(step, from.ready.actor, parts);
  if (!proof) return true;
  const auto other = trainers_.find(proof->from);
  const Trainer& peer = other == trainers_.end() ? from : other->second;
  const Trainer& newer = from.proven ? peer : from;
  const Trainer& older = from.proven ? from : peer;
  fail(describe(newer) + " has another state after " + std::to_string(step) + " steps than " +
           describe(older) + ", though both began with the same TrainState: " +
           first_difference(proof->parts, parts) + ". The job keeps state that its TrainState lacks",
       out,
       "add what changes while it trains (a member of the net, of the optimizer or of the job, a static "
       "variable) "
       "in the job's `void state(troupe::train::StateRegistry&, Net&, Optimizer&) const`");
  return false;
}

void DriverMachine::all_proven() {
  for (const ActorId member : members_) trainers_.at(member).proven = true;
}

/// A step is committed once every member has applied it.
void DriverMachine::commit(Instant now, Actions& out) {
  std::int64_t everyone = std::numeric_limits<std::int64_t>::max();
  std::int64_t someone = 0;
  for (const auto& [id, trainer] : trainers_) {
    if (!is_member(trainer) && !mutations_.accept_old_generation) continue;
    everyone = std::min(everyone, trainer.applied);
    someone = std::max(someone, trainer.applied);
  }
  const std::int64_t until = mutations_.commit_on_first_report ? someone : everyone;
  if (until <= committed()) return;
  agenda_.note_commits(until - committed(), now);
  while (committed() < until) {
    if (!commit_step(out)) return;
  }
  if (proofs_.prove(committed())) all_proven();
  failures_.committed();
  if (state_ == State::kRunning) proceed(now, out);
}

/// Commits the next step. False if the job has failed over it.
bool DriverMachine::commit_step(Actions& out) {
  auto outcome = steps_.commit(generation_);
  if (auto* failure = std::get_if<JobFailed>(&outcome)) return !failed(std::move(*failure), out);
  auto& [step, furthest] = std::get<StepLog::Committed>(outcome);
  // Trainers run no step behind one that stops the job.
  if (config_.not_finite == NotFinite::kStop && !is_finite(step.entry.slots))
    agenda_.end_early(committed(), true);
  out.push_back(std::move(step));
  if (furthest) {
    // A newcomer that helped to get further than ever shows that starting again works.
    for (const ActorId member : members_) {
      Trainer& trainer = trainers_.at(member);
      if (!std::exchange(trainer.made_progress, true)) trainer_pool_.failures = 0;
    }
    for (auto& [id, loader] : loaders_) {
      if (!std::exchange(loader.made_progress, true)) loader_pool_.failures = 0;
    }
  }
  if (config_.pieces() == 0 && evaluation_at(committed()) && committed() > agenda_.evaluated()) {
    evaluations_.begin(committed());
    finish_epoch(out);
  }
  return !over();
}

// Barriers and barrier tasks.

/// After a commit or a barrier task: the next barrier task, or more steps to run.
void DriverMachine::proceed(Instant now, Actions& out) {
  if (over()) return;
  const std::int64_t at = committed();
  barrier_task_ = agenda_.due(at, {evaluations_.is_best(at), evaluations_.lacks_metric()});
  if (evaluations_.lacks_metric() && barrier_task_ != BarrierTask::kCheckpoint) {
    const bool saved = checkpoints_.saved_step() == at;
    failed(evaluations_.why_it_lacks(saved ? std::optional(at) : std::nullopt), out);
    return;
  }
  if (barrier_task_ == BarrierTask::kNone && (agenda_.leave_at() || (following_ && following_->join_at))) {
    state_ = State::kRunning;
    widen(now, out);
    if (state_ != State::kRunning) return;
  }
  if (barrier_task_ != BarrierTask::kNone) {
    agenda_.grant_none(committed());
  } else {
    agenda_.grant(committed(), following_.has_value(), following_ ? following_->join_at : std::nullopt);
  }
  to_members(Committed{generation_, committed(), agenda_.limit(), evaluations_.told(committed())}, out);
  if (barrier_task_ != BarrierTask::kNone) return start_barrier_task(now, out);
  state_ = State::kRunning;
  moved(now);
}

void DriverMachine::start_barrier_task(Instant now, Actions& out) {
  state_ = State::kBarrier;
  moved(now);
  for (const ActorId member : members_) trainers_.at(member).barrier_task_done = false;
  proofs_.clear();
  if (barrier_task_ == BarrierTask::kHold) {
    const auto holders = config_.exact ? members_ : std::vector<ActorId>{members_.front()};
    out.push_back(Held{{committed(), lineage_, {}, holders}, history_now()});
    return;
  }
  if (barrier_task_ == BarrierTask::kFinish) {
    to_members(Finish{generation_}, out);
    return;
  }
  if (barrier_task_ == BarrierTask::kCheckpoint) {
    stored_.reset();
    for (const ActorId member : members_) {
      if (member == members_.front()) {
        out.push_back(SendOrder{member, WriteCheckpoint{generation_, committed(), history_now()}});
      } else if (!config_.exact && !config_.sharded) {
        trainers_.at(member).barrier_task_done = true;  // its bits are its own
      } else {
        out.push_back(SendOrder{member, ProveState{generation_, committed()}});
      }
    }
    return;
  }
  evaluations_.begin(committed());
  const auto leaves = collectives::deal_leaves(config_.logical_ranks, static_cast<int>(members_.size()));
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const std::int64_t begin = config_.pieces() * leaves[r].begin / config_.logical_ranks;
    const std::int64_t end = config_.pieces() * leaves[r].end / config_.logical_ranks;
    out.push_back(SendOrder{members_[r], Evaluate{generation_, evaluations_.under_way().epoch, begin, end}});
  }
}

bool DriverMachine::barrier_task_complete() const {
  return std::all_of(members_.begin(), members_.end(),
                     [&](ActorId member) { return trainers_.at(member).barrier_task_done; });
}

void DriverMachine::report(const EvaluationDone& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (state_ != State::kBarrier || barrier_task_ != BarrierTask::kEvaluate || !is_member(from) ||
      from.barrier_task_done) {
    return ignore("no evaluation waits for it");
  }
  recovered(now, out);
  from.barrier_task_done = true;
  evaluations_.add(r.pieces);
  if (!barrier_task_complete()) return;
  if (failed(evaluations_.sum_pieces(), out)) return;
  finish_epoch(out);
  proceed(now, out);
  widen(now, out);
}

void DriverMachine::finish_epoch(Actions& out) {
  const EpochDone& done = evaluations_.finish(steps_.epoch_figures(evaluations_.under_way().epoch));
  agenda_.evaluated(committed());
  if (done.ended) steps_.forget_epochs_before(done.epoch);
  out.push_back(done);
  if (const auto why = evaluations_.watch(agenda_.early_at().has_value())) {
    agenda_.end_early(committed(), false);
    out.push_back(Notice{*why, {}});
  }
}

/// As it must be in a manifest of the state as it is.
std::string DriverMachine::history_now() const {
  return evaluations_.history_with(steps_.figures_under_way());
}

void DriverMachine::report(const CheckpointWritten& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (state_ != State::kBarrier || barrier_task_ != BarrierTask::kCheckpoint || r.step != committed() ||
      from.rank != 0) {
    return ignore("no checkpoint of step " + std::to_string(r.step) + " is wanted");
  }
  if (!agrees(from, r.step, r.parts, out)) return;
  from.barrier_task_done = true;
  stored_ = CheckpointInfo{r.path, r.step, r.hash, history_now()};
  accept_checkpoint(now, out);
}

void DriverMachine::report(const StateProved& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (state_ != State::kBarrier || barrier_task_ != BarrierTask::kCheckpoint || r.step != committed() ||
      !is_member(from) || from.barrier_task_done) {
    return ignore("no proof of step " + std::to_string(r.step) + " is wanted");
  }
  if (!agrees(from, r.step, r.parts, out)) return;
  from.barrier_task_done = true;
  accept_checkpoint(now, out);
}

/// Once it is written and all hold what it holds. Only now may older ones go: those that this run did not
/// write only when it has written as many as are kept.
void DriverMachine::accept_checkpoint(Instant now, Actions& out) {
  if (!stored_ || !barrier_task_complete()) return;
  recovered(now, out);
  all_proven();
  agenda_.saved(stored_->step);
  out.push_back(AcceptCheckpoint{*stored_});
  const auto oldest = checkpoints_.accept(*stored_, evaluations_.is_best(stored_->step));
  evaluations_.forget_before(checkpoints_.oldest().step);
  stored_.reset();
  if (oldest) {
    out.push_back(SendOrder{members_.front(), PruneCheckpoints{generation_, *oldest, checkpoints_.best()}});
  }
  proceed(now, out);
  widen(now, out);
}

void DriverMachine::report(const PruneFailed& r, Trainer&, Instant, Actions& out) {
  out.push_back(Notice{"old checkpoints stay: " + r.reason, {}});
}

void DriverMachine::report(const CheckpointFailed& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (state_ != State::kBarrier || barrier_task_ != BarrierTask::kCheckpoint || r.step != committed() ||
      from.rank != 0) {
    return ignore("no checkpoint of step " + std::to_string(r.step) + " is wanted");
  }
  agenda_.saved(r.step);  // training goes on; the last good checkpoint stays valid
  checkpoints_.note_failure();
  out.push_back(Notice{"no checkpoint of step " + std::to_string(r.step) + ": " + r.reason, {}});
  proceed(now, out);
  widen(now, out);
}

void DriverMachine::report(const TrainerFinished& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (state_ != State::kBarrier || barrier_task_ != BarrierTask::kFinish || !is_member(from) ||
      from.barrier_task_done) {
    return ignore("nobody asked for the final state");
  }
  recovered(now, out);
  from.barrier_task_done = true;
  from.final_hash = r.hash;
  from.final_parts = r.parts;
  if (!agrees(from, r.steps, r.parts, out)) return;
  const bool same = !config_.exact || std::all_of(members_.begin(), members_.end(), [&](ActorId member) {
    const Trainer& trainer = trainers_.at(member);
    return !trainer.barrier_task_done || trainer.final_hash == r.hash;
  });
  if (r.steps != committed() || !same) return fail("trainers end with different states", out);
  if (!barrier_task_complete()) return;
  // Rank 0's, which also writes the checkpoints. Where bits may differ, nobody else has it.
  const Trainer& first = trainers_.at(members_.front());
  const auto holders = config_.exact ? members_ : std::vector<ActorId>{members_.front()};
  finish(first.final_hash, {r.steps, lineage_, first.final_parts, holders}, out);
}

}  // namespace troupe::train
