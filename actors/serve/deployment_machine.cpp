#include "actors/serve/deployment_machine.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::serve {
namespace {

/// Of the requests that arrive, this share may be tried again.
constexpr double kRetryShare = 0.1;
/// A machine that is told nothing for so much longer than it asked for was itself stopped.
constexpr Duration kOwnPause = std::chrono::seconds(1);
constexpr Duration kMargin = std::chrono::milliseconds(1);

std::string number(std::int64_t n) {
  return std::to_string(n);
}

}  // namespace

DeploymentMachine::DeploymentMachine(const DeploymentConfig& config) : config_(config), scaler_(config) {
  TROUPE_ASSERT(config.replicas.min >= 1 && config.replicas.min <= config.replicas.max, "replicas");
  TROUPE_ASSERT(config.max_batch >= 1 && config.max_queue >= 1, "max_batch and max_queue are 1 or more");
  wanted_ = config.replicas.min;
  current_ = {.id = 1, .start_reason = "the deployment begins"};
}

DeploymentMachine::Actions DeploymentMachine::start(Instant now) {
  now_ = now;
  next_scaling_ = now + kScaleEvery;
  // What two replicas may hold can be tried again before any other request has come.
  retries_ = static_cast<double>(4 * config_.max_batch);
  reconcile();
  wake_at_ = next_wake();
  return std::exchange(out_, {});
}

DeploymentMachine::Actions DeploymentMachine::on(const Event& event, Instant now) {
  now_ = std::max(now_, now);
  if (!stopped_) excuse_own_pause();
  std::visit([this](const auto& one) { on_event(one); }, event);
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
    for (Batch& batch : replica.batches) batch.sent += pause;
  }
  if (next_) next_->failing_since += pause;
}

// Requests.

void DeploymentMachine::on_event(const Arrived& event) {
  if (draining_ || stopped_) return fail(event.request, Failure::kUnavailable, "the deployment ends");
  scaler_.arrived(event.rows, now_);
  if (is_out_of_order())
    return fail(event.request, Failure::kUnavailable, "no replica comes up",
                std::max<Duration>(current_.not_before - now_, std::chrono::seconds(1)), current_.last_why);
  if (event.deadline <= now_)
    return fail(event.request, Failure::kDeadline, "its deadline came before it could be sent to a replica");
  if (!queue_.empty() && queued_rows_ + event.rows > config_.max_queue)
    return fail(event.request, Failure::kQueueFull,
                number(queued_rows_) + " rows wait, and at most " + number(config_.max_queue) + " may",
                std::max<Duration>(time_of_queue(), std::chrono::seconds(1)));
  retries_ = std::min(retries_ + kRetryShare, static_cast<double>(4 * config_.max_batch));
  requests_.emplace(event.request, Request{event.rows, event.deadline, now_});
  deadlines_.emplace(event.deadline, event.request);
  queue_.push_back(event.request);
  queued_rows_ += event.rows;
  dispatch();
}

void DeploymentMachine::on_event(const Left& event) {
  const auto at = requests_.find(event.request);
  if (at == requests_.end()) return;
  end(at);
  check_drained();
}

/// The request is over: whatever comes back for it is dropped.
void DeploymentMachine::end(std::unordered_map<RequestId, Request>::iterator at) {
  if (!at->second.running) queued_rows_ -= at->second.rows;
  deadlines_.erase({at->second.deadline, at->first});
  requests_.erase(at);
  while (!queue_.empty() && !requests_.contains(queue_.front())) queue_.pop_front();
}

void DeploymentMachine::fail(RequestId id, Failure failure, std::string why, Duration retry_after,
                             std::string inside) {
  if (const auto at = requests_.find(id); at != requests_.end()) end(at);
  out_.push_back(Fail{id, failure, std::move(why), retry_after, std::move(inside)});
}

void DeploymentMachine::fail_all(Failure failure, const std::string& why, bool queued_alone,
                                 const std::string& inside) {
  std::vector<RequestId> all;
  for (const auto& [id, request] : requests_) {
    if (!queued_alone || !request.running) all.push_back(id);
  }
  std::sort(all.begin(), all.end());
  for (const RequestId id : all) fail(id, failure, why, {}, inside);
}

