/// Commits, and what is done between them: evaluations, checkpoints, holds, the final hash.
#include <algorithm>
#include <limits>
#include <utility>

#include "actors/train/driver/driver_machine.hpp"

namespace troupe::train {

void DriverMachine::to_members(const TrainerOrder& order) {
  for (const ActorId member : members_) out_.push_back(SendOrder{member, order});
}

void DriverMachine::recovered() {
  if (auto told = interruption_.end(generation_, members(), now_)) out_.push_back(*std::move(told));
}

/// Whose state is the job's: where bits may differ, nobody has rank 0's but itself.
std::vector<ActorId> DriverMachine::holders() const {
  return config_->exact ? members_ : std::vector<ActorId>{members_.front()};
}

EndState DriverMachine::held_state(std::vector<PartHash> parts) const {
  const bool in_shards = config_->sharded && members() > 1;
  return {committed(), lineage_, std::move(parts), in_shards ? members_ : holders(), in_shards};
}

// Steps.

void DriverMachine::report(const StepApplied& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  const bool runs = state_ == State::kRunning && is_member(from);
  if (!runs && !mutations_.accept_old_generation) return ignore("no steps run now");
  if (r.report.step != from.applied) {
    return ignore(describe(from) + " reports step " + std::to_string(r.report.step) + ", its next one is " +
                  std::to_string(from.applied));
  }
  if (failed(steps_.merge(r.report))) return;
  if (const std::int64_t steps = r.report.step + 1; proofs_.wants(steps)) {
    if (!agrees(proofs_, from, steps, r.parts)) return;
    if (r.proven) proofs_.told_whole(steps);
  }
  ++from.applied;
  extend_deadlines();
  recovered();
  commit();
}

/// Compares what trainers that hold the same steps say of their bits. False, and the job has failed, if they
/// are not the same and must be.
bool DriverMachine::agrees(StateProofs& proofs, const TrainerSeat& from, std::int64_t steps,
                           const std::vector<PartHash>& parts) {
  if (!config_->exact) return true;
  const auto proof = proofs.differs(steps, from.ready.actor, parts);
  if (!proof) return true;
  const TrainerSeat* other = roster_.find(proof->from);
  const TrainerSeat& peer = other == nullptr ? from : *other;
  const TrainerSeat& newer = from.proven ? peer : from;
  const TrainerSeat& older = from.proven ? from : peer;
  fail(describe(newer) + " has another state after " + std::to_string(steps) + " steps than " +
           describe(older) + ", though both began with the same TrainState: " +
           first_difference(proof->parts, parts) + ". The job keeps state that its TrainState lacks",
       "add what changes while it trains (a member of the net, of the optimizer or of the job, a static "
       "variable) in the job's `void state(troupe::train::StateRegistry&, Net&, Optimizer&) const`, or by "
       "s.state.add(...) in setup()");
  return false;
}

void DriverMachine::all_proven() {
  for (const ActorId member : members_) roster_.at(member).proven = true;
}

/// A step is committed once every member has applied it.
void DriverMachine::commit() {
  std::int64_t everyone = std::numeric_limits<std::int64_t>::max();
  std::int64_t someone = 0;
  for (const auto& [id, trainer] : roster_.trainers()) {
    if (!is_member(trainer) && !mutations_.accept_old_generation) continue;
    everyone = std::min(everyone, trainer.applied);
    someone = std::max(someone, trainer.applied);
  }
  const std::int64_t until = mutations_.commit_on_first_report ? someone : everyone;
  if (until <= committed()) return;
  agenda_.note_commits(until - committed(), now_);
  while (committed() < until) {
    if (!commit_step()) return;
  }
  if (proofs_.prove(committed())) all_proven();
  failures_.committed();
  if (state_ == State::kRunning) proceed();
}

/// Commits the next step. False if the job has failed over it.
bool DriverMachine::commit_step() {
  auto outcome = steps_.commit(generation_);
  if (auto* failure = std::get_if<JobFailed>(&outcome)) return !failed(std::move(*failure));
  auto& [step, furthest] = std::get<StepLog::Committed>(outcome);
  // Trainers run no step behind one that stops the job.
  if (config_->not_finite == NotFinite::kStop && !is_finite(step.entry.slots))
    agenda_.end_early(committed(), true);
  out_.push_back(std::move(step));
  if (furthest) roster_.made_progress(members_);
  if (config_->pieces() == 0 && evaluation_at(committed()) && committed() > agenda_.evaluated()) {
    evaluations_.begin(committed());
    finish_epoch();
  }
  return !over();
}

void DriverMachine::finish_epoch() {
  const EpochDone& done = evaluations_.finish(steps_.epoch_figures(evaluations_.under_way().epoch));
  agenda_.evaluated(committed());
  if (done.ended) steps_.forget_epochs_before(done.epoch);
  out_.push_back(done);
  if (!saving_.is_on()) evaluations_.forget_lost_best(committed());
  if (const auto why = evaluations_.watch(agenda_.early_at().has_value())) {
    agenda_.end_early(committed(), false);
    out_.push_back(Notice{*why, {}});
  }
}

/// By keep_best, where the state as it is has come to the best value.
std::optional<Best> DriverMachine::best_now() const {
  if (!evaluations_.is_best(committed())) return std::nullopt;
  return evaluations_.to_keep();
}

/// As it must be in a manifest of the state as it is.
std::string DriverMachine::history_now() const {
  return evaluations_.history_with(committed(), steps_.figures_under_way());
}

// Barriers and barrier tasks.

/// After a commit or a barrier: the next barrier, or more steps to run.
void DriverMachine::proceed() {
  if (over()) return;
  const std::int64_t at = committed();
  BarrierTask task = agenda_.due(at, {evaluations_.is_best(at), evaluations_.lacks_metric()});
  if (waits_for_checkpoint(task)) task = BarrierTask::kWritten;
  barrier_.end();
  if (evaluations_.lacks_metric() && task != BarrierTask::kCheckpoint && task != BarrierTask::kWritten) {
    const bool saved = checkpoints_.saved_step() == at;
    failed(evaluations_.why_it_lacks(saved ? std::optional(at) : std::nullopt));
    return;
  }
  if (task == BarrierTask::kNone && (agenda_.leave_at() || following_.join_at())) {
    state_ = State::kRunning;
    widen();
    if (state_ != State::kRunning) return;
  }
  if (task == BarrierTask::kNone) {
    agenda_.grant(at, following_.is_on(), following_.join_at());
  } else {
    agenda_.grant_none(at);
  }
  to_members(Committed{generation_, at, agenda_.limit(), evaluations_.told(at)});
  state_ = task == BarrierTask::kNone ? State::kRunning : State::kBarrier;
  extend_deadlines();
  if (task != BarrierTask::kNone) start_barrier(task);
}

/// One is under way, and has to be a file first: there is one at a time, and a job ends with what it was to
/// save. With shards who joins or leaves does that where a file has the state.
bool DriverMachine::waits_for_checkpoint(BarrierTask next) const {
  if (!saving_.is_on() || next == BarrierTask::kEvaluate) return false;
  if (next == BarrierTask::kCheckpoint || next == BarrierTask::kFinish || evaluations_.lacks_metric())
    return true;
  if (!config_->sharded || saving_.order().step != committed()) return false;
  const bool joins = std::any_of(roster_.trainers().begin(), roster_.trainers().end(),
                                 [this](const auto& one) { return is_spare(one.second); });
  return agenda_.leave_at() || (joins && staying_members() < config_->trainers);
}

void DriverMachine::start_barrier(BarrierTask task) {
  barrier_.begin(task, members_);
  proofs_.clear();
  if (!saving_.is_on()) evaluations_.forget_lost_best(committed());
  switch (task) {
    case BarrierTask::kNone:
    case BarrierTask::kWritten:
      return;
    case BarrierTask::kHold:
      out_.push_back(Held{held_state({}), history_now()});
      return;
    case BarrierTask::kFinish:
      return to_members(Finish{generation_});
    case BarrierTask::kCheckpoint:
      if (!roster_.at(members_.front()).ready.has_folder)
        return no_checkpoint(committed(), "no trainer that is left sees the folder");
      saving_.begin({members_.front(), generation_, committed(), history_now(), members_, best_now()});
      out_.push_back(SendOrder{members_.front(), WriteCheckpoint{generation_, committed(), history_now()}});
      for (std::size_t r = 1; r < members_.size(); ++r) {
        if (config_->exact || config_->sharded) {
          out_.push_back(SendOrder{members_[r], ProveState{generation_, committed()}});
        } else {
          barrier_.done(members_[r]);  // its bits are its own
        }
      }
      return;
    case BarrierTask::kEvaluate:
      break;
  }
  evaluations_.begin(committed());
  const auto leaves = collectives::deal_leaves(config_->logical_ranks, members());
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const std::int64_t begin = config_->pieces() * leaves[r].begin / config_->logical_ranks;
    const std::int64_t end = config_->pieces() * leaves[r].end / config_->logical_ranks;
    out_.push_back(SendOrder{members_[r], Evaluate{generation_, evaluations_.under_way().epoch, begin, end}});
  }
}

