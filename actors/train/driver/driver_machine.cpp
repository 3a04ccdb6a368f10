/// Who is there: spawning with back-off, signs of life, deadlines. What a generation does is in
/// driver_generations.cpp, what a commit does in driver_commits.cpp.
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
    : config_(std::move(config)),
      mutations_(mutations),
      generation_{config_.incarnation, 0},
      steps_(config_),
      evaluations_(config_),
      agenda_(config_, evaluations_.history()),
      checkpoints_(config_.resume, config_.keep_checkpoints),
      failures_(config_.restart, config_.failed_generations) {
  TROUPE_ASSERT(1 <= config_.min_trainers && config_.min_trainers <= config_.trainers &&
                    config_.trainers <= config_.logical_ranks,
                "1 <= min_trainers <= trainers <= logical_ranks");
  TROUPE_ASSERT(
      config_.loaders >= 1 && config_.epochs >= 1 && config_.steps_per_epoch >= 1 && config_.ahead >= 1,
      "loaders, epochs, steps per epoch and steps ahead are at least 1");
  TROUPE_ASSERT(config_.keep_checkpoints >= 1, "the newest checkpoint is kept");
  const std::int64_t best = evaluations_.history().kept.step;
  if (evaluations_.is_best(best)) checkpoints_.set_best(best);
}

std::vector<DriverAction> DriverMachine::start(Instant now) {
  Actions out;
  last_event_ = now;
  loaderless_since_ = now;
  generation_.counter = 1;
  grace_end_ = now + std::min(config_.deadlines.start_grace, config_.deadlines.gather / 2);
  deadline_ = now + config_.deadlines.gather;
  spawn_missing(now, out);
  return out;
}

std::vector<DriverAction> DriverMachine::on(const DriverEvent& event, Instant now) {
  Actions out;
  ignored_.clear();
  if (over()) {
    ignore("the job is over");
    return out;
  }
  catch_up(now);
  std::visit([&](const auto& e) { handle(e, now, out); }, event);
  if (!over()) spawn_missing(now, out);
  return out;
}

/// Events come at least ten times a second (ticks). After a hole every deadline moves by its length.
void DriverMachine::catch_up(Instant now) {
  const Duration gap = now - last_event_;
  last_event_ = now;
  if (gap < kStoodStill) return;
  for (auto& [id, trainer] : trainers_) {
    trainer.last_heard += gap;
    trainer.watch.since += gap;
    trainer.deadline += gap;
  }
  for (auto& [id, loader] : loaders_) {
    loader.last_heard += gap;
    loader.watch.since += gap;
  }
  for (auto& [token, spawn] : spawns_) spawn.deadline += gap;
  if (following_) following_->deadline += gap;
  grace_end_ += gap;
  deadline_ += gap;
  loaderless_since_ += gap;
  stop_deadline_ += gap;
}

void DriverMachine::fail(std::string why, Actions& out, std::string todo) {
  if (over()) return;
  state_ = State::kFailed;
  out.push_back(JobFailed{std::move(why), std::move(todo)});
}

bool DriverMachine::failed(std::optional<JobFailed> failure, Actions& out) {
  if (failure) fail(std::move(failure->reason), out, std::move(failure->todo));
  return failure.has_value();
}

// Trainers.

std::string DriverMachine::describe(const Trainer& trainer) const {
  const std::string rank = trainer.rank < 0 ? "" : " (rank " + std::to_string(trainer.rank) + ")";
  return "trainer " + to_string(trainer.ready.actor) + rank;
}

