/// Who comes and goes, time and the user. What a generation does is in driver_generations.cpp, what a commit
/// does in driver_steps.cpp.
#include "actors/train/driver/driver_machine.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/ending.hpp"

namespace troupe::train {
namespace {

/// No event for this long: it was the driver that stood still.
constexpr Duration kStoodStill = std::chrono::seconds(1);
/// A replacement waits no longer than that for the others to recover.
constexpr Duration kRecovers = std::chrono::seconds(1);

}  // namespace

DriverMachine::DriverMachine(DriverConfig config, Mutations mutations)
    : config_(std::make_shared<const DriverConfig>(std::move(config))),
      mutations_(mutations),
      roster_(config_),
      steps_(*config_),
      evaluations_(config_),
      agenda_(config_, evaluations_.seen(steps_.committed())),
      checkpoints_(config_->resume, config_->keep_checkpoints),
      failures_(config_->restart, config_->failed_generations),
      generation_{config_->incarnation, 0} {
  TROUPE_ASSERT(1 <= config_->min_trainers && config_->min_trainers <= config_->trainers &&
                    config_->trainers <= config_->logical_ranks,
                "1 <= min_trainers <= trainers <= logical_ranks");
  TROUPE_ASSERT(
      config_->loaders >= 1 && config_->epochs >= 1 && config_->steps_per_epoch >= 1 && config_->ahead >= 1,
      "loaders, epochs, steps per epoch and steps ahead are at least 1");
  TROUPE_ASSERT(config_->keep_checkpoints >= 1, "the newest checkpoint is kept");
  checkpoints_.set_best(evaluations_.best_file().step);
}

DriverActions DriverMachine::start(Instant now) {
  now_ = now;
  roster_.start(now);
  generation_.counter = 1;
  grace_end_ = now + std::min(config_->deadlines.start_grace, config_->deadlines.gather / 2);
  deadline_ = now + config_->deadlines.gather;
  spawn_missing();
  return std::exchange(out_, {});
}

DriverActions DriverMachine::on(const DriverEvent& event, Instant now) {
  ignored_.clear();
  if (over()) {
    ignore("the job is over");
    return {};
  }
  catch_up(now);
  std::visit([this](const auto& e) { handle(e); }, event);
  if (!over()) spawn_missing();
  return std::exchange(out_, {});
}

/// Events come at least ten times a second (ticks). After a hole every deadline moves by its length.
void DriverMachine::catch_up(Instant now) {
  const Duration gap = now - std::exchange(now_, now);
  if (gap < kStoodStill) return;
  roster_.shift(gap);
  following_.shift(gap);
  grace_end_ += gap;
  deadline_ += gap;
  stop_deadline_ += gap;
}

bool DriverMachine::failed(std::optional<JobFailed> failure) {
  if (failure && !over()) {
    state_ = State::kFailed;
    out_.push_back(*failure);
  }
  return failure.has_value();
}

void DriverMachine::spawn_missing() {
  // A process that starts takes the CPUs of those that recover: it waits until they have.
  const bool recovers = interruption_.is_on() && roster_.staying() >= config_->min_trainers &&
                        now_ - interruption_.detected() < kRecovers;
  roster_.spawn_missing(!recovers, now_, out_);
}

// Trainers.

void DriverMachine::handle(const TrainerReady& e) {
  TrainerSeat* trainer = roster_.add(e, now_);
  if (trainer == nullptr) return ignore("trainer " + to_string(e.actor) + " is known already, or dead");
  if (roster_.staying() > config_->trainers) return kill(*trainer, "there are trainers enough");
  if (state_ == State::kGathering || state_ == State::kQuiescing) {
    ask_to_quiesce(*trainer, "welcome");
  } else {
    widen();
  }
}

void DriverMachine::handle(const TrainerDown& e) {
  const auto gone = roster_.remove(e.actor);
  if (!gone) return ignore("trainer " + to_string(e.actor) + " is not known to be alive");
  failures_.forget(e.actor);
  const bool member = is_member(*gone);
  const std::string what = describe(*gone) + " died: " + e.reason;
  const bool wrote = saving_.is_by(e.actor);
  if (wrote) lose_checkpoint(what);
  if (const bool handed_over = gone->leaves && gone->killed && !member; !handed_over) {
    out_.push_back(Notice{what, e.actor});
    failed(roster_.count_failure(SpawnKind::kTrainer, what, now_, out_));
  }
  if (!over() && !gone->killed && ended_by_itself(e.reason)) blame(*gone, what);
  if (over()) return;
  const bool opens = generation_runs() && member;
  if (opens) open_generation(what, true);
  if (gone->rank >= 0) interruption_.member_died(what, !opens && !gone->killed);
  if (opens) return;
  if (wrote) end_checkpoint();
  stop_following(e.actor, what);
  plan_when_known();
}

/// Who wrote it is gone. It is due again where no step has come since.
void DriverMachine::lose_checkpoint(const std::string& why) {
  const std::int64_t step = saving_.order().step;
  if (saving_.is_copied() && !saving_.is_given_up()) {
    agenda_.saved(step - 1);
    checkpoints_.note_failure();
    out_.push_back(Notice{"no checkpoint of step " + std::to_string(step) + ": " + why, {}});
  }
  saving_.end();
}

void DriverMachine::kill(TrainerSeat& trainer, const std::string& why) {
  if (trainer.killed) return;
  trainer.killed = true;
  trainer.deadline = now_ + config_->deadlines.kill;
  out_.push_back(KillActor{trainer.ready.actor, why});
  if (generation_runs() && is_member(trainer))
    open_generation(describe(trainer) + " is killed: " + why, true);
}

void DriverMachine::check_trainers() {
  // Who is killed may call the others to a new generation, and so give them more time.
  for (auto late = roster_.next_overdue({}, now_); late; late = roster_.next_overdue(late->actor, now_)) {
    TrainerSeat& trainer = roster_.at(late->actor);
    expired(late->what);
    if (late->hangs) blame(trainer, late->what);
    if (late->hangs && over()) return;
    kill(trainer, late->why);
  }
  for (const ActorId id : roster_.unconfirmed(now_)) {
    expired("nobody confirmed the death of " + describe(roster_.at(id)) + " within " +
            seconds_of(config_->deadlines.kill));
    handle(TrainerDown{id, "killed, and nobody confirmed its death: it is refused from now on"});
  }
}

void DriverMachine::handle(const TrainerReport& e) {
  const ActorId actor = std::visit([](const auto& r) { return r.actor; }, e);
  TrainerSeat* from = roster_.find(actor);
  if (from == nullptr || from->killed) {
    ignore("trainer " + to_string(actor) + " counts as dead, or is not known");
    if (roster_.counts_as_dead(actor)) out_.push_back(KillActor{actor, "it counts as dead"});
    return;
  }
  from->life.last_heard = now_;
  // All but a heartbeat is progress, though its count comes with the next one.
  if (!std::holds_alternative<TrainerHeartbeat>(e)) from->life.since = now_;
  std::visit([&](const auto& r) { report(r, *from); }, e);
}

void DriverMachine::report(const TrainerHeartbeat& r, TrainerSeat& from) {
  const bool further = from.life.note(r.progress, now_);
  const bool writes_for_all = barrier_.is(BarrierTask::kWritten) && saving_.is_by(r.actor);
  if (further && (is_member(from) || writes_for_all)) extend_deadlines();
  if (further) following_.note_progress(r.actor, now_ + config_->deadlines.standstill);
  // It ends this first, and then it has the time to leave.
  if (r.progress.computes) from.deadline = std::max(from.deadline, now_ + config_->deadlines.quiesce);
}

// Loaders, and what is started.

void DriverMachine::handle(const LoaderReady& e) {
  if (!roster_.add(e, now_, out_)) ignore("loader " + to_string(e.actor) + " is dead");
}

void DriverMachine::handle(const LoaderDown& e) {
  const bool used = roster_.uses_loader(e.actor);
  roster_.mark_dead(e.actor);
  if (!used) return ignore("loader " + to_string(e.actor) + " is not in use");
  extend_deadlines();  // what was asked of it is asked of another
  failed(roster_.lose_loader(e.actor, e.reason, true, now_, out_));
  if (ended_by_itself(e.reason))
    failed_at(committed(), "loader " + to_string(e.actor) + " died: " + e.reason);
}

void DriverMachine::kill_loader(ActorId loader, const std::string& why, bool fault) {
  out_.push_back(KillActor{loader, why});
  extend_deadlines();
  failed(roster_.lose_loader(loader, why, fault, now_, out_));
}

void DriverMachine::handle(const LoaderHeartbeat& e) {
  if (roster_.uses_loader(e.actor)) {
    if (roster_.note(e, now_)) extend_deadlines();
  } else if (roster_.counts_as_dead(e.actor)) {
    ignore("loader " + to_string(e.actor) + " counts as dead");
    out_.push_back(KillActor{e.actor, "it counts as dead"});
  }
}

void DriverMachine::check_loaders() {
  for (const Roster::Overdue& late : roster_.overdue_loaders(now_)) {
    expired(late.what);
    if (late.hangs) failed_at(committed(), late.what);
    if (late.hangs && over()) return;
    kill_loader(late.actor, late.why, true);
  }
  if (!over()) failed(roster_.check_loaderless(now_));
}

void DriverMachine::handle(const SpawnFailed& e) {
  const auto kind = roster_.take_spawn(e.token);
  if (!kind) return ignore("nobody waits for spawn " + std::to_string(e.token));
  const bool threw = e.code == ErrorCode::kTaskFailed || e.code == ErrorCode::kBadConfig ||
                     e.code == ErrorCode::kBadInput || e.code == ErrorCode::kIo ||
                     e.code == ErrorCode::kCorrupt;
  failed(roster_.spawn_failed(*kind, e.reason, now_, out_));
  if (threw || ended_by_itself(e.reason)) failed_at(committed(), could_not_start(*kind, e.reason));
}

void DriverMachine::handle(const SpawnWaits& e) {
  if (!roster_.spawn_waits(e, now_, out_)) ignore("nobody waits for spawn " + std::to_string(e.token));
}

void DriverMachine::handle(const WorkerLeaves& e) {
  if (roster_.uses_loader(e.actor)) {
    if (!e.stays) kill_loader(e.actor, "its node drains (" + e.reason + ")", false);
    return;
  }
  TrainerSeat* trainer = roster_.find(e.actor);
  if (trainer == nullptr || trainer->killed)
    return ignore("trainer " + to_string(e.actor) + " counts as dead, or is not known");
  trainer->leaves = !e.stays;
  trainer->why_it_leaves = e.reason;
  if (e.stays) agenda_.cancel_leave();
  widen();
}

// Failures.

/// Trainers that die of one thing, one after another, have failed once.
void DriverMachine::blame(const TrainerSeat& trainer, const std::string& why) {
  if (trainer.rank >= 0 && !failures_.is_first_of_generation()) return;
  failed_at(std::max(committed(), trainer.rank < 0 ? 0 : trainer.applied), why);
}

/// A failure that runs again as it ran before, if the code is what failed.
void DriverMachine::failed_at(std::int64_t step, const std::string& why) {
  if (over()) return;
  failed(failures_.at_step(step, why, [this](std::int64_t at) { return place(at); }));
}

std::string DriverMachine::place(std::int64_t step) const {
  if (barrier_.is(BarrierTask::kEvaluate)) return "in the evaluation after step " + std::to_string(step);
  if (state_ == State::kBarrier) return "at the state of step " + std::to_string(step);
  return step == 0 ? "before the first step was through" : "at step " + std::to_string(step + 1);
}

// Time and the user.

/// Somebody has come further: what waits for all of them may wait on.
void DriverMachine::extend_deadlines() {
  if (generation_runs()) deadline_ = now_ + config_->deadlines.standstill;
  stop_deadline_ = std::max(stop_deadline_, now_ + config_->deadlines.stop);
}

void DriverMachine::handle(const DriverTick&) {
  check_trainers();
  if (!over()) check_loaders();
  if (!over()) failed(roster_.check_spawns(now_, out_));
  if (!over()) check_state();
}

void DriverMachine::check_state() {
  if (agenda_.stop_at() && can_end_at_once()) return end_as_it_is();
  if (agenda_.stop_at() && now_ >= stop_deadline_) {
    expired("the stop has led to no checkpoint within " + seconds_of(config_->deadlines.stop) + " (" +
            roster_.who_waits() + ")");
    return end_as_it_is();
  }
  plan_when_known();
  check_following();
  if (now_ < deadline_) return;
  if (generation_runs()) return check_standstill();
  if (state_ == State::kGathering) failed(roster_.too_few_came());
}

/// The generation's deadline is over.
void DriverMachine::check_standstill() {
  // Whoever computes is held to its own deadline.
  if (holds() || roster_.somebody_computes(members_)) return;
  // So is who writes what they wait for, which may have left the members since.
  const bool waits_for_file = saving_.is_on() && barrier_.is(BarrierTask::kWritten);
  if (waits_for_file && roster_.somebody_computes({saving_.order().writer})) return;
  // Without a loader nobody can progress; that wait has a deadline of its own.
  if (state_ != State::kForming && !roster_.has_loaders()) return;
  if (state_ == State::kRunning && committed() >= agenda_.limit()) return;
  const std::string what = "nobody computes, and nobody has come further for " +
                           seconds_of(config_->deadlines.standstill) + ": " + roster_.who_waits();
  expired(what);
  failed_at(committed(), what);
  open_generation(what, true);
}

void DriverMachine::handle(const StopRequested& e) {
  if (!agenda_.stop(committed(), e.hold_state)) return fail("stopped at once");
  if (can_end_at_once()) return end_as_it_is();
  stop_deadline_ = now_ + config_->deadlines.stop;
  out_.push_back(Notice{"stopping after step " + std::to_string(*agenda_.stop_at()), {}});
  if (state_ == State::kRunning || holds()) proceed();
}

void DriverMachine::handle(const GoOn&) {
  agenda_.release();
  if (!holds()) return;
  proceed();
  widen();
}

/// No step of this run would be lost, or nobody is there who could write it down.
bool DriverMachine::can_end_at_once() const {
  if (agenda_.stop_holds_state()) return false;
  if (state_ == State::kRunning || state_ == State::kBarrier) return false;
  if (steps_.furthest() == steps_.begun_at()) return true;
  return std::none_of(roster_.trainers().begin(), roster_.trainers().end(), [this](const auto& entry) {
    const auto& [id, trainer] = entry;
    return !trainer.killed && (trainer.steps != kNoState || forming_.holds(id));
  });
}

/// A stop that no checkpoint can follow.
void DriverMachine::end_as_it_is() {
  const std::int64_t saved = checkpoints_.saved_step();
  if (config_->checkpoints && committed() > saved && committed() > steps_.begun_at()) {
    out_.push_back(Notice{
        "stopped without a checkpoint of step " + std::to_string(committed()) + ": " +
            (saved == kNoState ? "none was written" : "the newest is of step " + std::to_string(saved)),
        {}});
  }
  finish({}, {});
}

void DriverMachine::finish(const StateHash& hash, EndState state) {
  state_ = State::kDone;
  const bool whole = agenda_.is_whole(committed());
  const bool early = agenda_.ended_early(committed());
  const bool not_finite = agenda_.ends_not_finite();
  out_.push_back(JobDone{.hash = hash,
                         .steps = committed(),
                         .stopped = (!whole && !early) || hash.empty(),
                         .stopped_early = !whole && early && !not_finite,
                         .stopped_not_finite = !whole && early && not_finite,
                         .begun_at = std::min(steps_.begun_at(), committed()),
                         .failed_checkpoints = checkpoints_.failed(),
                         .saved = checkpoints_.saved_step(),
                         .history = history_now(),
                         .best_metric = evaluations_.best_file().value,
                         .best_checkpoint = checkpoints_.best(),
                         .state = std::move(state)});
}

}  // namespace troupe::train
