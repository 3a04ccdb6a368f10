/// Generations: who holds what, who goes on, who joins and who leaves.
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

bool DriverMachine::is_member(const TrainerSeat& trainer) const {
  return std::find(members_.begin(), members_.end(), trainer.ready.actor) != members_.end();
}

bool DriverMachine::is_spare(const TrainerSeat& trainer) const {
  return !trainer.killed && !trainer.leaves && trainer.quiesced && !is_member(trainer);
}

int DriverMachine::staying_members() const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(), [this](ActorId member) {
    const auto at = roster_.trainers().find(member);
    return at != roster_.trainers().end() && !at->second.leaves;
  }));
}

// Opening.

void DriverMachine::open_generation(const std::string& cause, bool fault) {
  if (over()) return;
  ++generation_.counter;
  state_ = State::kQuiescing;
  members_.clear();
  agenda_.cancel_leave();
  barrier_.end();
  if (!saving_.is_copied()) saving_.give_up();
  interruption_.add(cause, fault, now_);
  for (auto& [id, trainer] : roster_.trainers()) {
    trainer.quiesced = false;
    if (!trainer.killed) ask_to_quiesce(trainer, cause);
  }
  plan_when_known();
}

void DriverMachine::ask_to_quiesce(TrainerSeat& trainer, const std::string& why) {
  trainer.quiesced = false;
  trainer.deadline = now_ + config_->deadlines.quiesce;
  out_.push_back(SendOrder{trainer.ready.actor, Quiesce{generation_, why}});
}

void DriverMachine::report(const TrainerQuiesced& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (from.quiesced) return ignore("nobody asked " + describe(from) + " to leave");
  from.quiesced = true;
  if (saving_.is_by(r.actor) && !r.writes) end_checkpoint();  // it had not begun
  // It was not waited for, and is no member: what it holds is replaced.
  if (state_ != State::kQuiescing && state_ != State::kGathering) return widen();
  from.steps = r.steps;
  from.lineage = r.lineage;
  for (const StepReport& step : r.uncommitted) {
    if (failed(steps_.merge(step))) return;
  }
  if (from.rank >= 0) interruption_.member_left(now_);
  plan_when_known();
}

// Planning.

std::vector<Holding> DriverMachine::holdings() const {
  std::vector<Holding> all;
  for (const auto& [id, trainer] : roster_.trainers()) {
    all.push_back({.actor = id,
                   .arrival = trainer.arrival,
                   .rank = trainer.rank,
                   .killed = trainer.killed,
                   .known = trainer.quiesced,
                   .leaves = trainer.leaves,
                   .follows = following_.takes_from_source(id),
                   .joins = following_.has_caught_up(id),
                   .steps = trainer.steps,
                   .lineage = trainer.lineage,
                   .has_folder = trainer.ready.has_folder});
  }
  return all;
}

RecoveryInput DriverMachine::recovery_input() const {
  return {.generation = generation_,
          .committed = committed(),
          .saved = checkpoints_.newest_step(),
          .trainers = config_->trainers,
          .min_trainers = config_->min_trainers,
          .logical_ranks = config_->logical_ranks,
          .sharded = config_->sharded,
          .waits_for_copies = following_.must_wait_for_copies(),
          .source = following_.is_on() ? following_.source() : ActorId{}};
}

/// Goes on once everyone alive has said what it holds. Whoever was killed counts as alive until its death is
/// known (fencing), or its deadline is over.
void DriverMachine::plan_when_known() {
  if (state_ != State::kQuiescing && state_ != State::kGathering) return;
  const int there = static_cast<int>(roster_.trainers().size());
  if (there < config_->min_trainers) {
    if (state_ == State::kGathering) return;
    state_ = State::kGathering;
    grace_end_ = now_;  // a job that ran goes on as soon as it may
    deadline_ = now_ + config_->deadlines.gather;
    if (const auto why = roster_.given_up_trainers()) fail("too few trainers are left: " + *why);
    return;
  }
  if (state_ == State::kGathering && there < config_->trainers && now_ < grace_end_) return;
  const std::vector<Holding> all = holdings();
  if (!can_plan(all, recovery_input())) return;
  const Recovery recovery = plan_recovery(all, recovery_input());
  const bool begins = lineage_ == Generation{};
  const bool reads = recovery.lineage == generation_ && checkpoints_.saved_step() == recovery.first_step;
  if (waits_for_folder(all, config_->checkpoints && (begins || reads))) return;
  if (!can_save(all)) return;
  if (saving_.is_on() && recovery.first_step < saving_.order().step) saving_.give_up();
  if (recovery.first_step < committed()) {
    const bool earlier = recovery.first_step < steps_.begun_at();
    agenda_.rewind(recovery.first_step, earlier);
    if (earlier) evaluations_.fall_back(recovery.first_step);
    out_.push_back(steps_.rewind(recovery.first_step));
  }
  steps_.drop_pending(recovery.first_step);
  start_generation(recovery);
}

