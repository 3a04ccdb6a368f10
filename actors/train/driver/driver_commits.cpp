/// Commits, and what is done between them: evaluation, checkpoints, the final hash.
#include <algorithm>
#include <limits>
#include <utility>

#include "actors/train/driver/driver_machine.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::train {
namespace {

constexpr int kAheadOfJoin = 2;  ///< steps: the next can be computed while one is being committed
/// From here on a step is granted after the commit before it: that wait is nothing beside the step, and a
/// stop ends after the step under way.
constexpr Duration kLongStep = std::chrono::milliseconds(100);

}  // namespace

void DriverMachine::to_members(const TrainerOrder& order, Actions& out) {
  for (const ActorId member : members_) out.push_back(SendOrder{member, order});
}

void DriverMachine::recovered(Instant now, Actions& out) {
  if (!episode_) return;
  out.push_back(Recovered{generation_, episode_->cause, episode_->fault, episode_->detected, episode_->left,
                          now, static_cast<int>(members_.size())});
  episode_.reset();
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
  if (!merge_slots(r.report, out)) return;
  if (prove_ && (!proven_at_ || r.report.step < *proven_at_)) {
    if (!agrees(from, r.report.step + 1, r.parts, out)) return;
    if (r.proven) proven_at_ = r.report.step + 1;
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
  const auto [proof, first] = proofs_.emplace(step, Proof{from.ready.actor, parts});
  if (first || proof->second.parts == parts) return true;
  const auto other = trainers_.find(proof->second.from);
  const Trainer& peer = other == trainers_.end() ? from : other->second;
  const Trainer& newer = from.proven ? peer : from;
  const Trainer& older = from.proven ? from : peer;
  fail(describe(newer) + " has another state after " + std::to_string(step) + " steps than " +
           describe(older) + ", though both began with the same TrainState: " +
           first_difference(proof->second.parts, parts) + ". The job keeps state that its TrainState lacks",
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
  step_takes_ = (now - std::exchange(committed_at_, now)) / (until - committed());
  while (committed() < until) {
    if (!commit_step(out)) return;
  }
  proofs_.erase(proofs_.begin(), proofs_.upper_bound(committed()));
  if (prove_ && proven_at_ && committed() >= *proven_at_) {
    prove_ = false;
    all_proven();
  }
  failed_in_a_row_ = 0;
  suspected_.clear();
  if (state_ == State::kRunning) proceed(now, out);
}

/// Commits the next step. False if the job has failed over it.
bool DriverMachine::commit_step(Actions& out) {
  LedgerEntry entry{committed(), generation_, {}};
  for (auto& [leaf, slot] : pending_[entry.step]) {
    add_figures(entry.figures, {{"loss", slot.loss * slot.weight, slot.weight}});
    add_figures(entry.figures, std::exchange(slot.figures, {}));
    entry.slots.push_back(std::move(slot));
  }
  pending_.erase(entry.step);
  StepValues values = std::exchange(pending_values_[entry.step], {});
  pending_values_.erase(entry.step);
  const double loss = entry.figures.empty() ? 0 : entry.figures.front().value();
  const bool left_out = config_.not_finite != NotFinite::kGoOn && !is_finite(entry.slots);
  if (left_out) entry.figures = {{"loss", 0, 0}};  // an epoch's means are of the others
  if (const Result<void> committed_now = ledger_.commit(entry); !committed_now.ok()) {
    fail(committed_now.error().message(), out);
    return false;
  }
  if (!has_the_samplers_samples(entry, out)) return false;
  out.push_back(CommitStep{std::move(entry), loss, std::move(values)});
  if (left_out && config_.not_finite == NotFinite::kStop) {  // trainers run no step behind it
    early_at_ = committed();
    not_finite_ = true;
  }
  got_further(out);
  return !over();
}

void DriverMachine::got_further(Actions& out) {
  if (committed() > furthest_) {
    furthest_ = committed();
    // A newcomer that helped to get further than ever shows that starting again works.
    for (const ActorId member : members_) {
      Trainer& trainer = trainers_.at(member);
      if (!std::exchange(trainer.made_progress, true)) trainer_pool_.failures = 0;
    }
    for (auto& [id, loader] : loaders_) {
      if (!std::exchange(loader.made_progress, true)) loader_pool_.failures = 0;
    }
  }
  if (config_.pieces() > 0 || !evaluation_at(committed()) || committed() <= evaluated_) return;
  evaluation_ = evaluation_here();
  finish_epoch(out);
}

/// The proof of a step. False if the job has failed over it.
bool DriverMachine::has_the_samplers_samples(const LedgerEntry& entry, Actions& out) {
  if (!config_.expected_indices) return true;
  const auto epoch = static_cast<int>(entry.step / config_.steps_per_epoch);
  const std::int64_t step = entry.step % config_.steps_per_epoch;
  for (const SlotReport& slot : entry.slots) {
    if (config_.expected_indices(epoch, step, slot.leaf) == slot.indices_hash) continue;
    fail("epoch " + std::to_string(epoch) + ", step " + std::to_string(step) + ", logical rank " +
             std::to_string(slot.leaf) + " used other samples than the sampler gave it",
         out);
    return false;
  }
  return true;
}

// Barriers and barrier tasks.

bool DriverMachine::checkpoint_at(std::int64_t step) const {
  const std::int64_t every =
      config_.checkpoint_every > 0 ? config_.checkpoint_every : config_.steps_per_epoch;
  return config_.checkpoints && step > 0 &&
         (step % every == 0 || step == config_.total_steps() || step == stop_at_ || step == early_at_ ||
          (config_.sharded && step == leave_at_) || is_best(step) ||
          (!missing_metric_.empty() && step == evaluated_));
}

/// At each epoch's end and at the job's; with something to evaluate at each multiple of evaluate_every, too.
bool DriverMachine::evaluation_at(std::int64_t step) const {
  return step % config_.steps_per_epoch == 0 || step == config_.total_steps() ||
         (config_.pieces() > 0 && config_.evaluate_every > 0 && step % config_.evaluate_every == 0);
}

/// What has to be done with the committed state before the next step may change it.
DriverMachine::BarrierTask DriverMachine::barrier_task_due() const {
  const std::int64_t at = committed();
  const bool epoch_end = at % config_.steps_per_epoch == 0;
  if (config_.pieces() > 0 && evaluation_at(at) && at > evaluated_) return BarrierTask::kEvaluate;
  if (checkpoint_at(at) && at > saved_) return BarrierTask::kCheckpoint;
  const bool at_the_end =
      at >= config_.total_steps() || (stop_at_ && at >= *stop_at_) || (early_at_ && at >= *early_at_);
  if (at_the_end) return BarrierTask::kFinish;
  return config_.hold && epoch_end && at > released_ ? BarrierTask::kHold : BarrierTask::kNone;
}

/// The next number of steps, above the committed ones, at which something has to be done with the state.
std::int64_t DriverMachine::next_barrier() const {
  const auto next_multiple = [&](std::int64_t of) { return (committed() / of + 1) * of; };
  std::int64_t next = config_.total_steps();
  if (config_.pieces() > 0 || config_.checkpoints || config_.hold || config_.tells_metrics ||
      !config_.stop_early.metric.empty()) {
    next = std::min(next, next_multiple(config_.steps_per_epoch));
  }
  if (config_.checkpoints && config_.checkpoint_every > 0) {
    next = std::min(next, next_multiple(config_.checkpoint_every));
  }
  if (config_.pieces() > 0 && config_.evaluate_every > 0)
    next = std::min(next, next_multiple(config_.evaluate_every));
  const auto join_at = following_ ? following_->join_at : std::nullopt;
  for (const auto& end : {stop_at_, early_at_, join_at, leave_at_}) {
    if (end && *end > committed()) next = std::min(next, *end);
  }
  return next;
}

/// After a commit or a barrier task: the next barrier task, or more steps to run.
void DriverMachine::proceed(Instant now, Actions& out) {
  if (over()) return;
  barrier_task_ = barrier_task_due();
  if (!missing_metric_.empty() && barrier_task_ != BarrierTask::kCheckpoint) return fail_for_metric(out);
  if (barrier_task_ == BarrierTask::kNone && (leave_at_ || (following_ && following_->join_at))) {
    state_ = State::kRunning;
    widen(now, out);
    if (state_ != State::kRunning) return;
  }
  if (barrier_task_ != BarrierTask::kNone) {
    run_limit_ = committed();
  } else {
    // A follower joins at the limit, which is kept near for that. What was granted stays so.
    int ahead = following_ ? std::min(config_.ahead, kAheadOfJoin) : config_.ahead;
    if (step_takes_ >= kLongStep) ahead = 1;
    run_limit_ = std::max(run_limit_, std::min(committed() + ahead, next_barrier()));
  }
  const auto evaluated = evaluations_.find(committed());
  to_members(Committed{generation_, committed(), run_limit_,
                       evaluated == evaluations_.end() ? StepValues{} : evaluated->second},
             out);
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
  evaluation_ = evaluation_here();
  pieces_.clear();
  const auto leaves = collectives::deal_leaves(config_.logical_ranks, static_cast<int>(members_.size()));
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const std::int64_t begin = config_.pieces() * leaves[r].begin / config_.logical_ranks;
    const std::int64_t end = config_.pieces() * leaves[r].end / config_.logical_ranks;
    out.push_back(SendOrder{members_[r], Evaluate{generation_, evaluation_.epoch, begin, end}});
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
  for (const PieceReport& piece : r.pieces) pieces_.emplace(piece.piece, piece);
  if (!barrier_task_complete()) return;
  if (!sum_pieces(out)) return;
  finish_epoch(out);
  proceed(now, out);
  widen(now, out);
}

/// Adds the pieces in the order of their sets, which they must be, whole. False if the job has failed over
/// it.
bool DriverMachine::sum_pieces(Actions& out) {
  for (std::int64_t p = 0; p < config_.pieces(); ++p) {
    const auto piece = pieces_.find(p);
    const bool test = p < config_.test_pieces;
    if (piece == pieces_.end() ||
        (config_.expected_piece && config_.expected_piece(p) != piece->second.indices_hash)) {
      fail("piece " + std::to_string(test ? p : p - config_.test_pieces) + " of the " +
               (test ? "test" : "validation") + " set was " +
               (piece == pieces_.end() ? "not evaluated" : "evaluated with other samples than it has"),
           out);
      return false;
    }
    evaluation_.count += piece->second.count;
    add_figures(test ? evaluation_.test : evaluation_.validation, piece->second.figures);
  }
  return true;
}

/// Of the committed state, empty.
EpochDone DriverMachine::evaluation_here() const {
  const std::int64_t last = std::max<std::int64_t>(committed() - 1, 0);
  return {.epoch = static_cast<int>(last / config_.steps_per_epoch),
          .step = committed(),
          .ended = committed() > 0 && committed() % config_.steps_per_epoch == 0};
}

/// A state that is taken up may have been evaluated just before it was written down.
void DriverMachine::take_evaluation(const std::string& history, std::int64_t step) {
  const History of = decode_history(history).value_or(History{});
  if (config_.tells_metrics && !of.metrics.empty() && of.evaluated == step) evaluations_[step] = of.metrics;
}

void DriverMachine::finish_epoch(Actions& out) {
  evaluation_.train = epoch_figures(evaluation_.epoch);
  for (const auto& [set, figures] :
       {std::pair("train/", &evaluation_.train), std::pair("test/", &evaluation_.test),
        std::pair("validation/", &evaluation_.validation)}) {
    for (const Figure& figure : *figures) add_metrics(evaluation_.metrics, set, figure);
  }
  evaluated_ = committed();
  if (evaluation_.ended)
    ledger_.forget_before(evaluation_.epoch * config_.steps_per_epoch);  // of those before only sums count
  out.push_back(evaluation_);
  watch_metrics(out);
}

/// Sums over the steps of the epoch that are committed, in their order, also those of an earlier run.
std::vector<Figure> DriverMachine::epoch_figures(int epoch) const {
  std::vector<Figure> figures;
  const std::int64_t begin = epoch * config_.steps_per_epoch;
  if (begin < ledger_.first_step() && ledger_.first_step() < begin + config_.steps_per_epoch)
    figures = history_.epoch_figures;
  for (const LedgerEntry* entry : ledger_.epoch(epoch)) add_figures(figures, entry->figures);
  return figures;
}

/// As it must be in a manifest of the state as it is.
std::string DriverMachine::history_now() const {
  History history = history_;
  history.epoch_figures.clear();
  if (committed() % config_.steps_per_epoch != 0)
    history.epoch_figures = epoch_figures(static_cast<int>(committed() / config_.steps_per_epoch));
  return encode_history(history);
}

/// The state after `step` steps came to the best value of the metric whose best checkpoint is kept.
bool DriverMachine::is_best(std::int64_t step) const {
  return !config_.keep_best.empty() && history_.kept.step > 0 && step == history_.kept.step;
}

/// Null where the job does not have it: then it fails, but not before the checkpoint.
const double* DriverMachine::find_metric(const std::string& name) {
  const auto at = history_.metrics.find(name);
  if (at != history_.metrics.end()) return &at->second;
  missing_metric_ = name;
  return nullptr;
}

/// After the epoch that lacks it, whose work is in a checkpoint where those are kept.
void DriverMachine::fail_for_metric(Actions& out) {
  std::string all;
  for (const auto& [known, value] : history_.metrics) all += (all.empty() ? "" : ", ") + known;
  const bool saved = saved_step() == committed();
  fail("there is no metric '" + missing_metric_ + "': the job has " + all, out,
       "name one of them in stop_early or keep_best, or count it in the job's loss() or evaluate()" +
           std::string(saved ? "; a run with resume goes on at step " + std::to_string(committed()) : ""));
}

/// The epoch's metrics are known: is one of them the best, or is it time to stop?
void DriverMachine::watch_metrics(Actions& out) {
  history_.metrics = evaluation_.metrics;
  history_.evaluated = committed();
  if (config_.tells_metrics) evaluations_[committed()] = evaluation_.metrics;
  if (!config_.keep_best.empty()) {
    const double* value = find_metric(config_.keep_best);
    if (value == nullptr) return;
    history_.kept = observe(history_.kept, config_.keep_best, config_.keep_best_mode, 0, committed(), *value);
  }
  const StopEarly& rule = config_.stop_early;
  if (rule.metric.empty()) return;
  const double* value = find_metric(rule.metric);
  if (value == nullptr) return;
  history_.patience = observe(history_.patience, rule.metric, rule.mode, rule.min_delta, committed(), *value);
  if (history_.patience.since < rule.patience || early_at_) return;
  early_at_ = committed();
  const bool by_steps = config_.evaluate_every > 0;
  const std::int64_t unit = by_steps ? 1 : config_.steps_per_epoch;
  const std::string best = history_.patience.step == 0
                               ? "it was never a number"
                               : "the best was " + std::to_string(history_.patience.value) +
                                     (by_steps ? " after step " : " after epoch ") +
                                     std::to_string(history_.patience.step / unit);
  out.push_back(
      Notice{"stopping early: " + rule.metric + " has not become better " +
                 (rule.min_delta > 0 ? "by more than " + std::to_string(rule.min_delta) + " " : "") + "for " +
                 std::to_string(rule.patience) + (by_steps ? " evaluations, " : " epochs, ") + best,
             {}});
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
  checkpoints_.push_back(*stored_);
  written_.push_back(stored_->path);
  saved_ = stored_->step;
  if (is_best(saved_)) best_checkpoint_ = stored_->path;
  evaluations_.erase(evaluations_.begin(), evaluations_.lower_bound(checkpoints_.front().step));
  out.push_back(AcceptCheckpoint{*stored_});
  stored_.reset();
  const auto keep = static_cast<std::size_t>(config_.keep_checkpoints);
  if (written_.size() >= keep) {
    written_.erase(written_.begin(), written_.end() - static_cast<std::ptrdiff_t>(keep));
    const auto oldest = std::find_if(checkpoints_.begin(), checkpoints_.end(),
                                     [&](const CheckpointInfo& c) { return c.path == written_.front(); });
    checkpoints_.erase(checkpoints_.begin(), oldest);
    out.push_back(
        SendOrder{members_.front(), PruneCheckpoints{generation_, written_.front(), best_checkpoint_}});
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
  saved_ = r.step;  // training goes on; the last good checkpoint stays valid
  ++failed_checkpoints_;
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
