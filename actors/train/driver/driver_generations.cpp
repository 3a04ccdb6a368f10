/// Generations: who holds what, who is the authority, who goes on.
#include <algorithm>
#include <utility>

#include "actors/train/driver/driver_machine.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"

namespace troupe::train {

bool DriverMachine::current(Generation generation) {
  if (generation == generation_ || mutations_.accept_old_generation) return true;
  ignore("of generation " + to_string(generation) + ", not " + to_string(generation_));
  return false;
}

bool DriverMachine::generation_runs() const {
  return state_ == State::kForming || state_ == State::kRunning || state_ == State::kBarrier;
}

bool DriverMachine::is_member(const Trainer& trainer) const {
  return std::find(members_.begin(), members_.end(), trainer.ready.actor) != members_.end();
}

// Opening.

void DriverMachine::open_generation(const std::string& cause, bool fault, Instant now, Actions& out) {
  if (over()) return;
  ++generation_.counter;
  state_ = State::kQuiescing;
  members_.clear();
  leave_at_.reset();
  barrier_task_ = BarrierTask::kNone;
  if (!episode_) {
    episode_ = Episode{cause, fault, false, now, now};
  } else {
    episode_->cause += "; " + cause;
    episode_->fault = episode_->fault || fault;
  }
  for (auto& [id, trainer] : trainers_) {
    trainer.quiesced = false;
    if (!trainer.killed) ask_to_quiesce(trainer, cause, now, out);
  }
  plan_when_known(now, out);
}

void DriverMachine::ask_to_quiesce(Trainer& trainer, const std::string& why, Instant now, Actions& out) {
  trainer.quiesced = false;
  trainer.deadline = now + config_.deadlines.quiesce;
  out.push_back(SendOrder{trainer.ready.actor, Quiesce{generation_, why}});
}

void DriverMachine::report(const TrainerQuiesced& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (from.quiesced) return ignore("nobody asked " + describe(from) + " to leave");
  from.quiesced = true;
  // It was not waited for, and is no member: what it holds is replaced.
  if (state_ != State::kQuiescing && state_ != State::kGathering) return widen(now, out);
  from.steps = r.steps;
  from.lineage = r.lineage;
  for (const StepReport& step : r.uncommitted) {
    if (!merge_slots(step, out)) return;
  }
  if (episode_ && from.rank >= 0) episode_->left = now;
  plan_when_known(now, out);
}

/// Takes in what leaves used in a step that is not committed. False (and the job has failed) if two trainers
/// say different things.
bool DriverMachine::merge_slots(const StepReport& step, Actions& out) {
  if (step.step < committed()) return true;
  pending_values_.emplace(step.step, step.values);
  for (const SlotReport& slot : step.slots) {
    const auto [at, added] = pending_[step.step].emplace(slot.leaf, slot);
    if (added || at->second.indices_hash == slot.indices_hash) continue;
    fail("trainers disagree on the samples that logical rank " + std::to_string(slot.leaf) +
             " used in step " + std::to_string(step.step),
         out);
    return false;
  }
  return true;
}

// Planning.

/// Goes on once everyone alive has said what it holds. Whoever was killed counts as alive until its death is
/// known (fencing), or its deadline is over.
void DriverMachine::plan_when_known(Instant now, Actions& out) {
  if (state_ != State::kQuiescing && state_ != State::kGathering) return;
  // Who was no member may be at a copy of a whole state: it need not be waited for where others have one.
  const bool enough = !config_.sharded && enough_hold_a_state();
  const bool all_known = std::all_of(trainers_.begin(), trainers_.end(), [&](const auto& entry) {
    const Trainer& trainer = entry.second;
    const bool joins = following_ && following_->caught_up.contains(entry.first);
    return !trainer.killed && (trainer.quiesced || (enough && trainer.rank < 0 && !joins));
  });
  const int there = static_cast<int>(trainers_.size());
  if (there < config_.min_trainers) {
    if (state_ == State::kGathering) return;
    state_ = State::kGathering;
    grace_end_ = now;  // a job that ran goes on as soon as it may
    deadline_ = now + config_.deadlines.gather;
    if (trainer_pool_.given_up) fail("too few trainers are left: " + trainer_pool_.last_failure, out);
    return;
  }
  if (!all_known || (state_ == State::kGathering && there < config_.trainers && now < grace_end_)) return;

  const Trainer* authority = find_authority();
  const std::int64_t held = authority == nullptr ? kNoState : authority->steps;
  const std::int64_t saved = checkpoints_.empty() ? 0 : checkpoints_.back().step;
  if (held >= committed() || held >= saved) {
    first_step_ = held;
    lineage_ = authority->lineage;
  } else {
    first_step_ = saved;
    lineage_ = generation_;
  }
  if (first_step_ < committed()) go_back_to(first_step_, out);
  // What nobody applied, or nobody who applied it is left, never happened.
  pending_.erase(pending_.lower_bound(first_step_), pending_.end());
  pending_values_.erase(pending_values_.lower_bound(first_step_), pending_values_.end());
  start_generation(now, out);
}

/// Enough members of the last generation, and the newest committed state is among them.
bool DriverMachine::enough_hold_a_state() const {
  int holders = 0;
  std::int64_t newest = kNoState;
  for (const auto& [id, trainer] : trainers_) {
    if (!trainer.quiesced || trainer.killed || trainer.rank < 0 || trainer.steps == kNoState) continue;
    ++holders;
    newest = std::max(newest, trainer.steps);
  }
  return holders >= config_.min_trainers && newest >= committed();
}

/// The trainer with the most steps applied, or null. Who has as many on a newer lineage comes first: an older
/// one was given up.
const DriverMachine::Trainer* DriverMachine::find_authority() const {
  const Trainer* authority = nullptr;
  for (const auto& [id, trainer] : trainers_) {
    if (!trainer.quiesced || trainer.steps == kNoState) continue;
    if (authority == nullptr ||
        std::pair(trainer.steps, trainer.lineage) > std::pair(authority->steps, authority->lineage)) {
      authority = &trainer;
    }
  }
  return authority;
}

void DriverMachine::go_back_to(std::int64_t step, Actions& out) {
  const std::int64_t from = committed();
  const std::int64_t voided = ledger_.rewind(step);
  saved_ = std::min(saved_, step);
  const std::string again =
      count_of(voided, "step runs", "steps run") + " again from step " + std::to_string(step);
  const bool began = furthest_ > begun_at_;
  if (step < begun_at_) {  // what an earlier run told of these epochs was not told in this one
    begun_at_ = evaluated_ = step;
    if (!began) furthest_ = step;
  }
  const std::string why =
      began ? "nobody is left who holds step " + std::to_string(from) + ": " + again : again;
  out.push_back(RewindLedger{from, step, why});
}

bool DriverMachine::has_the_state(const Trainer& trainer) const {
  return trainer.quiesced && trainer.steps == first_step_ && trainer.lineage == lineage_;
}

/// Survivors keep their order, newcomers come behind them. A newcomer that would have to be given the whole
/// state stays outside where there are enough without it: it follows beside the steps, then joins.
void DriverMachine::deal_ranks() {
  std::vector<Trainer*> order;
  std::vector<Trainer*> outside;
  const bool from_members = lineage_ != generation_;
  for (auto& [id, trainer] : trainers_) {
    const bool waits = !trainer.quiesced || (from_members && trainer.rank < 0 && !has_the_state(trainer) &&
                                             !can_follow_up(trainer));
    (waits ? outside : order).push_back(&trainer);
  }
  if (static_cast<int>(order.size()) < config_.min_trainers || must_wait_for_copies() || config_.sharded) {
    for (Trainer* trainer : outside) {
      if (trainer->quiesced) order.push_back(trainer);
    }
  }
  const auto place = [](const Trainer* t) {
    return std::pair(t->rank < 0 ? INT32_MAX : t->rank, t->arrival);
  };
  std::sort(order.begin(), order.end(),
            [&](const Trainer* a, const Trainer* b) { return place(a) < place(b); });
  leave_out(order, from_members);
  for (auto& [id, trainer] : trainers_) trainer.rank = -1;
  for (std::size_t r = 0; r < order.size(); ++r) {
    order[r]->rank = static_cast<int>(r);
    members_.push_back(order[r]->ready.actor);
  }
}

void DriverMachine::start_generation(Instant now, Actions& out) {
  members_.clear();
  deal_ranks();
  GenerationPlan plan;
  plan.generation = generation_;
  plan.logical_ranks = config_.logical_ranks;
  plan.first_step = run_limit_ = first_step_;
  step_takes_ = Duration::max();  // until one was committed
  committed_at_ = now;
  plan.steps_per_epoch = config_.steps_per_epoch;
  plan.total_steps = config_.total_steps();
  plan.committed = committed();
  plan.loaders = loader_list();
  if (lineage_ != generation_) {
    plan.origin = StateOrigin::kMembers;
  } else if (!checkpoints_.empty()) {
    plan.origin = StateOrigin::kCheckpoint;
    if (first_step_ <= ledger_.first_step()) {
      history_.epoch_figures = decode_history(checkpoints_.back().history).value_or(History{}).epoch_figures;
      take_evaluation(checkpoints_.back().history, first_step_);
    }
    plan.checkpoint = checkpoints_.back().path;
    plan.state_hash = checkpoints_.back().hash;
  }
  if (plan.origin != StateOrigin::kMembers) loading_.reset();
  if (plan.origin == StateOrigin::kCheckpoint) loading_ = checkpoints_.back();
  started_ = generation_;
  plan.lineage = lineage_;
  proofs_.clear();
  proven_at_.reset();
  plan.exact = config_.exact;
  plan.sharded = config_.sharded;
  prove_ = config_.exact && !config_.sharded && members_.size() > 1 &&
           std::any_of(members_.begin(), members_.end(),
                       [&](ActorId member) { return !trainers_.at(member).proven; });
  plan.prove = prove_;
  plan.begun_at = begun_at_;
  plan.evaluated = {evaluations_.lower_bound(first_step_), evaluations_.end()};
  const auto leaves = collectives::deal_leaves(config_.logical_ranks, static_cast<int>(members_.size()));
  for (std::size_t r = 0; r < members_.size(); ++r) {
    Trainer& trainer = trainers_.at(members_[r]);
    const int rank = static_cast<int>(r);
    trainer.formed = false;
    trainer.unreadable.clear();
    trainer.holds = plan.origin == StateOrigin::kMembers && has_the_state(trainer);
    trainer.applied = first_step_;
    const bool follows = !trainer.holds && can_follow_up(trainer);
    if (plan.origin == StateOrigin::kMembers && !trainer.holds)
      (follows ? plan.followers : plan.receivers).push_back(rank);
    const bool is_source = following_ && following_->source == trainer.ready.actor;
    if (trainer.holds && (plan.source < 0 || is_source)) plan.source = rank;
    const TrainerReady& ready = trainer.ready;
    plan.members.push_back({ready.actor, ready.node, ready.data_address, leaves[r], ready.has_nccl});
  }
  following_.reset();
  failed_followings_ = 0;
  state_ = State::kForming;
  deadline_ = now + config_.deadlines.standstill;
  for (const ActorId member : members_) out.push_back(SendOrder{member, StartGeneration{plan}});
}

// Forming.

void DriverMachine::report(const GroupFormed& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (state_ != State::kForming || !is_member(from)) return ignore("no group is forming");
  from.formed = true;
  moved(now);
  run_when_formed(now, out);
}

void DriverMachine::report(const StateInstalled& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (state_ != State::kForming || !is_member(from)) return ignore("no group is forming");
  from.holds = true;
  moved(now);
  run_when_formed(now, out);
  share_checkpoint(now, out);
}

void DriverMachine::run_when_formed(Instant now, Actions& out) {
  for (const ActorId member : members_) {
    const Trainer& trainer = trainers_.at(member);
    if (!trainer.formed || !trainer.holds) return;
  }
  state_ = State::kRunning;
  moved(now);
  if (loading_) {
    out.push_back(Resumed{*std::exchange(loading_, std::nullopt)});
    if (first_step_ >= config_.total_steps() && !config_.evaluates) {
      const std::int64_t unit = config_.max_steps > 0 ? 1 : config_.steps_per_epoch;
      out.push_back(Notice{"nothing is left to train: what was resumed has " +
                               std::to_string(first_step_ / unit) +
                               (config_.max_steps > 0 ? " steps, " : " epochs, ") +
                               std::to_string(config_.total_steps() / unit) + " are asked for",
                           {}});
    }
  }
  // Steps that somebody had applied when the generation before ended: now every member holds them.
  while (!over() && committed() < first_step_) {
    if (!commit_step(out)) return;
  }
  if (!over()) proceed(now, out);
  widen(now, out);
}

/// A spare trainer takes the state beside the steps, then joins by the same way as a fault goes: the next
/// generation.
void DriverMachine::widen(Instant now, Actions& out) {
  if (state_ != State::kRunning || let_leave(now, out) || staying_members() >= config_.trainers) return;
  if (following_ && !all_caught_up()) return;
  std::vector<ActorId> spares;
  for (const auto& [id, trainer] : trainers_) {
    if (!trainer.killed && !trainer.leaves && trainer.quiesced && !is_member(trainer)) spares.push_back(id);
  }
  if (spares.empty()) return;
  if (config_.sharded) {
    // Where the state is whole: in the checkpoint of these very steps, or with a member that is alone.
    const std::int64_t saved = checkpoints_.empty() ? 0 : checkpoints_.back().step;
    if (members_.size() == 1 || committed() == saved)
      open_generation(describe(trainers_.at(spares.front())) + " joined", false, now, out);
    return;
  }
  if (following_) {
    // At the end of a step that all may run, so that none is thrown away.
    if (!following_->join_at) following_->join_at = std::max(run_limit_, committed());
    if (committed() < *following_->join_at) return;
  }
  if (following_ || must_wait_for_copies())
    return open_generation(
        describe(trainers_.at(following_ ? *following_->caught_up.begin() : spares.front())) + " joined",
        false, now, out);
  start_following(spares, now, out);
}

void DriverMachine::report(const GenerationFailed& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (!generation_runs() || !is_member(from)) return ignore("that generation is being replaced already");
  const std::string cause = describe(from) + " left generation " + to_string(r.generation) + ": " + r.reason;
  ++failed_in_a_row_;
  for (const ActorId suspect : r.suspects) {
    if (suspect != r.actor && trainers_.contains(suspect)) ++suspected_[suspect];
  }
  if (failed_in_a_row_ > config_.restart.budget) {
    return fail(std::to_string(failed_in_a_row_) + " generations failed in a row, the last one: " + cause,
                out);
  }
  if (failed_in_a_row_ % config_.failed_generations == 0 && !suspected_.empty()) {
    const auto worst = std::max_element(suspected_.begin(), suspected_.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    const ActorId suspect = worst->first;
    suspected_.clear();
    kill(trainers_.at(suspect), "others waited for it in vain, again and again", now, out);
  }
  if (generation_runs()) open_generation(cause, true, now, out);
}

// A checkpoint that not everybody can read.

void DriverMachine::report(const CheckpointUnreadable& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (state_ != State::kForming || !is_member(from)) return ignore("no group is forming");
  from.unreadable = r.reason;
  share_checkpoint(now, out);
}

/// Once everybody has tried: whoever could not read it gets the state from the memory of one who could.
void DriverMachine::share_checkpoint(Instant now, Actions& out) {
  if (state_ != State::kForming) return;
  const Trainer* reader = nullptr;
  std::string failures;
  for (const ActorId member : members_) {
    const Trainer& trainer = trainers_.at(member);
    if (!trainer.holds && trainer.unreadable.empty()) return;
    if (trainer.holds) reader = &trainer;
    if (!trainer.unreadable.empty())
      failures += (failures.empty() ? "" : "; ") + describe(trainer) + ": " + trainer.unreadable;
  }
  if (failures.empty()) return;
  if (reader == nullptr) return drop_checkpoint(now, out);
  out.push_back(Notice{"not every trainer can read the checkpoint " + checkpoints_.back().path +
                           "; the others get the state from " + describe(*reader) + ". " + failures,
                       {}});
  open_generation("a checkpoint is passed on through memory", false, now, out);
}

/// Nobody can read the newest checkpoint. The next older one is tried; the job never falls back to step 0.
void DriverMachine::drop_checkpoint(Instant now, Actions& out) {
  std::string reasons;
  for (const ActorId member : members_) {
    const Trainer& trainer = trainers_.at(member);
    reasons += (reasons.empty() ? "" : "; ") + describe(trainer) + ": " + trainer.unreadable;
  }
  const std::string path = checkpoints_.back().path;
  checkpoints_.pop_back();
  std::erase(written_, path);
  unusable_.push_back(path + " (" + reasons + ")");
  if (checkpoints_.empty()) {
    std::string all;
    for (const std::string& one : unusable_) all += (all.empty() ? "" : ", ") + one;
    return fail("no trainer can read any checkpoint: " + all, out,
                "restore one of these files and resume, or start again without them");
  }
  const std::string what = "no trainer can read the checkpoint " + path + " (" + reasons + "); " +
                           checkpoints_.back().path + " is tried instead";
  out.push_back(Notice{what, {}});
  open_generation("a checkpoint could not be read", true, now, out);
}

}  // namespace troupe::train