void DriverMachine::report(const EvaluationDone& r, TrainerSeat&) {
  if (!current(r.generation)) return;
  if (!barrier_.waits_for(BarrierTask::kEvaluate, r.actor)) return ignore("no evaluation waits for it");
  recovered();
  evaluations_.add(r.pieces);
  if (!barrier_.done(r.actor)) return;
  if (failed(evaluations_.sum_pieces())) return;
  finish_epoch();
  proceed();
  widen();
}

void DriverMachine::report(const CheckpointCopied& r, TrainerSeat&) {
  if (!current(r.generation)) return;
  if (!barrier_.waits_for(BarrierTask::kCheckpoint, r.actor) || !saving_.is_of(r.actor, r.generation, r.step))
    return ignore("no copy of step " + std::to_string(r.step) + " is wanted");
  if (barrier_.done(r.actor)) copied();
}

void DriverMachine::report(const StateProved& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (!barrier_.waits_for(BarrierTask::kCheckpoint, r.actor) || saving_.is_by(r.actor) ||
      r.step != committed())
    return ignore("no proof of step " + std::to_string(r.step) + " is wanted");
  if (!saved_agrees(from, r.step, r.parts)) return;
  if (barrier_.done(r.actor)) copied();
}

/// A file that is refuted must not be what a resume finds.
bool DriverMachine::saved_agrees(const TrainerSeat& from, std::int64_t step,
                                 const std::vector<PartHash>& parts) {
  const auto before = static_cast<std::ptrdiff_t>(out_.size());
  if (agrees(saving_.proofs(), from, step, parts)) return true;
  if (saving_.file()) out_.insert(out_.begin() + before, DiscardCheckpoint{saving_.file()->first});
  return false;
}

