#include "actors/serve/deployment_machine.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::serve {
namespace {

/// A machine that is told nothing for so much longer than it asked for was itself stopped.
constexpr Duration kOwnPause = std::chrono::seconds(1);

}  // namespace

DeploymentMachine::DeploymentMachine(const DeploymentConfig& config)
    : config_(config), scaler_(config), router_(config, scaler_, out_) {
  TROUPE_ASSERT(config.replicas.max >= 1, "replicas");
  TROUPE_ASSERT(config.replicas.min >= 0 && config.replicas.min <= config.replicas.max, "replicas");
  TROUPE_ASSERT(config.max_batch >= 1 && config.max_queue >= 1, "max_batch and max_queue are 1 or more");
  wanted_ = std::max(1, config.replicas.min);
  current_ = {.id = 1, .start_reason = "the deployment begins"};
}

DeploymentMachine::Actions DeploymentMachine::start(Instant now) {
  now_ = now;
  router_.set_now(now);
  next_scaling_ = now + kScaleEvery;
  begun_ = true;
  reconcile();
  wake_at_ = next_wake();
  return std::exchange(out_, {});
}

DeploymentMachine::Actions DeploymentMachine::on(const Event& event, Instant now) {
  now_ = std::max(now_, now);
  router_.set_now(now_);
  if (!stopped_) excuse_own_pause();
  std::visit([this](const auto& one) { on_event(one); }, event);
  tell_proxies();
  wake_at_ = next_wake();
  return std::exchange(out_, {});
}

/// Who was stopped itself (SIGSTOP, a machine that slept) cannot have heard anybody.
void DeploymentMachine::excuse_own_pause() {
  if (wake_at_ == Instant::max() || now_ - wake_at_ < kOwnPause) return;
  const Duration pause = now_ - wake_at_;
  for (auto& [id, replica] : replicas_) {
    replica.since += pause;
    replica.heard += pause;
    replica.checked += pause;
  }
  for (auto& [id, proxy] : proxies_) proxy.heard += pause;
  router_.excuse_pause(pause);
  current_.failing_since += pause;
  if (next_) next_->failing_since += pause;
}

// Requests.

void DeploymentMachine::on_event(const Arrived& event) {
  const bool is_taken = !draining_ || (event.called && callers_ > 0);
  if (!is_taken || stopped_) return router_.fail(event.request, Failure::kUnavailable, "the deployment ends");
  scaler_.arrived(event.rows, now_);
  if (is_out_of_order())
    return router_.fail(event.request, Failure::kUnavailable, "no replica comes up",
                        std::max<Duration>(current_.not_before - now_, std::chrono::seconds(1)),
                        current_.last_why);
  router_.arrive(event);
  scale_from_zero();
}

void DeploymentMachine::on_event(const Left& event) {
  router_.leave(event.request);
  check_drained();
}

void DeploymentMachine::dispatch() {
  router_.set_newest(next_ ? next_->id : 0);
  router_.dispatch();
}

void DeploymentMachine::on_event(const BatchDone& event) {
  const auto at = replicas_.find(event.replica);
  if (at == replicas_.end() || !router_.has_batch(event.replica, event.batch)) return;
  at->second.heard = now_;
  count_answer(at->second);
  const std::int64_t rows = router_.done(event);
  if (rows > 0 && event.computed > Duration{0}) scaler_.computed(rows, event.computed);
  reconcile();  // it may be draining
  dispatch();
  check_drained();
}

void DeploymentMachine::on_event(const Tick&) {
  if (stopped_) return;
  router_.expire();
  look_after_replicas();
  look_after_proxies();
  give_up_stuck_update();
  scale();
  scale_from_zero();
  reconcile();
  dispatch();
  check_drained();
}

void DeploymentMachine::on_event(const DrainAsked& event) {
  if (!std::exchange(draining_, true))
    drained_by_ = now_ + config_.drain_timeout + (callers_ > 0 ? event.callers_take : Duration{0});
  if (event.at_once) drained_by_ = now_;
  router_.hold_no_more();
  if (next_ && !next_->was_ready) fail_update({ErrorCode::kUnavailable, "the deployment ends", "", ""});
  dispatch();
  check_drained();
}

void DeploymentMachine::on_event(const CallerJoined&) {
  ++callers_;
}

void DeploymentMachine::on_event(const CallerLeft&) {
  if (--callers_ == 0 && draining_) drained_by_ = std::min(drained_by_, now_ + config_.drain_timeout);
  check_drained();
}

void DeploymentMachine::check_drained() {
  if (!draining_ || stopped_) return;
  if (now_ >= drained_by_) {
    router_.fail_all(Failure::kUnavailable, "the deployment has ended, and there was no time to answer it",
                     false);
  } else if (callers_ > 0 || router_.requests() > 0 || proxies_have_requests()) {
    return;
  }
  stopped_ = true;
  if (next_) fail_update({ErrorCode::kUnavailable, "the deployment ends", "", ""});
  for (const auto& [id, replica] : replicas_) out_.push_back(StopReplica{id, "the deployment ends"});
  replicas_.clear();
  end_proxies();
  out_.push_back(Stopped{});
}

Instant DeploymentMachine::next_wake() const {
  if (stopped_ || !begun_) return Instant::max();
  Instant wake = config_.replicas.min == config_.replicas.max ? Instant::max() : next_scaling_;
  wake = std::min({wake, router_.next_wake(), next_of_proxies()});
  for (const auto& [id, replica] : replicas_) wake = std::min(wake, next_deadline(id, replica));
  const auto start = [&](const Version& version, int wanted, bool may_start) {
    if (may_start && live(version) < wanted) wake = std::min(wake, version.not_before);
  };
  if (next_) {
    start(current_, wanted_ - ready(*next_), !next_->was_ready);
    start(*next_, wanted_of_update(), true);
    if (is_stuck_without(*next_)) wake = std::min(wake, next_->failing_since + config_.start_timeout);
  } else {
    start(current_, wanted_, !given_up_);
  }
  if (draining_) wake = std::min(wake, drained_by_);
  return wake;
}

DeploymentMachine::View DeploymentMachine::view() const {
  View view;
  view.starting = static_cast<int>(count(ReplicaState::kStarting));
  view.warming = static_cast<int>(count(ReplicaState::kWarming));
  view.ready = static_cast<int>(count(ReplicaState::kReady));
  view.draining = static_cast<int>(count(ReplicaState::kDraining));
  view.wanted = wanted_;
  view.range = config_.replicas;
  view.queued_rows = router_.queued_rows() + rows_queued_beside(0);
  view.requests = router_.requests();
  for (const auto& [id, proxy] : proxies_) view.requests += proxy.last.requests;
  view.drains = draining_;
  view.starts_on_demand = starts_on_demand();
  view.cold_starts = cold_starts_;
  view.cold_start = cold_start_;
  view.callers = callers_;
  view.version = current_.id;
  view.rolls_out = next_ ? next_->id : 0;
  return view;
}

}  // namespace troupe::serve
