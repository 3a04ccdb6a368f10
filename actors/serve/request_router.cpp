#include "actors/serve/request_router.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::serve {
namespace {

/// Of the requests that arrive, this share may be tried again.
constexpr double kRetryShare = 0.1;
constexpr Duration kMargin = std::chrono::milliseconds(1);
/// What a replica's next batch weighs in its pace, and when half of a pace is forgotten.
constexpr double kNewest = 0.2;
constexpr Duration kForgetsHalf = std::chrono::seconds(10);
constexpr double kFastest = 0.1, kSlowest = 10;
/// Idle replicas whose batches take so much more than the fastest's are as good.
constexpr double kAbout = 1.25;
/// A batch waits for a busy replica where an idle one would take so much longer.
constexpr double kMuchLonger = 1.5;

Duration times(double factor, Duration of) {
  return Duration(static_cast<std::int64_t>(factor * static_cast<double>(of.count())));
}

}  // namespace

RequestRouter::RequestRouter(const DeploymentConfig& config, const Autoscaler& times,
                             std::vector<Action>& out)
    : max_batch_(config.max_batch),
      batch_wait_(config.batch_wait),
      max_queue_(config.max_queue),
      times_(times),
      out_(out) {
  // What two replicas may hold can be tried again before any other request has come.
  retries_ = static_cast<double>(4 * max_batch_);
}

// Replicas.

void RequestRouter::open(ReplicaId id, VersionId version) {
  Replica& replica = replicas_[id];
  replica.version = version;
  replica.open = true;
}

void RequestRouter::close(ReplicaId id) {
  if (const auto at = replicas_.find(id); at != replicas_.end()) at->second.open = false;
}

void RequestRouter::lose(ReplicaId id, const std::string& why) {
  const auto lost = replicas_.extract(id);
  if (lost.empty()) return;
  const auto& batches = lost.mapped().batches;
  for (std::size_t i = batches.size(); i-- > 0;) take_back(batches[i], i == 0, why);
}

void RequestRouter::forget(ReplicaId id) {
  TROUPE_ASSERT(!has_batches(id), "a replica that is forgotten has no batch");
  replicas_.erase(id);
}

bool RequestRouter::has_batches(ReplicaId id) const {
  const auto at = replicas_.find(id);
  return at != replicas_.end() && !at->second.batches.empty();
}

bool RequestRouter::has_batch(ReplicaId id, BatchId batch) const {
  const auto at = replicas_.find(id);
  return at != replicas_.end() && std::any_of(at->second.batches.begin(), at->second.batches.end(),
                                              [&](const Batch& one) { return one.id == batch; });
}

Instant RequestRouter::oldest_sent(ReplicaId id) const {
  return replicas_.at(id).batches.front().sent;
}

std::vector<ReplicaId> RequestRouter::busy() const {
  std::vector<ReplicaId> ids;
  for (const auto& [id, replica] : replicas_) {
    if (!replica.batches.empty()) ids.push_back(id);
  }
  return ids;
}

std::vector<ReplicaId> RequestRouter::known() const {
  std::vector<ReplicaId> ids;
  for (const auto& [id, replica] : replicas_) ids.push_back(id);
  return ids;
}

void RequestRouter::excuse_pause(Duration pause) {
  for (auto& [id, replica] : replicas_) {
    replica.began += pause;
    for (Batch& batch : replica.batches) batch.sent += pause;
  }
}

// Requests.

void RequestRouter::arrive(const Arrived& event) {
  if (event.deadline <= now_)
    return fail(event.request, Failure::kDeadline, "its deadline came before it could be sent to a replica");
  if (!queue_.empty() && queued_rows_ + event.rows > max_queue_)
    return fail(
        event.request, Failure::kQueueFull,
        std::to_string(queued_rows_) + " rows wait, and at most " + std::to_string(max_queue_) + " may",
        std::max<Duration>(time_of_queue(), std::chrono::seconds(1)));
  retries_ = std::min(retries_ + kRetryShare, static_cast<double>(4 * max_batch_));
  requests_.emplace(event.request, Request{event.rows, event.deadline, now_});
  deadlines_.emplace(event.deadline, event.request);
  queue_.push_back(event.request);
  queued_rows_ += event.rows;
  dispatch();
}

void RequestRouter::leave(RequestId id) {
  if (const auto at = requests_.find(id); at != requests_.end()) end(at);
}

/// The request is over: whatever comes back for it is dropped.
void RequestRouter::end(std::unordered_map<RequestId, Request>::iterator at) {
  if (!at->second.running) queued_rows_ -= at->second.rows;
  deadlines_.erase({at->second.deadline, at->first});
  requests_.erase(at);
  while (!queue_.empty() && !requests_.contains(queue_.front())) queue_.pop_front();
}