void DriverMachine::handle(const TrainerReady& e, Instant now, Actions& out) {
  spawns_.erase(e.token);
  if (dead_.contains(e.actor) || trainers_.contains(e.actor)) {
    ignore("trainer " + to_string(e.actor) + " is known already, or dead");
    return;
  }
  Trainer& trainer = trainers_[e.actor];
  trainer.ready = e;
  trainer.last_heard = trainer.watch.since = now;
  trainer.arrival = ++arrivals_;
  trainer.quiesced = true;  // it holds nothing, and is in no collective
  if (staying() > config_.trainers) return kill(trainer, "there are trainers enough", now, out);
  if (state_ == State::kGathering || state_ == State::kQuiescing) {
    ask_to_quiesce(trainer, "welcome", now, out);
  } else {
    widen(now, out);
  }
}

void DriverMachine::handle(const TrainerDown& e, Instant now, Actions& out) {
  const auto it = trainers_.find(e.actor);
  if (it == trainers_.end()) {
    ignore("trainer " + to_string(e.actor) + " is not known to be alive");
    return;
  }
  const Trainer gone = it->second;
  const bool member = is_member(gone);
  trainers_.erase(it);
  dead_.insert(e.actor);
  failures_.forget(e.actor);
  const std::string what = describe(gone) + " died: " + e.reason;
  if (const bool handed_over = gone.leaves && gone.killed && !member; !handed_over) {
    out.push_back(Notice{what, e.actor});
    count_failure(SpawnKind::kTrainer, what, now, out);
  }
  if (!over() && !gone.killed && ended_by_itself(e.reason)) blame(gone, what, out);
  if (over()) return;
  const bool opens = generation_runs() && member;
  if (opens) open_generation(what, true, now, out);
  if (gone.rank >= 0) interruption_.member_died(what, !opens && !gone.killed);
  if (opens) return;
  stop_following(e.actor, what, now, out);
  plan_when_known(now, out);
}

void DriverMachine::kill(Trainer& trainer, const std::string& why, Instant now, Actions& out) {
  if (trainer.killed) return;
  trainer.killed = true;
  trainer.deadline = now + config_.deadlines.kill;
  out.push_back(KillActor{trainer.ready.actor, why});
  if (generation_runs() && is_member(trainer)) {
    open_generation(describe(trainer) + " is killed: " + why, true, now, out);
  }
}

void DriverMachine::check_trainers(Instant now, Actions& out) {
  std::vector<ActorId> unconfirmed;
  for (auto& [id, trainer] : trainers_) {
    if (trainer.killed) {
      if (now >= trainer.deadline) unconfirmed.push_back(id);
    } else if (now - trainer.last_heard >= config_.deadlines.silence) {
      expired(describe(trainer) + " gave no sign of life for " + seconds_of(config_.deadlines.silence), out);
      kill(trainer, "no sign of life", now, out);
    } else if (trainer.watch.hangs(now, config_.deadlines.hang)) {
      const std::string why = "it has shown no progress for " + seconds_of(config_.deadlines.hang) +
                              " (deadlines.hang) in " + trainer.watch.progress.doing;
      const std::string what = describe(trainer) + " is killed: " + why;
      expired(what, out);
      blame(trainer, what, out);
      if (over()) return;
      kill(trainer, why, now, out);
    } else if (!trainer.quiesced && now >= trainer.deadline) {
      expired(
          describe(trainer) + " did not leave its collective within " + seconds_of(config_.deadlines.quiesce),
          out);
      kill(trainer, "it did not leave its collective in time", now, out);
    }
  }
  for (const ActorId id : unconfirmed) {
    expired("nobody confirmed the death of " + describe(trainers_.at(id)) + " within " +
                seconds_of(config_.deadlines.kill),
            out);
    handle(TrainerDown{id, "killed, and nobody confirmed its death: it is refused from now on"}, now, out);
  }
}

// Loaders.

std::vector<LoaderInfo> DriverMachine::loader_list() const {
  std::vector<LoaderInfo> list;
  for (const auto& [id, loader] : loaders_) list.push_back(loader.info);
  return list;
}

void DriverMachine::announce_loaders(Actions& out) {
  const SetLoaders order{loader_list()};
  for (const auto& [id, trainer] : trainers_) {
    if (!trainer.killed) out.push_back(SendOrder{id, order});
  }
}

