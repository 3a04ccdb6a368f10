/// The replicas of a deployment: their starts and ends, by what is wanted, by their health, and by the
/// weights that roll out.
#include <algorithm>
#include <utility>

#include "actors/serve/deployment_machine.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"

namespace troupe::serve {
namespace {

/// So many replicas died in a row before they were ready, with none ready: the deployment is out of order.
constexpr int kMostFailedStarts = 5;
/// So many with the new weights died in a row: their roll-out has failed.
constexpr int kMostDeathsOfUpdate = 3;

std::string seconds(Duration d) {
  return std::to_string(std::chrono::ceil<std::chrono::seconds>(d).count()) + " s";
}

}  // namespace

std::size_t DeploymentMachine::count(ReplicaState state) const {
  return static_cast<std::size_t>(std::count_if(replicas_.begin(), replicas_.end(),
                                                [&](const auto& one) { return one.second.state == state; }));
}

/// And so fail all.
bool DeploymentMachine::starts_fail() const {
  const bool for_long = current_.failed_starts > 0 && now_ - current_.failing_since >= config_.start_timeout;
  return current_.blamed_starts >= kMostFailedStarts || for_long;
}

bool DeploymentMachine::is_out_of_order() const {
  return starts_fail() && count(ReplicaState::kReady) == 0;
}

bool DeploymentMachine::is_up() const {
  return count(ReplicaState::kReady) >= static_cast<std::size_t>(std::max(1, config_.replicas.min));
}

void DeploymentMachine::on_event(const ReplicaUp& event) {
  const auto at = replicas_.find(event.replica);
  if (at == replicas_.end() || at->second.state != ReplicaState::kStarting) return;
  at->second.state = ReplicaState::kWarming;
}

void DeploymentMachine::on_event(const ReplicaLoads& event) {
  const auto at = replicas_.find(event.replica);
  if (at == replicas_.end()) return;
  at->second.loaded = event.has;
  at->second.weights = event.of;
}

void DeploymentMachine::on_event(const ReplicaReady& event) {
  const auto at = replicas_.find(event.replica);
  if (at == replicas_.end() || at->second.state != ReplicaState::kWarming) return;
  make_ready(event.replica, at->second);
  at->second.heard = now_;
  if (cold_since_) {
    ++cold_starts_;
    cold_start_ = now_ - *std::exchange(cold_since_, {});
  }
  if (!was_up_ && is_up()) {
    was_up_ = true;
    scaler_.set_range(config_.replicas, wanted_, now_);  // nobody could ask before
  }
  if (Version* version = version_of(at->second)) {
    version->was_ready = true;
    version->failed_starts = version->blamed_starts = 0;
  }
  reconcile();
  dispatch();
}

void DeploymentMachine::make_ready(ReplicaId id, Replica& replica) {
  replica.state = ReplicaState::kReady;
  replica.was_ready = true;
  replica.closed_in = 0;
  router_.open(id, replica.version);
}
void DeploymentMachine::make_drain(ReplicaId id, Replica& replica) {
  if (replica.state != ReplicaState::kDraining) replica.closed_in = 0;
  replica.state = ReplicaState::kDraining;
  router_.close(id);
}

void DeploymentMachine::on_event(const ReplicaFailed& event) {
  const auto at = replicas_.find(event.replica);
  if (at == replicas_.end()) return;
  const ErrorCode code = event.error.code;
  // What is no death (weights that do not fit) fails again next time.
  const bool is_hopeless = code != ErrorCode::kActorDied && code != ErrorCode::kUnavailable;
  const bool rolls_out = next_ && at->second.version == next_->id;
  if (is_hopeless && !rolls_out) give_up(event.error);
  drop_dead(event.replica, event.error.message(), code != ErrorCode::kUnavailable);
  if (rolls_out && is_hopeless) fail_update(event.error);
}

/// Who waits until it is up for the first time hears why it is not going to be.
void DeploymentMachine::give_up(const ErrorInfo& why) {
  if (was_up_ || given_up_) return;
  given_up_ = true;
  out_.push_back(GiveUp{why});
}

void DeploymentMachine::on_event(const ReplicaDied& event) {
  if (replicas_.contains(event.replica)) drop_dead(event.replica, event.why, true);
}

void DeploymentMachine::on_event(const ReplicaAlive& event) {
  const auto at = replicas_.find(event.replica);
  if (at == replicas_.end()) return;
  at->second.asked = false;
  at->second.heard = now_;
  count_answer(at->second);
}

void DeploymentMachine::count_answer(Replica& replica) {
  replica.had_work = true;
  if (Version* version = version_of(replica)) version->deaths = version->idle_deaths = 0;
}

/// Null: of weights whose roll-out failed, or that were replaced.
DeploymentMachine::Version* DeploymentMachine::version_of(const Replica& replica) {
  if (replica.version == current_.id) return &current_;
  return next_ && replica.version == next_->id ? &*next_ : nullptr;
}

/// `blamed`: it is the replica's fault, and not that the program has no node or no CPU for one.
void DeploymentMachine::drop_dead(ReplicaId id, const std::string& why, bool blamed) {
  const auto at = replicas_.find(id);
  Version* version = at->second.state == ReplicaState::kDraining ? nullptr : version_of(at->second);
  Replica gone = at->second;
  gone.had_work = gone.had_work || router_.has_batches(id);
  replicas_.erase(at);
  out_.push_back(StopReplica{id, why, true});  // it may live on, out of reach
  router_.lose(id, why);
  if (version != nullptr) count_failure(*version, gone, why, blamed);
  if (starts_fail())  // of a death its monitor may tell first, or whatever it was asked
    give_up({ErrorCode::kUnavailable,
             count(ReplicaState::kReady) == 0 ? "no replica comes up" : "too few replicas come up",
             count_of(current_.failed_starts, "start") + " in a row failed, the last one so: " + why,
             "see what they printed: each computes a batch of zeros before it is ready"});
  if (next_ && next_->deaths >= kMostDeathsOfUpdate)
    fail_update({ErrorCode::kActorDied,
                 std::to_string(kMostDeathsOfUpdate) + " replicas with the new weights died in a row", why,
                 ""});
  reconcile();
  if (is_out_of_order()) router_.fail_all(Failure::kUnavailable, "no replica comes up", true, why);
  dispatch();
  check_drained();
}

void DeploymentMachine::count_failure(Version& version, const Replica& replica, const std::string& why,
                                      bool blamed) {
  version.deaths += blamed;
  version.last_why = why;
  version.start_reason = "in the place of one that is gone: " + why;
  if (replica.was_ready) {
    // What it died of came later, with a request maybe: another one starts at once. One that was started
    // after a death without any, and dies so, too, is followed ever later.
    if (replica.had_work || replica.since < version.idle_death_at) return;
    version.idle_death_at = now_;
    version.not_before = now_ + config_.restart.pause_after(++version.idle_deaths);
    return;
  }
  if (version.failed_starts++ == 0) version.failing_since = now_;
  version.blamed_starts += blamed;
  version.not_before = now_ + config_.restart.pause_after(version.failed_starts);
}

/// Of those that stay.
int DeploymentMachine::live(const Version& version) const {
  return static_cast<int>(std::count_if(replicas_.begin(), replicas_.end(), [&](const auto& one) {
    const Replica& replica = one.second;
    return replica.version == version.id && replica.state != ReplicaState::kDraining && !replica.leaves;
  }));
}

int DeploymentMachine::ready(const Version& version) const {
  return static_cast<int>(std::count_if(replicas_.begin(), replicas_.end(), [&](const auto& one) {
    return one.second.version == version.id && one.second.state == ReplicaState::kReady;
  }));
}

/// Brings the replicas to the number that is wanted.
void DeploymentMachine::reconcile() {
  if (stopped_) return;
  if (next_) {
    bring(current_, std::max(0, wanted_ - ready(*next_)), !next_->was_ready);
    bring(*next_, wanted_of_update(), true);
  } else {
    bring(current_, wanted_, !given_up_);
  }
  close_leaving();
  end_drained_replicas();
  finish_update();
}

/// Takes draining ones back, starts some, stops some.
void DeploymentMachine::bring(Version& version, int wanted, bool may_start) {
  int have = live(version);
  if (have > wanted) stop_surplus(version, have - wanted);
  for (auto& [id, replica] : replicas_) {
    if (have >= wanted) break;
    if (replica.version != version.id || replica.state != ReplicaState::kDraining || replica.leaves) continue;
    make_ready(id, replica);
    version.was_ready = true;
    ++have;
  }
  if (now_ < version.not_before || !may_start) return;
  for (; have < wanted; ++have) {
    replicas_[++last_replica_] = Replica{version.id, ReplicaState::kStarting, now_, now_};
    out_.push_back(StartReplica{last_replica_, version.id, version.start_reason});
  }
}

/// Those that do not answer yet go first. One that computes ends when it has answered.
void DeploymentMachine::stop_surplus(const Version& version, int surplus) {
  for (const auto state : {ReplicaState::kStarting, ReplicaState::kWarming, ReplicaState::kReady}) {
    std::vector<ReplicaId> ids;
    for (const auto& [id, replica] : replicas_) {
      if (replica.version == version.id && replica.state == state && !replica.leaves) ids.push_back(id);
    }
    for (; surplus > 0 && !ids.empty(); ids.pop_back(), --surplus) {
      make_drain(ids.back(), replicas_.at(ids.back()));  // the youngest
    }
  }
}

void DeploymentMachine::on_event(const ReplicaLeaves& event) {
  const auto at = replicas_.find(event.replica);
  if (at == replicas_.end()) return;
  at->second.leaves = !event.stays;
  if (at->second.leaves) {
    if (Version* version = version_of(at->second))
      version->start_reason = "in the place of one whose node drains";
    if (!at->second.was_ready) {
      out_.push_back(StopReplica{at->first, "its node drains"});
      replicas_.erase(at);
    }
  }
  reconcile();
  dispatch();
  check_drained();
}

/// Those whose nodes drain, as others are ready in their place.
void DeploymentMachine::close_leaving() {
  int surplus = static_cast<int>(count(ReplicaState::kReady)) - wanted_;
  for (auto& [id, replica] : replicas_) {
    if (surplus <= 0) return;
    if (replica.state != ReplicaState::kReady || !replica.leaves) continue;
    make_drain(id, replica);
    --surplus;
  }
}

void DeploymentMachine::end_drained_replicas() {
  for (auto at = replicas_.begin(); at != replicas_.end();) {
    const Replica& replica = at->second;
    if (replica.state != ReplicaState::kDraining || router_.has_batches(at->first) ||
        is_held(at->first, replica)) {
      ++at;
      continue;
    }
    const bool replaced = next_ || replica.version != current_.id;
    out_.push_back(StopReplica{at->first, replica.leaves ? "its node drains"
                                          : replaced     ? "other weights took its place"
                                          : wanted_ == 0 ? "nobody asks"
                                                         : "fewer replicas are enough"});
    router_.forget(at->first);
    at = replicas_.erase(at);
  }
}

void DeploymentMachine::scale() {
  if (now_ < next_scaling_) return;
  next_scaling_ = now_ + kScaleEvery;
  if (draining_ || config_.replicas.min == config_.replicas.max) return;
  const View now = view();
  const auto wanted = scaler_.wanted(wanted_, now.queued_rows, now.requests, now_);
  if (was_up_ || wanted.replicas > wanted_) want(wanted);
}

/// A request that finds no replica does not wait for the next look at the load.
void DeploymentMachine::scale_from_zero() {
  if (wanted_ > 0 || stopped_) return;
  const View now = view();
  if (now.requests > 0) want(scaler_.wanted(0, now.queued_rows, now.requests, now_));
}

void DeploymentMachine::want(const Autoscaler::Wanted& wanted) {
  if (wanted.replicas == wanted_) return;
  const bool from_zero = wanted_ == 0;
  if (wanted.replicas == 0) cold_since_.reset();
  current_.start_reason = wanted.reason;
  wanted_ = wanted.replicas;
  if (wanted_ == 0)
    current_.failed_starts = current_.blamed_starts = 0;  // who asks next finds nothing out of order
  reconcile();
  // One that had not ended yet may have been taken back.
  if (from_zero && count(ReplicaState::kReady) == 0) cold_since_ = now_;
  dispatch();
}

bool DeploymentMachine::starts_on_demand() const {
  return config_.replicas.min == 0 && was_up_ && !draining_ && !is_out_of_order();
}

void DeploymentMachine::on_event(const ScaleAsked& event) {
  TROUPE_ASSERT(event.replicas.max >= 1, "replicas");
  TROUPE_ASSERT(event.replicas.min >= 0 && event.replicas.min <= event.replicas.max, "replicas");
  config_.replicas = event.replicas;
  wanted_ = std::clamp(wanted_, event.replicas.min, event.replicas.max);
  scaler_.set_range(event.replicas, wanted_, now_);
  current_.start_reason = "it was scaled to " + std::to_string(event.replicas.min) + ":" +
                          std::to_string(event.replicas.max) + " replicas";
  next_scaling_ = std::max(next_scaling_, now_);
  reconcile();
  dispatch();
}

/// When a replica is late: with its start, a batch, a check, or it is time for a check.
Instant DeploymentMachine::next_deadline(ReplicaId id, const Replica& replica) const {
  if (replica.state == ReplicaState::kStarting || replica.state == ReplicaState::kWarming)
    return replica.since + config_.start_timeout;
  if (router_.has_batches(id))
    return std::max(replica.heard, router_.oldest_sent(id)) + config_.health_timeout;
  // What it is asked waits behind the batches of other proxies, whose answers are heard, too.
  if (replica.asked) return std::max(replica.heard, replica.checked) + config_.health_timeout;
  return replica.heard + config_.health_period;
}

/// With what it was at.
ErrorInfo DeploymentMachine::not_ready_in_time(const Replica& replica) const {
  const auto mebibytes = [](std::uint64_t bytes) { return std::to_string(bytes >> 20); };
  const bool loads = replica.state == ReplicaState::kWarming && replica.loaded < replica.weights;
  std::string why = "it was not ready after " + seconds(config_.start_timeout) + ": ";
  if (replica.state == ReplicaState::kStarting) {
    why += "it waited for a node, or its constructor went on (a model that loads for long)";
  } else if (loads) {
    why += "its weights were on their way, " + mebibytes(replica.loaded) + " of " +
           mebibytes(replica.weights) + " MiB were there";
  } else {
    why += "it had its weights, and was at its first forward";
  }
  return {ErrorCode::kTimeout, "a replica did not come up", why,
          replica.state == ReplicaState::kStarting
              ? "see in troupe status whether a node has its CPUs free, or raise start_timeout"
              : "raise start_timeout"};
}

void DeploymentMachine::look_after_replicas() {
  std::vector<ReplicaId> unready, silent;
  for (auto& [id, replica] : replicas_) {
    if (now_ < next_deadline(id, replica)) continue;
    if (replica.state == ReplicaState::kStarting || replica.state == ReplicaState::kWarming) {
      unready.push_back(id);
    } else if (router_.has_batches(id) || replica.asked) {
      silent.push_back(id);
    } else {
      replica.asked = true;
      replica.checked = now_;
      out_.push_back(CheckReplica{id});
    }
  }
  for (const ReplicaId id : unready) {  // the first may end an update, and the others with it
    if (const auto at = replicas_.find(id); at != replicas_.end())
      on_event(ReplicaFailed{id, not_ready_in_time(at->second)});
  }
  for (const ReplicaId id : silent)
    on_event(ReplicaDied{id, "it has not answered for " + seconds(config_.health_timeout)});
}

// Roll-out.

void DeploymentMachine::on_event(const UpdateAsked& event) {
  const auto refuse = [&](ErrorCode code, const char* what, const char* todo) {
    out_.push_back(UpdateFailed{event.version, {code, what, "", todo}});
  };
  if (draining_ || stopped_ || given_up_) return refuse(ErrorCode::kUnavailable, "the deployment ends", "");
  if (next_)
    return refuse(ErrorCode::kUnavailable, "another update is under way", "wait for it, or roll it back");
  next_ = Version{.id = event.version, .start_reason = "its weights roll out"};
  reconcile();
}

void DeploymentMachine::on_event(const UpdateCancelled&) {
  fail_update({ErrorCode::kAborted, "it was rolled back", "", ""});
}

/// One until that is ready: weights that no replica comes up with cost nobody a replica. Then a quarter of
/// the replicas at a time, and so many that none is missing. At zero one: it shows that they answer.
int DeploymentMachine::wanted_of_update() const {
  if (!next_->was_ready || wanted_ <= 1) return 1;
  const int more = (wanted_ + 3) / 4;
  return std::min(wanted_, std::max(ready(*next_) + more, wanted_ - live(current_)));
}

void DeploymentMachine::finish_update() {
  if (!next_ || ready(*next_) == 0) return;
  for (const auto& [id, replica] : replicas_) {
    if (replica.version != next_->id) return;
  }
  current_ = *std::exchange(next_, {});
  out_.push_back(Updated{current_.id});
  reconcile();
}

void DeploymentMachine::fail_update(ErrorInfo error) {
  if (!next_) return;
  for (auto& [id, replica] : replicas_) {
    if (replica.version == next_->id) make_drain(id, replica);
  }
  out_.push_back(UpdateFailed{std::exchange(next_, {})->id, std::move(error)});
  current_.start_reason = "the update failed";
  reconcile();
  dispatch();
}

/// Some of its replicas are missing, and each start fails.
bool DeploymentMachine::is_stuck_without(const Version& next) const {
  return next.failed_starts > 0 && ready(next) < wanted_of_update();
}

void DeploymentMachine::give_up_stuck_update() {
  if (!next_ || !is_stuck_without(*next_) || now_ < next_->failing_since + config_.start_timeout) return;
  fail_update({ErrorCode::kTimeout,
               "no replica with the new weights came up for " + seconds(config_.start_timeout),
               next_->last_why, ""});
}

}  // namespace troupe::serve