void DeploymentMachine::expire_requests() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    const RequestId id = deadlines_.begin()->second;
    const Request& request = requests_.at(id);
    const auto waited =
        number(std::chrono::duration_cast<std::chrono::milliseconds>(now_ - request.arrived).count());
    fail(id, Failure::kDeadline,
         request.running ? "its replica had not answered after " + waited + " ms"
                         : "it waited " + waited + " ms for a replica");
  }
}

// Batches.

/// Until when an idle replica waits for the batch to fill.
Instant DeploymentMachine::hold_until() const {
  if (config_.batch_wait == Duration{0} || queued_rows_ >= config_.max_batch || draining_) return now_;
  const Instant filled_by = requests_.at(queue_.front()).arrived + config_.batch_wait;
  return std::min(filled_by, deadlines_.begin()->first - 2 * scaler_.batch_time(config_.max_batch) - kMargin);
}

DeploymentMachine::Replica* DeploymentMachine::replica_for_batch(ReplicaId& id) {
  Replica* idle = nullptr;
  Replica* behind = nullptr;
  ReplicaId idle_id = 0;
  // What a replica died of it may have died of for its new weights' sake.
  const bool spare_new = next_ && requests_.at(queue_.front()).suspect && ready(current_) > 0;
  for (auto& [one, replica] : replicas_) {
    if (replica.state != ReplicaState::kReady) continue;
    if (spare_new && replica.version == next_->id) continue;
    if (replica.batches.empty()) {
      // New weights show early whether they bear requests: while most replicas have the old ones.
      if (idle == nullptr || (next_ && replica.version == next_->id)) {
        idle = &replica;
        idle_id = one;
      }
      continue;
    }
    const bool has_room = replica.batches.size() == 1 && replica.batches[0].rows <= config_.max_batch;
    if (has_room && (behind == nullptr || replica.batches[0].sent < behind->batches[0].sent)) {
      id = one;
      behind = &replica;
    }
  }
  if (idle != nullptr) {
    id = idle_id;
    return idle;
  }
  return queued_rows_ >= config_.max_batch ? behind : nullptr;
}

void DeploymentMachine::dispatch() {
  while (!queue_.empty()) {
    ReplicaId id = 0;
    Replica* replica = replica_for_batch(id);
    if (replica == nullptr || now_ < hold_until()) return;
    send(id, *replica);
  }
}

void DeploymentMachine::send(ReplicaId id, Replica& replica) {
  Batch batch{++last_batch_, {}, 0, now_};
  while (!queue_.empty()) {
    const auto at = requests_.find(queue_.front());
    if (at == requests_.end()) {  // it left the queue
      queue_.pop_front();
      continue;
    }
    Request& request = at->second;
    const bool first = batch.requests.empty();
    // One above max_batch rows is a batch of its own, which the replica cuts.
    if (!first && (batch.rows + request.rows > config_.max_batch || request.suspect)) break;
    request.running = true;
    queued_rows_ -= request.rows;
    batch.rows += request.rows;
    batch.requests.push_back(at->first);
    queue_.pop_front();
    if (request.suspect) break;
  }
  while (!queue_.empty() && !requests_.contains(queue_.front())) queue_.pop_front();
  out_.push_back(SendBatch{id, batch.id, batch.requests});
  replica.batches.push_back(std::move(batch));
}