void DriverMachine::handle(const LoaderReady& e, Instant now, Actions& out) {
  spawns_.erase(e.token);
  if (dead_.contains(e.actor)) {
    ignore("loader " + to_string(e.actor) + " is dead");
    return;
  }
  if (static_cast<int>(loaders_.size()) >= config_.loaders && !loaders_.contains(e.actor)) {
    return kill_loader(e.actor, "there are loaders enough", now, out);
  }
  loaders_[e.actor] = {{e.actor, e.node, e.address}, now, {{}, now}, false};
  announce_loaders(out);
}

void DriverMachine::handle(const LoaderDown& e, Instant now, Actions& out) {
  dead_.insert(e.actor);
  const bool used = loaders_.contains(e.actor);
  lost_loader(e.actor, e.reason, now, out);
  if (used && !over() && ended_by_itself(e.reason))
    failed_at(committed(), "loader " + to_string(e.actor) + " died: " + e.reason, out);
}

void DriverMachine::lost_loader(ActorId actor, const std::string& why, Instant now, Actions& out,
                                bool fault) {
  if (loaders_.erase(actor) == 0) {
    ignore("loader " + to_string(actor) + " is not in use");
    return;
  }
  if (loaders_.empty()) loaderless_since_ = now;
  moved(now);  // what was asked of it is asked of another
  const std::string what = "loader " + to_string(actor) + " died: " + why;
  if (fault) out.push_back(Notice{what, actor});
  announce_loaders(out);
  if (fault) count_failure(SpawnKind::kLoader, what, now, out);
}

void DriverMachine::kill_loader(ActorId actor, const std::string& why, Instant now, Actions& out) {
  dead_.insert(actor);
  out.push_back(KillActor{actor, why});
  if (loaders_.contains(actor)) lost_loader(actor, why, now, out);
}

void DriverMachine::handle(const LoaderHeartbeat& e, Instant now, Actions& out) {
  if (const auto it = loaders_.find(e.actor); it != loaders_.end()) {
    it->second.last_heard = now;
    if (it->second.watch.hear(e.progress, now)) moved(now);
  } else if (dead_.contains(e.actor)) {
    ignore("loader " + to_string(e.actor) + " counts as dead");
    out.push_back(KillActor{e.actor, "it counts as dead"});
  }
}

void DriverMachine::check_loaders(Instant now, Actions& out) {
  std::vector<ActorId> silent, hanging;
  for (const auto& [id, loader] : loaders_) {
    if (now - loader.last_heard >= config_.deadlines.silence) {
      silent.push_back(id);
    } else if (loader.watch.hangs(now, config_.deadlines.hang)) {
      hanging.push_back(id);
    }
  }
  for (const ActorId id : silent) {
    expired("loader " + to_string(id) + " gave no sign of life for " + seconds_of(config_.deadlines.silence),
            out);
    kill_loader(id, "no sign of life", now, out);
  }
  for (const ActorId id : hanging) {
    const std::string why = "it has shown no progress for " + seconds_of(config_.deadlines.hang) +
                            " (deadlines.hang) in " + loaders_.at(id).watch.progress.doing;
    const std::string what = "loader " + to_string(id) + " is killed: " + why;
    expired(what, out);
    failed_at(committed(), what, out);
    if (over()) return;
    kill_loader(id, why, now, out);
  }
  if (over()) return;
  if (loaders_.empty() && now - loaderless_since_ >= config_.deadlines.gather) {
    fail("no loader could be started in time: " + loader_pool_.last_failure, out);
  }
}

// Spawning.

void DriverMachine::spawn_missing(Instant now, Actions& out) {
  // A process that starts takes the CPUs of those that recover: it waits until they have.
  const bool recovers = interruption_.is_on() && staying() >= config_.min_trainers &&
                        now - interruption_.detected() < kRecovers;
  if (!recovers) spawn_missing(SpawnKind::kTrainer, config_.trainers, staying(), now, out);
  spawn_missing(SpawnKind::kLoader, config_.loaders, static_cast<int>(loaders_.size()), now, out);
}

