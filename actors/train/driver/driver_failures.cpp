/// Progress and failures: who hangs, what is blamed on the job's code, and when it is enough.
#include <algorithm>

#include "actors/train/driver/driver_machine.hpp"

namespace troupe::train {

// Progress.

bool DriverMachine::Watch::hear(const Progress& news, Instant now) {
  const bool moved = news.count != progress.count;
  if (moved || !news.computes) since = now;
  progress = news;
  return moved;
}

void DriverMachine::report(const TrainerHeartbeat& r, Trainer& from, Instant now, Actions&) {
  const bool further = from.watch.hear(r.progress, now);
  if (further && is_member(from)) moved(now);
  if (further && following_ && following_->followers.contains(r.actor))
    following_->deadline = now + config_.deadlines.standstill;
  // It ends this first, and then it has the time to leave.
  if (r.progress.computes) from.deadline = std::max(from.deadline, now + config_.deadlines.quiesce);
}

/// Somebody has come further: what waits for all of them may wait on.
void DriverMachine::moved(Instant now) {
  if (generation_runs()) deadline_ = now + config_.deadlines.standstill;
  stop_deadline_ = std::max(stop_deadline_, now + config_.deadlines.stop);
}

/// Whoever computes is held to its own deadline.
bool DriverMachine::somebody_computes() const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](ActorId member) { return trainers_.at(member).watch.progress.computes; }) ||
         std::any_of(loaders_.begin(), loaders_.end(),
                     [](const auto& entry) { return entry.second.watch.progress.computes; });
}

std::string DriverMachine::who_waits() const {
  std::string text;
  for (const auto& [id, trainer] : trainers_) {
    const Progress& at = trainer.watch.progress;
    text += (text.empty() ? "" : ", ") + describe(trainer) + (at.computes ? " computes" : " waits") +
            (at.doing.empty() ? "" : " in " + at.doing);
  }
  return text.empty() ? "no trainer is up" : text;
}

/// The generation's deadline is over.
void DriverMachine::check_standstill(Instant now, Actions& out) {
  if (holds() || somebody_computes()) return;
  // Without a loader nobody can progress; that wait has a deadline of its own.
  if (state_ != State::kForming && loaders_.empty()) return;
  if (state_ == State::kRunning && committed() >= agenda_.limit()) return;
  const std::string what = "nobody computes, and nobody has come further for " +
                           seconds_of(config_.deadlines.standstill) + ": " + who_waits();
  expired(what, out);
  failed_at(committed(), what, out);
  open_generation(what, true, now, out);
}

void DriverMachine::expired(const std::string& what, Actions& out) {
  out.push_back(DeadlineExpired{what});
}

// Failures.

/// The step that a trainer is at, or was when it died.
std::int64_t DriverMachine::step_of(const Trainer& trainer) const {
  return std::max(committed(), trainer.rank < 0 ? 0 : trainer.applied);
}

std::string DriverMachine::place(std::int64_t step) const {
  if (state_ == State::kBarrier && barrier_task_ == BarrierTask::kEvaluate)
    return "in the evaluation after step " + std::to_string(step);
  if (state_ == State::kBarrier) return "at the state of step " + std::to_string(step);
  return step == 0 ? "before the first step was through" : "at step " + std::to_string(step + 1);
}

/// Trainers that die of one thing, one after another, have failed once.
void DriverMachine::blame(const Trainer& trainer, const std::string& why, Actions& out) {
  if (trainer.rank >= 0 && !failures_.is_first_of_generation()) return;
  failed_at(step_of(trainer), why, out);
}

/// A failure that runs again as it ran before, if the code is what failed.
void DriverMachine::failed_at(std::int64_t step, const std::string& why, Actions& out) {
  if (over()) return;
  failed(failures_.at_step(step, why, [this](std::int64_t at) { return place(at); }), out);
}

void DriverMachine::spawn_failed(SpawnKind kind, const std::string& why, bool by_code, Instant now,
                                 Actions& out) {
  const std::string what =
      std::string(kind == SpawnKind::kTrainer ? "a trainer" : "a loader") + " could not be started: " + why;
  if (why != pool(kind).last_failure) out.push_back(Notice{what, {}});  // said once
  count_failure(kind, why, now, out);
  if (by_code) failed_at(committed(), what, out);
}

void DriverMachine::count_failure(SpawnKind kind, const std::string& why, Instant now, Actions& out) {
  Pool& p = pool(kind);
  ++p.failures;
  p.last_failure = why;
  p.not_before = std::max(p.not_before, now + config_.restart.pause_after(p.failures));
  if (p.failures <= config_.restart.budget || p.given_up) return;
  p.given_up = true;
  const std::string text = std::to_string(p.failures) + " failures without progress, the last one: " + why;
  out.push_back(Notice{"nothing is started again after " + text, {}});
  const bool trainers = kind == SpawnKind::kTrainer;
  const int left = static_cast<int>(trainers ? trainers_.size() : loaders_.size());
  if (left < (trainers ? config_.min_trainers : 1)) fail(text, out);
}

}  // namespace troupe::train