/// It is on its way to the disk, and steps go on.
void DriverMachine::copied() {
  recovered();
  agenda_.saved(saving_.order().step);
  saving_.copied();
  accept_checkpoint();
  proceed();
  widen();
}

/// In whatever generation: the steps in it are committed, and stay so.
void DriverMachine::report(const CheckpointWritten& r, TrainerSeat& from) {
  if (!saving_.is_of(r.actor, r.generation, r.step))
    return ignore("no checkpoint of step " + std::to_string(r.step) + " is wanted");
  if (saving_.is_given_up()) return end_checkpoint();
  saving_.written(r.path, r.hash);
  if (!saved_agrees(from, r.step, r.parts)) return;
  accept_checkpoint();
  if (!saving_.is_on()) end_checkpoint();
}

/// Once it is written, and all held what is.
void DriverMachine::accept_checkpoint() {
  const auto stored = saving_.complete();
  if (!stored) return;
  const CheckpointUnderWay::Order order = saving_.order();
  saving_.end();
  for (const ActorId member : order.members) {
    if (TrainerSeat* seat = roster_.find(member)) seat->proven = true;
  }
  out_.push_back(AcceptCheckpoint{*stored});
  if (order.best) evaluations_.best_is_file(*order.best);
  const auto oldest = checkpoints_.accept(*stored, order.best.has_value());
  evaluations_.forget_before(checkpoints_.oldest().step);
  if (oldest)
    out_.push_back(SendOrder{order.writer, PruneCheckpoints{generation_, *oldest, checkpoints_.best()}});
}

/// Nobody writes any more: what waited for that goes on.
void DriverMachine::end_checkpoint() {
  saving_.end();
  const bool waits = barrier_.is(BarrierTask::kCheckpoint) || barrier_.is(BarrierTask::kWritten);
  if (state_ == State::kBarrier && waits) proceed();
  widen();
}

void DriverMachine::report(const PruneFailed& r, TrainerSeat&) {
  out_.push_back(Notice{"old checkpoints stay: " + r.reason, {}});
}

void DriverMachine::report(const CheckpointFailed& r, TrainerSeat&) {
  if (!saving_.is_of(r.actor, r.generation, r.step))
    return ignore("no checkpoint of step " + std::to_string(r.step) + " is wanted");
  if (saving_.is_given_up()) return end_checkpoint();
  no_checkpoint(r.step, r.reason);
}

/// Training goes on; the last good checkpoint stays valid.
void DriverMachine::no_checkpoint(std::int64_t step, const std::string& why) {
  agenda_.saved(step);
  checkpoints_.note_failure();
  out_.push_back(Notice{"no checkpoint of step " + std::to_string(step) + ": " + why, {}});
  end_checkpoint();
}

void DriverMachine::report(const TrainerFinished& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (!barrier_.waits_for(BarrierTask::kFinish, r.actor)) return ignore("nobody asked for the final state");
  recovered();
  if (!agrees(proofs_, from, r.steps, r.parts)) return;
  const bool same = barrier_.finish(r.actor, r.hash, r.parts);
  if (r.steps != committed() || (config_->exact && !same)) return fail("trainers end with different states");
  if (barrier_.done(r.actor)) finish(barrier_.hash(), held_state(barrier_.parts()));
}

}  // namespace troupe::train