/// Nobody there sees the folder that is to be written at the beginning, or read, and one may come that does.
bool DriverMachine::waits_for_folder(const std::vector<Holding>& all, bool needs_it) {
  const bool sees = std::any_of(all.begin(), all.end(), [](const Holding& one) { return one.has_folder; });
  const bool may_come = roster_.staying() < config_->trainers && !roster_.given_up_trainers();
  if (!needs_it || sees || !may_come) return false;
  if (state_ != State::kGathering) {
    state_ = State::kGathering;
    grace_end_ = now_;
    deadline_ = now_ + config_->deadlines.gather;
  }
  return now_ < deadline_;
}

/// False if the job has failed: nobody could write a checkpoint from its beginning on.
bool DriverMachine::can_save(const std::vector<Holding>& all) {
  if (!config_->checkpoints || lineage_ != Generation{}) return true;
  if (std::any_of(all.begin(), all.end(), [](const Holding& one) { return one.has_folder; })) return true;
  fail("no trainer can write checkpoints: '" + config_->checkpoint_folder +
           "' is not there on their hosts, or is another folder than this program's (its checkpoints.lock is "
           "not "
           "this run's)",
       "name a folder on a disk that all hosts share, or have a trainer run on this program's host");
  return false;
}

void DriverMachine::start_generation(const Recovery& recovery) {
  lineage_ = recovery.lineage;
  first_step_ = recovery.first_step;
  for (auto& [id, trainer] : roster_.trainers()) trainer.rank = -1;
  members_.clear();
  GenerationPlan plan;
  const auto leaves =
      collectives::deal_leaves(config_->logical_ranks, static_cast<int>(recovery.members.size()));
  forming_.begin(recovery.members);
  for (const Recovery::Member& member : recovery.members) {
    TrainerSeat& trainer = roster_.at(member.actor);
    trainer.rank = members();
    trainer.applied = recovery.first_step;
    const TrainerReady& ready = trainer.ready;
    plan.members.push_back(
        {member.actor, ready.node, ready.data_address, leaves[members_.size()], ready.has_nccl});
    plan.prove = plan.prove || !trainer.proven;
    members_.push_back(member.actor);
  }
  plan.prove = plan.prove && config_->exact && !config_->sharded && members() > 1;
  plan.generation = generation_;
  plan.logical_ranks = config_->logical_ranks;
  plan.source = recovery.source;
  plan.receivers = recovery.receivers;
  plan.followers = recovery.followers;
  plan.lineage = recovery.lineage;
  plan.exact = config_->exact;
  plan.sharded = config_->sharded;
  plan.begun_at = steps_.begun_at();
  plan.first_step = recovery.first_step;
  plan.steps_per_epoch = config_->steps_per_epoch;
  plan.total_steps = config_->total_steps();
  plan.committed = committed();
  plan.loaders = roster_.loader_list();
  if (recovery.lineage != generation_) {
    plan.origin = StateOrigin::kMembers;
  } else if (!checkpoints_.empty()) {
    const CheckpointInfo& newest = checkpoints_.newest();
    plan.origin = StateOrigin::kCheckpoint;
    plan.checkpoint = newest.path;
    plan.state_hash = newest.hash;
    if (!newest.in_memory) pass_on(plan);
    if (recovery.first_step <= steps_.ledger().first_step()) {
      steps_.set_figures_before(decode_history(newest.history).value_or(History{}).epoch_figures);
      evaluations_.take_up(newest.history, recovery.first_step);
    }
  }
  plan.evaluated = evaluations_.told_from(recovery.first_step);
  if (plan.origin != StateOrigin::kMembers) checkpoints_.load(plan.origin == StateOrigin::kCheckpoint);
  agenda_.begin_generation(recovery.first_step, now_);
  failures_.begin_generation(generation_);
  proofs_.begin(plan.prove);
  following_.begin_generation();
  state_ = State::kForming;
  deadline_ = now_ + config_->deadlines.standstill;
  to_members(StartGeneration{plan});
}