void RequestRouter::fail(RequestId id, Failure failure, std::string why, Duration retry_after,
                         std::string inside) {
  if (const auto at = requests_.find(id); at != requests_.end()) end(at);
  out_.push_back(Fail{id, failure, std::move(why), retry_after, std::move(inside)});
}

void RequestRouter::fail_all(Failure failure, const std::string& why, bool queued_alone,
                             const std::string& inside) {
  std::vector<RequestId> all;
  for (const auto& [id, request] : requests_) {
    if (!queued_alone || !request.running) all.push_back(id);
  }
  std::sort(all.begin(), all.end());
  for (const RequestId id : all) fail(id, failure, why, {}, inside);
}

void RequestRouter::expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    const RequestId id = deadlines_.begin()->second;
    const Request& request = requests_.at(id);
    const auto waited =
        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(now_ - request.arrived).count());
    fail(id, Failure::kDeadline,
         request.running ? "its replica had not answered after " + waited + " ms"
                         : "it waited " + waited + " ms for a replica");
  }
}

// Batches.

/// Until when an idle replica waits for the batch to fill.
Instant RequestRouter::hold_until() const {
  if (batch_wait_ == Duration{0} || queued_rows_ >= max_batch_ || !holds_) return now_;
  const Instant filled_by = requests_.at(queue_.front()).arrived + batch_wait_;
  return std::min(filled_by, deadlines_.begin()->first - 2 * times_.batch_time(max_batch_) - kMargin);
}

bool RequestRouter::answers_with_old() const {
  return std::any_of(replicas_.begin(), replicas_.end(),
                     [&](const auto& one) { return one.second.open && one.second.version != newest_; });
}

double RequestRouter::pace_of(const Replica& replica) const {
  if (replica.pace == 1) return 1;
  return 1 + (replica.pace - 1) * std::exp2(-to_seconds(now_ - replica.paced) / to_seconds(kForgetsHalf));
}

void RequestRouter::measure(Replica& replica, std::int64_t rows, Duration computed) {
  const Duration usual = times_.batch_time(rows);
  if (computed <= Duration{0} || usual <= Duration{0}) return;
  const double seen = std::clamp(to_seconds(computed) / to_seconds(usual), kFastest, kSlowest);
  replica.pace = pace_of(replica) + kNewest * (seen - pace_of(replica));
  replica.paced = now_;
}

Duration RequestRouter::time_of(const Replica& replica, std::int64_t rows) const {
  return times(pace_of(replica), times_.batch_time(rows));
}

/// Until it has computed the batches that it has. A batch that takes longer than expected is expected to take
/// as much longer again.
Duration RequestRouter::time_until_free(const Replica& replica) const {
  Duration time{0};
  for (const Batch& batch : replica.batches) time += time_of(replica, batch.rows);
  if (replica.batches.empty()) return time;
  const Duration first = time_of(replica, replica.batches.front().rows);
  const Duration left = first - (now_ - replica.began);
  return time - first + (left < Duration{0} ? -left : left);
}

/// Of the idle ones: new weights show early whether they bear requests, while most replicas have the old
/// ones. Else the fastest in turn: several proxies that began with the same one would meet there.
RequestRouter::Choice RequestRouter::choose() {
  // What a replica died of it may have died of for its new weights' sake.
  const bool spare_new = newest_ != 0 && requests_.at(queue_.front()).suspect && answers_with_old();
  const std::int64_t rows = std::min(queued_rows_, max_batch_);
  Choice behind;
  Duration behind_takes = Duration::max();
  const Replica* first = nullptr;  // of the busy ones, to finish this batch
  Duration first_takes = Duration::max();
  idle_.clear();
  bool any_new = false;  // of the idle ones: then the others do not count
  double fastest = kSlowest;
  for (auto& [id, replica] : replicas_) {
    const bool is_new = newest_ != 0 && replica.version == newest_;
    if (!replica.open || (spare_new && is_new)) continue;
    if (replica.batches.empty()) {
      if (is_new && !std::exchange(any_new, true)) {
        idle_.clear();
        fastest = kSlowest;
      }
      if (is_new != any_new) continue;
      idle_.push_back({id, &replica, pace_of(replica)});
      fastest = std::min(fastest, idle_.back().pace);
      continue;
    }
    const Duration takes = time_until_free(replica) + time_of(replica, rows);
    if (takes < first_takes) {
      first = &replica;
      first_takes = takes;
    }
    const bool has_room = replica.batches.size() < replica.credits && replica.batches[0].rows <= max_batch_;
    if (has_room && takes < behind_takes) {
      behind = {id, &replica};
      behind_takes = takes;
    }
  }
  Choice idle;
  for (const Idle& one : idle_) {
    if (one.pace > fastest * kAbout) continue;
    if (idle.replica == nullptr || one.replica->last < idle.replica->last) idle = {one.id, one.replica};
  }
  const bool is_full = queued_rows_ >= max_batch_;
  if (idle.replica == nullptr) return is_full ? behind : Choice{};
  const Duration least = times(1 / kMuchLonger, time_of(*idle.replica, rows));
  if (first == nullptr || newest_ != 0 || least <= first_takes) return idle;
  if (is_full && behind_takes < least) return behind;
  // If it is late by then, by as much that the idle one is no worse.
  const Duration own = time_of(*first, first->batches.front().rows);
  Duration after = time_of(*first, rows) - own;
  for (const Batch& batch : first->batches) after += time_of(*first, batch.rows);
  return {.look_again = first->began + own + least - after};
}