void DriverMachine::spawn_missing(SpawnKind kind, int wanted, int have, Instant now, Actions& out) {
  const Pool& p = pool(kind);
  if (p.given_up || now < p.not_before) return;
  for (const auto& [token, spawn] : spawns_) have += spawn.kind == kind ? 1 : 0;
  for (; have < wanted; ++have) {
    const std::uint64_t token = ++last_token_;
    spawns_[token] = {kind, now + config_.deadlines.spawn};
    out.push_back(
        SpawnActor{kind, token, std::to_string(have) + " of " + std::to_string(wanted) + " are there"});
  }
}

void DriverMachine::handle(const SpawnFailed& e, Instant now, Actions& out) {
  const auto it = spawns_.find(e.token);
  if (it == spawns_.end()) {
    ignore("nobody waits for spawn " + std::to_string(e.token));
    return;
  }
  const SpawnKind kind = it->second.kind;
  spawns_.erase(it);
  const bool threw = e.code == ErrorCode::kTaskFailed || e.code == ErrorCode::kBadConfig ||
                     e.code == ErrorCode::kBadInput || e.code == ErrorCode::kIo ||
                     e.code == ErrorCode::kCorrupt;
  spawn_failed(kind, e.reason, threw || ended_by_itself(e.reason), now, out);
}

/// Told once: a spawn that is repeated waits for the same.
void DriverMachine::handle(const SpawnWaits& e, Instant /*now*/, Actions& out) {
  const auto it = spawns_.find(e.token);
  if (it == spawns_.end()) return ignore("nobody waits for spawn " + std::to_string(e.token));
  Pool& p = pool(it->second.kind);
  if (std::exchange(p.waits_for, e.why) == e.why) return;
  out.push_back(
      Notice{(it->second.kind == SpawnKind::kTrainer ? "a trainer waits: " : "a loader waits: ") + e.why});
}

void DriverMachine::check_spawns(Instant now, Actions& out) {
  std::vector<std::uint64_t> late;
  for (const auto& [token, spawn] : spawns_) {
    if (now >= spawn.deadline) late.push_back(token);
  }
  for (const std::uint64_t token : late) {
    out.push_back(CancelSpawn{token, "no answer in time"});
    const SpawnKind kind = spawns_.at(token).kind;
    spawns_.erase(token);
    const std::string why = "it did not start within " + seconds_of(config_.deadlines.spawn);
    expired(std::string(kind == SpawnKind::kTrainer ? "a trainer" : "a loader") + " did not start within " +
                seconds_of(config_.deadlines.spawn),
            out);
    spawn_failed(kind, why, false, now, out);
    if (over()) return;
  }
}

// Time and the user.

void DriverMachine::handle(const TrainerReport& e, Instant now, Actions& out) {
  const ActorId actor = std::visit([](const auto& r) { return r.actor; }, e);
  const auto it = trainers_.find(actor);
  if (it == trainers_.end() || it->second.killed) {
    ignore("trainer " + to_string(actor) + " counts as dead, or is not known");
    if (dead_.contains(actor)) out.push_back(KillActor{actor, "it counts as dead"});
    return;
  }
  it->second.last_heard = now;
  // All but a heartbeat is progress, though its count comes with the next one.
  if (!std::holds_alternative<TrainerHeartbeat>(e)) it->second.watch.since = now;
  std::visit([&](const auto& r) { report(r, it->second, now, out); }, e);
}

void DriverMachine::handle(const StopRequested& e, Instant now, Actions& out) {
  if (!agenda_.stop(committed(), e.hold_state)) return fail("stopped at once", out);
  if (can_end_at_once()) return end_as_it_is(out);
  stop_deadline_ = now + config_.deadlines.stop;
  out.push_back(Notice{"stopping after step " + std::to_string(*agenda_.stop_at()), {}});
  if (state_ == State::kRunning || holds()) proceed(now, out);
}