/// Who cannot read the checkpoint gets it from the first that can, if any.
void DriverMachine::pass_on(GenerationPlan& plan) {
  for (int rank = 0; rank < members(); ++rank) {
    const bool reads = roster_.at(members_[static_cast<std::size_t>(rank)]).reads(plan.checkpoint);
    if (reads && plan.source < 0) plan.source = rank;
    if (!reads) plan.receivers.push_back(rank);
  }
  if (plan.source >= 0) return;
  plan.receivers.clear();  // each tries, and who could not read it before may be able to now
  for (const ActorId member : members_) roster_.at(member).unreadable.clear();
}

// Forming.

void DriverMachine::report(const GroupFormed& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (state_ != State::kForming || !is_member(from)) return ignore("no group is forming");
  forming_.joined_group(r.actor);
  extend_deadlines();
  run_when_formed();
}

void DriverMachine::report(const StateInstalled& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (state_ != State::kForming || !is_member(from)) return ignore("no group is forming");
  forming_.installed(r.actor);
  extend_deadlines();
  run_when_formed();
  share_checkpoint();
}

void DriverMachine::run_when_formed() {
  if (!forming_.is_complete()) return;
  state_ = State::kRunning;
  extend_deadlines();
  if (auto loaded = checkpoints_.take_loaded()) {
    out_.push_back(Resumed{*std::move(loaded)});
    if (agenda_.is_whole(first_step_) && !config_->evaluates) {
      const bool by_steps = config_->max_steps > 0;
      const std::int64_t unit = by_steps ? 1 : config_->steps_per_epoch;
      out_.push_back(Notice{"nothing is left to train: what was resumed has " +
                                std::to_string(first_step_ / unit) + (by_steps ? " steps, " : " epochs, ") +
                                std::to_string(config_->total_steps() / unit) + " are asked for",
                            {}});
    }
  }
  // Steps that somebody had applied when the generation before ended: now every member holds them.
  while (!over() && committed() < first_step_) {
    if (!commit_step()) return;
  }
  if (!over()) proceed();
  widen();
}

void DriverMachine::report(const GenerationFailed& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (!generation_runs() || !is_member(from)) return ignore("that generation is being replaced already");
  const std::string cause = describe(from) + " left generation " + to_string(r.generation) + ": " + r.reason;
  for (const ActorId suspect : r.suspects) {
    if (suspect != r.actor && roster_.find(suspect) != nullptr) failures_.suspect(suspect);
  }
  if (failed(failures_.generation_failed(cause))) return;
  if (const auto suspect = failures_.take_most_suspected())
    kill(roster_.at(*suspect), "others waited for it in vain, again and again");
  if (generation_runs()) open_generation(cause, true);
}

// A checkpoint that not everybody can read.

void DriverMachine::report(const CheckpointUnreadable& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (state_ != State::kForming || !is_member(from)) return ignore("no group is forming");
  from.unreadable = r.path;
  forming_.cannot_read(r.actor, describe(from) + ": " + r.reason);
  share_checkpoint();
}

/// Once everybody has tried: whoever could not read it gets the state from the memory of one who could. If
/// nobody could, the next older one is tried; the job never falls back to step 0.
void DriverMachine::share_checkpoint() {
  const auto unread = state_ == State::kForming ? forming_.unread() : std::nullopt;
  if (!unread) return;
  const std::string path = checkpoints_.newest().path;
  if (unread->reader) {
    out_.push_back(Notice{"not every trainer can read the checkpoint " + path +
                              "; the others get the state from " + describe(roster_.at(*unread->reader)) +
                              ". " + unread->reasons,
                          {}});
    // A snapshot comes to each from the program: the next generation may fare no better.
    if (checkpoints_.newest().in_memory && failed(failures_.generation_failed(unread->reasons))) return;
    return open_generation("a checkpoint is passed on through memory", false);
  }
  if (checkpoints_.drop_newest(unread->reasons)) {
    evaluations_.find_best_file(checkpoints_.all());
    checkpoints_.set_best(evaluations_.best_file().step);
  }
  if (checkpoints_.empty()) {
    return fail("no trainer can read any checkpoint: " + checkpoints_.unusable(),
                "restore one of these files and resume, or start again without them");
  }
  out_.push_back(Notice{"no trainer can read the checkpoint " + path + " (" + unread->reasons + "); " +
                            checkpoints_.newest().path + " is tried instead",
                        {}});
  open_generation("a checkpoint could not be read", true);
}

// Who joins, and who leaves.