void RequestRouter::dispatch() {
  look_again_ = Instant::max();
  while (!queue_.empty()) {
    const Choice choice = choose();
    look_again_ = choice.look_again;
    if (choice.replica == nullptr || now_ < hold_until()) return;
    send(choice.id, *choice.replica);
  }
}

void RequestRouter::send(ReplicaId id, Replica& replica) {
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
    if (!first && (batch.rows + request.rows > max_batch_ || request.suspect)) break;
    request.running = true;
    queued_rows_ -= request.rows;
    batch.rows += request.rows;
    batch.requests.push_back(at->first);
    queue_.pop_front();
    if (request.suspect) break;
  }
  while (!queue_.empty() && !requests_.contains(queue_.front())) queue_.pop_front();
  out_.push_back(SendBatch{id, batch.id, batch.requests});
  replica.last = batch.id;
  if (replica.batches.empty()) replica.began = now_;
  replica.batches.push_back(std::move(batch));
}

std::int64_t RequestRouter::done(const BatchDone& event) {
  Replica& replica = replicas_.at(event.replica);
  const auto batch = std::find_if(replica.batches.begin(), replica.batches.end(),
                                  [&](const Batch& one) { return one.id == event.batch; });
  TROUPE_ASSERT(batch != replica.batches.end(), "a batch that is done was sent");
  if (event.credits > 0) replica.credits = event.credits;
  const bool whole = event.verdicts.size() == batch->requests.size();
  const std::int64_t rows = batch->rows;
  const std::vector<RequestId> asked = std::move(batch->requests);
  if (batch == replica.batches.begin()) replica.began = now_;  // with the next one
  replica.batches.erase(batch);
  if (whole) measure(replica, rows, event.computed);
  for (std::size_t place = 0; place < asked.size(); ++place) {
    const auto request = requests_.find(asked[place]);
    if (request == requests_.end()) continue;  // it left, or its deadline came
    if (!whole) {
      fail(asked[place], Failure::kModel,
           "a replica gave " + std::to_string(static_cast<std::int64_t>(event.verdicts.size())) +
               " answers to " + std::to_string(static_cast<std::int64_t>(asked.size())) + " requests");
      continue;
    }
    const Verdict& verdict = event.verdicts[place];
    if (verdict.what == Verdict::What::kAnswered) {
      end(request);
      out_.push_back(Deliver{asked[place], place});
    } else if (verdict.what == Verdict::What::kExpired) {
      fail(asked[place], Failure::kDeadline,
           "its deadline came before the replica that it was sent to began with it");
    } else if (verdict.what == Verdict::What::kRefused) {
      fail(asked[place], verdict.failure, verdict.why, Duration(verdict.retry_after_ns));
    } else {
      fail(asked[place], Failure::kModel, verdict.why);
    }
  }
  return whole ? rows : 0;
}

/// A replica died with this batch. Its forward changes nothing, so that a request may be tried again: alone,
/// for it may be what the replica died of, and once. What was not begun is as if it never was sent.
void RequestRouter::take_back(const Batch& batch, bool begun, const std::string& why) {
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

Duration RequestRouter::time_of_queue() const {
  const auto open =
      std::count_if(replicas_.begin(), replicas_.end(), [](const auto& one) { return one.second.open; });
  const std::int64_t batches = queued_rows_ / max_batch_ + 1;
  return times_.batch_time(max_batch_) * batches / std::max<std::int64_t>(1, open);
}

Instant RequestRouter::next_wake() const {
  Instant wake = Instant::max();
  if (!deadlines_.empty()) wake = deadlines_.begin()->first;
  if (!queue_.empty() && batch_wait_ > Duration{0}) {
    const Instant held = hold_until();
    if (held > now_) wake = std::min(wake, held);
  }
  if (!queue_.empty()) wake = std::min(wake, look_again_);
  return wake;
}

}  // namespace troupe::serve