void DriverMachine::handle(const GoOn&, Instant now, Actions& out) {
  agenda_.release();
  if (!holds()) return;
  proceed(now, out);
  widen(now, out);
}

/// No step of this run would be lost, or nobody is there who could write it down.
bool DriverMachine::can_end_at_once() const {
  if (agenda_.stop_holds_state()) return false;
  if (state_ == State::kRunning || state_ == State::kBarrier) return false;
  if (steps_.furthest() == steps_.begun_at()) return true;
  return std::none_of(trainers_.begin(), trainers_.end(), [](const auto& entry) {
    const Trainer& trainer = entry.second;
    return !trainer.killed && (trainer.steps != kNoState || trainer.holds);
  });
}

/// A stop that no checkpoint can follow.
void DriverMachine::end_as_it_is(Actions& out) {
  const std::int64_t saved = checkpoints_.saved_step();
  if (config_.checkpoints && committed() > saved && committed() > steps_.begun_at()) {
    out.push_back(Notice{
        "stopped without a checkpoint of step " + std::to_string(committed()) + ": " +
            (saved == kNoState ? "none was written" : "the newest is of step " + std::to_string(saved)),
        {}});
  }
  finish({}, {}, out);
}

void DriverMachine::finish(const StateHash& hash, EndState state, Actions& out) {
  state_ = State::kDone;
  const bool whole = agenda_.is_whole(committed());
  const bool early = agenda_.ended_early(committed());
  const bool not_finite = agenda_.ends_not_finite();
  out.push_back(JobDone{.hash = hash,
                        .steps = committed(),
                        .stopped = (!whole && !early) || hash.empty(),
                        .stopped_early = !whole && early && !not_finite,
                        .stopped_not_finite = !whole && early && not_finite,
                        .begun_at = std::min(steps_.begun_at(), committed()),
                        .failed_checkpoints = checkpoints_.failed(),
                        .saved = checkpoints_.saved_step(),
                        .history = history_now(),
                        .best_metric = evaluations_.history().kept.value,
                        .best_checkpoint = checkpoints_.best(),
                        .state = std::move(state)});
}

void DriverMachine::handle(const DriverTick&, Instant now, Actions& out) {
  check_trainers(now, out);
  if (!over()) check_loaders(now, out);
  if (!over()) check_spawns(now, out);
  if (!over()) check_state(now, out);
}

void DriverMachine::check_state(Instant now, Actions& out) {
  if (agenda_.stop_at() && can_end_at_once()) return end_as_it_is(out);
  if (agenda_.stop_at() && now >= stop_deadline_) {
    expired("the stop has led to no checkpoint within " + seconds_of(config_.deadlines.stop) + " (" +
                who_waits() + ")",
            out);
    return end_as_it_is(out);
  }
  if (state_ == State::kGathering || state_ == State::kQuiescing) plan_when_known(now, out);
  check_following(now, out);
  if (now < deadline_) return;
  if (generation_runs()) return check_standstill(now, out);
  if (state_ != State::kGathering) return;
  const bool waits = std::any_of(spawns_.begin(), spawns_.end(),
                                 [](const auto& spawn) { return spawn.second.kind == SpawnKind::kTrainer; });
  fail("of " + std::to_string(config_.min_trainers) + " trainers that are needed (min_trainers) " +
           std::to_string(trainers_.size()) + " came within " + seconds_of(config_.deadlines.gather) +
           " (deadlines.gather)" +
           (trainer_pool_.last_failure.empty() ? "" : ": " + trainer_pool_.last_failure),
       out,
       !waits ? ""
       : trainer_pool_.waits_for.empty()
           ? "one more was asked for and has not started: see that its CPUs (trainer_cpus) are free"
           : "one more waits: " + trainer_pool_.waits_for);
}

}  // namespace troupe::train