/// A spare trainer takes the state beside the steps, then joins by the same way as a fault goes: the next
/// generation.
void DriverMachine::widen() {
  if (state_ != State::kRunning || let_leave() || staying_members() >= config_->trainers) return;
  if (following_.is_on() && !all_caught_up()) return;
  std::vector<ActorId> spares;
  for (const auto& [id, trainer] : roster_.trainers()) {
    if (is_spare(trainer)) spares.push_back(id);
  }
  if (spares.empty()) return;
  if (config_->sharded) {
    // Where the state is whole: in the checkpoint of these very steps, or with a member that is alone.
    if (members() == 1 || committed() == checkpoints_.newest_step())
      open_generation(describe(roster_.at(spares.front())) + " joined", false);
    return;
  }
  if (following_.is_on()) {
    // At the end of a step that all may run, so that none is thrown away.
    if (!following_.join_at()) following_.join_at(agenda_.end_of_granted(committed()));
    if (committed() < *following_.join_at()) return;
    return open_generation(describe(roster_.at(following_.first_caught_up())) + " joined", false);
  }
  if (following_.must_wait_for_copies())
    return open_generation(describe(roster_.at(spares.front())) + " joined", false);
  start_following(spares);
}

/// Begins a generation without those that leave, at the end of a step that all may run, so that all hold the
/// same and none is thrown away; with shards at a checkpoint. Where too few would be left, others join first.
/// True if it did. Who has left the members is not needed any more.
bool DriverMachine::let_leave() {
  for (auto& [id, trainer] : roster_.trainers()) {
    const bool may_go = trainer.quiesced && !is_member(trainer) && !saving_.is_by(id);
    if (trainer.leaves && !trainer.killed && may_go)
      kill(trainer, "its node drains (" + trainer.why_it_leaves + ")");
  }
  const int stay = staying_members();
  if (stay == members() || stay < config_->min_trainers) {
    agenda_.cancel_leave();
    return false;
  }
  if (following_.join_at()) return false;  // then
  agenda_.leave(committed());
  if (committed() < *agenda_.leave_at()) return false;
  if (config_->sharded && committed() != checkpoints_.newest_step()) {
    agenda_.cancel_leave();  // it could not be saved; a later one may be
    return false;
  }
  const auto leaves = std::find_if(members_.begin(), members_.end(),
                                   [this](ActorId member) { return roster_.at(member).leaves; });
  const TrainerSeat& one = roster_.at(*leaves);
  open_generation(describe(one) + " leaves: its node drains (" + one.why_it_leaves + ")", false);
  return true;
}

// Who joins takes the state beside the steps.

/// The source is on a follower's node, if a member is; else it is the last, since the first has checkpoints
/// to write.
void DriverMachine::start_following(const std::vector<ActorId>& followers) {
  const NodeId node = roster_.at(followers.front()).ready.node;
  ActorId source = members_.back();
  for (const ActorId member : members_) {
    if (roster_.at(member).ready.node == node) source = member;
  }
  following_.begin(source, generation_, followers, now_ + config_->deadlines.hang);
  out_.push_back(SendOrder{source, ShareState{generation_}});
}

void DriverMachine::report(const StateShared& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (!following_.share(r.actor, now_ + config_->deadlines.standstill))
    return ignore("nobody follows " + describe(from));
  for (const ActorId follower : following_.followers())
    out_.push_back(
        SendOrder{follower, FollowState{generation_, r.address, following_.shared_in(), lineage_}});
}

void DriverMachine::report(const StateFollowed& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (!following_.catch_up(r.actor)) return ignore(describe(from) + " follows nobody");
  widen();
}

void DriverMachine::report(const FollowFailed& r, TrainerSeat& from) {
  if (!current(r.generation)) return;
  if (!following_.fail(r.actor)) return ignore(describe(from) + " follows nobody");
  stop_following(r.actor, describe(from) + " could not take the state beside the steps: " + r.reason);
}

/// It is gone, or has given up. Without a source or a follower there is nothing to wait for.
void DriverMachine::stop_following(ActorId who, const std::string& why) {
  if (!following_.is_on()) return;
  if (following_.drop(who) && following_.must_wait_for_copies())
    out_.push_back(Notice{why + "; the others wait for it", {}});
  widen();
}

bool DriverMachine::all_caught_up() const {
  return following_.all_caught_up([this](ActorId follower) {
    const auto at = roster_.trainers().find(follower);
    return at != roster_.trainers().end() && !at->second.killed;
  });
}

void DriverMachine::check_following() {
  if (!following_.is_overdue(now_) || all_caught_up()) return;
  following_.give_up();
  expired("a trainer that was to join did not get the state beside the steps; the others wait for it");
  widen();
}

}  // namespace troupe::train