void DeploymentMachine::on_event(const BatchDone& event) {
  const auto at = replicas_.find(event.replica);
  if (at == replicas_.end()) return;
  Replica& replica = at->second;
  const auto batch = std::find_if(replica.batches.begin(), replica.batches.end(),
                                  [&](const Batch& one) { return one.id == event.batch; });
  if (batch == replica.batches.end()) return;
  replica.heard = now_;
  count_answer(replica);
  const bool whole = event.verdicts.size() == batch->requests.size();
  if (whole && event.computed > Duration{0}) scaler_.computed(batch->rows, event.computed);
  const std::vector<RequestId> asked = std::move(batch->requests);
  replica.batches.erase(batch);
  for (std::size_t place = 0; place < asked.size(); ++place) {
    const auto request = requests_.find(asked[place]);
    if (request == requests_.end()) continue;  // it left, or its deadline came
    if (!whole) {
      fail(asked[place], Failure::kModel,
           "a replica gave " + number(static_cast<std::int64_t>(event.verdicts.size())) + " answers to " +
               number(static_cast<std::int64_t>(asked.size())) + " requests");
      continue;
    }
    const Verdict& verdict = event.verdicts[place];
    if (verdict.what == Verdict::What::kAnswered) {
      end(request);
      out_.push_back(Deliver{asked[place], place});
    } else if (verdict.what == Verdict::What::kExpired) {
      fail(asked[place], Failure::kDeadline,
           "its deadline came before the replica that it was sent to began with it");
    } else {
      fail(asked[place], Failure::kModel, verdict.why);
    }
  }
  reconcile();  // it may be draining
  dispatch();
  check_drained();
}

/// A replica died with this batch. Its forward changes nothing, so that a request may be tried again: alone,
/// for it may be what the replica died of, and once. What was not begun is as if it never was sent.
void DeploymentMachine::take_back(const Batch& batch, bool begun, const std::string& why) {
  for (auto id = batch.requests.rbegin(); id != batch.requests.rend(); ++id) {
    const auto at = requests_.find(*id);
    if (at == requests_.end()) continue;
    Request& request = at->second;
    if (begun && request.suspect) {
      fail(*id, Failure::kReplicaDied, "two replicas died while they computed it", {}, why);
      continue;
    }
    if (begun && retries_ < 1) {
      fail(*id, Failure::kReplicaDied, "its replica died, and too many requests were tried again lately", {},
           why);
      continue;
    }
    if (begun) retries_ -= 1;
    request.suspect = request.suspect || begun;
    request.running = false;
    queued_rows_ += request.rows;
    queue_.push_front(*id);
  }
}

Duration DeploymentMachine::time_of_queue() const {
  const auto ready = std::max<std::size_t>(1, count(ReplicaState::kReady));
  const std::int64_t batches = queued_rows_ / config_.max_batch + 1;
  return scaler_.batch_time(config_.max_batch) * batches / static_cast<std::int64_t>(ready);
}

void DeploymentMachine::on_event(const Tick&) {
  if (stopped_) return;
  expire_requests();
  look_after_replicas();
  give_up_stuck_update();
  scale();
  reconcile();
  dispatch();
  check_drained();
}

void DeploymentMachine::on_event(const DrainAsked& event) {
  if (!std::exchange(draining_, true)) drained_by_ = now_ + config_.drain_timeout;
  if (event.at_once) drained_by_ = now_;
  if (next_ && !next_->was_ready) fail_update({ErrorCode::kUnavailable, "the deployment ends", "", ""});
  dispatch();
  check_drained();
}

void DeploymentMachine::check_drained() {
  if (!draining_ || stopped_) return;
  if (now_ >= drained_by_)
    fail_all(Failure::kUnavailable, "the deployment has ended, and there was no time to answer it", false);
  if (!requests_.empty()) return;
  stopped_ = true;
  if (next_) fail_update({ErrorCode::kUnavailable, "the deployment ends", "", ""});
  for (const auto& [id, replica] : replicas_) out_.push_back(StopReplica{id, "the deployment ends"});
  replicas_.clear();
  out_.push_back(Stopped{});
}

Instant DeploymentMachine::next_wake() const {
  if (stopped_) return Instant::max();
  Instant wake = config_.replicas.min == config_.replicas.max ? Instant::max() : next_scaling_;
  if (!deadlines_.empty()) wake = std::min(wake, deadlines_.begin()->first);
  for (const auto& [id, replica] : replicas_) wake = std::min(wake, next_deadline(replica));
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
  if (!queue_.empty() && config_.batch_wait > Duration{0}) {
    const Instant held = hold_until();
    if (held > now_) wake = std::min(wake, held);
  }
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
  view.queued_rows = queued_rows_;
  view.requests = static_cast<std::int64_t>(requests_.size());
  view.drains = draining_;
  view.version = current_.id;
  view.rolls_out = next_ ? next_->id : 0;
  return view;
}

}  // namespace troupe::serve
