#include "actors/train/driver/agenda.hpp"

#include <algorithm>
#include <utility>

namespace troupe::train {
namespace {

constexpr int kAheadOfJoin = 2;  ///< steps: the next can be computed while one is being committed
/// From here on a step is granted after the commit before it: that wait is nothing beside the step, and a
/// stop ends after the step under way.
constexpr Duration kLongStep = std::chrono::milliseconds(100);

}  // namespace

Agenda::Agenda(SharedConfig config, const History& resumed)
    : config_(std::move(config)),
      evaluated_(config_->resume.empty() ? 0 : config_->resume.back().step),
      released_(evaluated_),
      saved_(evaluated_) {
  const std::int64_t begun_at = evaluated_;
  if (config_->evaluates) evaluated_ = -1;
  if (config_->resume.empty()) return;
  const bool waited_enough =
      !config_->stop_early.metric.empty() && resumed.patience.since >= config_->stop_early.patience;
  if (waited_enough && evaluation_at(begun_at)) early_at_ = begun_at;
  // With nothing left to train the figures of the last epoch are still to be told, if nobody knows them, or
  // they may be another job's.
  const bool known = !resumed.metrics.empty() && !config_->resume.back().in_memory;
  if (begun_at > 0 && is_whole(begun_at) && !known) evaluated_ = begun_at - 1;
}

bool Agenda::evaluation_at(std::int64_t step) const {
  return step % config_->steps_per_epoch == 0 || step == config_->total_steps() ||
         (config_->pieces() > 0 && config_->evaluate_every > 0 && step % config_->evaluate_every == 0);
}

bool Agenda::checkpoint_at(std::int64_t step, State state) const {
  const std::int64_t every =
      config_->checkpoint_every > 0 ? config_->checkpoint_every : config_->steps_per_epoch;
  return config_->checkpoints && step > 0 &&
         (step % every == 0 || step == config_->total_steps() || step == stop_at_ || step == early_at_ ||
          (config_->sharded && step == leave_at_) || state.is_best ||
          (state.lacks_metric && step == evaluated_));
}

BarrierTask Agenda::due(std::int64_t at, State state) const {
  const bool epoch_end = at % config_->steps_per_epoch == 0;
  if (config_->pieces() > 0 && evaluation_at(at) && at > evaluated_) return BarrierTask::kEvaluate;
  if (checkpoint_at(at, state) && at > saved_) return BarrierTask::kCheckpoint;
  if (is_whole(at) || (stop_at_ && at >= *stop_at_) || ended_early(at)) return BarrierTask::kFinish;
  return config_->hold && epoch_end && at > released_ ? BarrierTask::kHold : BarrierTask::kNone;
}

std::int64_t Agenda::next_barrier(std::int64_t committed, std::optional<std::int64_t> join_at) const {
  const auto next_multiple = [&](std::int64_t of) { return (committed / of + 1) * of; };
  std::int64_t next = config_->total_steps();
  if (config_->pieces() > 0 || config_->checkpoints || config_->hold || config_->tells_metrics ||
      !config_->stop_early.metric.empty()) {
    next = std::min(next, next_multiple(config_->steps_per_epoch));
  }
  if (config_->checkpoints && config_->checkpoint_every > 0)
    next = std::min(next, next_multiple(config_->checkpoint_every));
  if (config_->pieces() > 0 && config_->evaluate_every > 0)
    next = std::min(next, next_multiple(config_->evaluate_every));
  for (const auto& end : {stop_at_, early_at_, join_at, leave_at_}) {
    if (end && *end > committed) next = std::min(next, *end);
  }
  return next;
}

void Agenda::release() {
  released_ = std::max(released_, evaluated_);
}

void Agenda::rewind(std::int64_t step, bool earlier) {
  saved_ = std::min(saved_, step);
  if (earlier) evaluated_ = step;
}

bool Agenda::stop(std::int64_t committed, bool hold_state) {
  const bool becomes_a_stop = hold_state_ && !hold_state;  // it was a pause
  if (stop_at_ && !becomes_a_stop) return false;
  hold_state_ = hold_state;
  stop_at_ = end_of_granted(committed);
  return true;
}

void Agenda::end_early(std::int64_t step, bool not_finite) {
  early_at_ = step;
  not_finite_ = not_finite_ || not_finite;
}

void Agenda::leave(std::int64_t committed) {
  if (!leave_at_) leave_at_ = end_of_granted(committed);
}

std::int64_t Agenda::end_of_granted(std::int64_t committed) const {
  return std::max(limit_, committed);
}

void Agenda::begin_generation(std::int64_t step, Instant now) {
  limit_ = step;
  step_takes_ = Duration::max();  // until one was committed
  committed_at_ = now;
}

void Agenda::note_commits(std::int64_t steps, Instant now) {
  step_takes_ = (now - std::exchange(committed_at_, now)) / steps;
}

void Agenda::grant(std::int64_t committed, bool followed, std::optional<std::int64_t> join_at) {
  int ahead = followed ? std::min(config_->ahead, kAheadOfJoin) : config_->ahead;
  if (step_takes_ >= kLongStep) ahead = 1;
  limit_ = std::max(limit_, std::min(committed + ahead, next_barrier(committed, join_at)));
}

}  // namespace troupe::train
