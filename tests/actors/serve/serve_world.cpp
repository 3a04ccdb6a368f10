#include "tests/actors/serve/serve_world.hpp"

#include <algorithm>

namespace troupe::serve {

using namespace std::chrono_literals;

ServeWorld::ServeWorld(const WorldOptions& options)
    : now(1h), machine(options.config), options_(options), random_(options.seed) {
  carry_out(machine.start(now));
  while (!machine.is_up() && step(3h)) {
  }
  for (int i = 0; i < options.callers; ++i, ++callers_) hear(CallerJoined{});
  load_until_ = now + options.load;
  at(0s, [this] { arrive(); });
  if (options_.scales > 0 && chance(options_.scales / 100)) {
    const int least = static_cast<int>(random_.below(5));
    scale({least, std::max(1, least + static_cast<int>(random_.below(4)))});
  }
  at(10ms, [this] { misfortune(); });
  if (options.updates > 0) at(500ms, [this] { change_weights(); });
}

void ServeWorld::rule(bool holds, const std::string& what) {
  if (!holds) broken.push_back(what + " at " + std::to_string(to_seconds(now - 1h)) + " s");
}

void ServeWorld::at(Duration delay, std::function<void()> what) {
  due_.add(now + delay, std::move(what));
}

/// One event: what is due next, or a tick when the machine wants one. The machine is told the time by that
/// alone: a wake_at() that is too late is a request that never ends.
bool ServeWorld::step(Instant until) {
  const Instant wake = machine.wake_at();
  const Instant next = due_.next();
  if (std::min(wake, next) > until) {
    now = std::max(now, until);
    return false;
  }
  if (wake <= next) {
    rule(wake > now || next > now, "the machine wakes up without end");
    now = std::max(now, wake);
    hear(Tick{});
    return true;
  }
  now = std::max(now, next);
  due_.run_next();
  return true;
}

void ServeWorld::run_for(Duration time) {
  const Instant until = now + time;
  while (broken.empty() && step(until)) {
  }
}

void ServeWorld::scale(Replicas replicas) {
  options_.config.replicas = replicas;
  hear(ScaleAsked{replicas});
}

void ServeWorld::drain() {
  draining_ = true;
  hear(DrainAsked{.callers_take = options_.config.drain_timeout});
  for (int i = 0; i < callers_; ++i) at(some(1s), [this] { caller_leaves(); });
}

void ServeWorld::caller_leaves() {
  --callers_;
  hear(CallerLeft{});
}

void ServeWorld::run() {
  run_for(options_.load);
  drain();
  const Instant latest = now + options_.config.drain_timeout + 2s;
  while (broken.empty() && !stopped_ && step(latest)) {
  }
  rule(stopped_, "it did not stop");
  rule(rolls_out_ == 0, "a roll-out did not end");
  for (const auto& [id, request] : requests_)
    rule(request.ends == 1 || request.left, "request " + std::to_string(id) + " was lost");
  for (const auto& [id, replica] : replicas_) rule(replica.dead, "a replica was left running");
  const auto view = machine.view();
  rule(view.requests == 0 && view.queued_rows == 0, "the machine keeps something");
}

// Clients.

void ServeWorld::arrive() {
  const bool is_over = draining_ ? callers_ == 0 : now >= load_until_ && options_.callers == 0;
  if (is_over || options_.requests_a_second <= 0) return;
  submit(1 + static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(options_.most_rows))),
         chance(options_.poison), some(options_.timeout) / 2 + options_.timeout / 2,
         options_.callers > 0 && (draining_ || chance(0.5)));
  at(some(std::chrono::duration_cast<Duration>(2s / options_.requests_a_second)), [this] { arrive(); });
}

void ServeWorld::submit(std::int64_t rows, bool poison, Duration timeout, bool called) {
  const auto id = static_cast<RequestId>(++submitted);
  requests_[id] = {rows, now + timeout, poison, chance(options_.throws)};
  requests_[id].called = called;
  if (chance(options_.leave)) {
    at(some(20ms), [this, id] {
      if (requests_[id].ends > 0) return;
      requests_[id].left = true;
      ++left;
      hear(Left{id});
    });
  }
  hear(Arrived{id, rows, now + timeout, called});
}

void ServeWorld::ended(RequestId id, const char* how) {
  Request& request = requests_[id];
  rule(!request.left, std::string("a request whose client left was ") + how);
  rule(++request.ends == 1, "request " + std::to_string(id) + " was " + how + " a second time");
}

void ServeWorld::obey(const Deliver& action) {
  ++answered;
  ++answers[done_version_];
  ended(action.request, "answered");
  rule(action.place < done_batch_.size() && done_batch_[action.place] == action.request,
       "a request got another one's answer");
  rule(!requests_[action.request].throws, "a request that the model threw for was answered");
}

void ServeWorld::obey(const Fail& action) {
  const Request& request = requests_[action.request];
  ++failed[action.failure];
  ended(action.request, "failed");
  rule(!action.why.empty(), "a failure does not say why");
  if (request.called && callers_ > 0)
    rule(action.why.find("the deployment") == std::string::npos, "a caller that lives was refused");
  if (action.failure == Failure::kDeadline) rule(now >= request.deadline, "a deadline came early");
  if (action.failure == Failure::kModel) rule(request.throws, "the model threw for nothing");
  if (action.failure == Failure::kReplicaDied) {
    rule(request.sent > 0, "a replica died with a request that it never had");
    innocent_deaths += !request.poison;
  }
}

// Replicas.

void ServeWorld::obey(const StartReplica& action) {
  const ReplicaId id = action.replica;
  rule(!replicas_.contains(id) && !action.reason.empty(), "a replica starts twice, or for no reason");
  rule(action.version == routable_ || action.version == rolls_out_, "a replica starts with other weights");
  replicas_[id] = {.version = action.version};
  ++starts[action.version];
  const auto view = machine.view();
  const auto leaving =
      std::count_if(replicas_.begin(), replicas_.end(), [](const auto& one) { return one.second.leaves; });
  const int live = view.starting + view.warming + view.ready - static_cast<int>(leaving);
  most_replicas = std::max(most_replicas, live);
  const int more = view.rolls_out == 0 ? 0 : (view.wanted + 3) / 4;
  rule(live <= options_.config.replicas.max + more, "too many replicas");
  const Weights weights = weights_[action.version];
  at(some(200ms), [this, id, weights] {
    if (replicas_[id].dead) return;
    const auto fails = [this, id](ErrorCode code, const char* why) {
      replicas_[id].dead = true;
      hear(ReplicaFailed{id, {code, "it died", why, ""}});
    };
    if (chance(options_.start_fails)) return fails(ErrorCode::kActorDied, "at its start");
    if (weights == Weights::kNoRoom) return fails(ErrorCode::kUnavailable, "there is no room");
    hear(ReplicaUp{id});
    at(some(200ms), [this, id, weights, fails] {
      if (replicas_[id].dead) return;
      if (weights == Weights::kDoNotFit) return fails(ErrorCode::kBadConfig, "they do not fit");
      if (weights == Weights::kDieInWarmUp) return fails(ErrorCode::kActorDied, "in its warm-up");
      replicas_[id].ready = true;
      hear(ReplicaReady{id});
    });
  });
}

void ServeWorld::obey(const StopReplica& action) {
  Replica& replica = replicas_[action.replica];
  rule(action.reason != "its node drains" || replica.dead || replica.queue.empty(),
       "a replica was stopped with a batch, since its node drains");
  replica.dead = true;
  replica.leaves = false;
}

void ServeWorld::obey(const SendBatch& action) {
  Replica& replica = replicas_[action.replica];
  std::int64_t rows = 0;
  for (const RequestId id : action.requests) {
    Request& request = requests_[id];
    rule(request.ends == 0 && !request.left, "a request that is over was sent");
    rows += request.rows;
    ++request.sent;
  }
  rule(rows <= options_.config.max_batch || action.requests.size() == 1, "a batch is too large");
  rule(replica.version == routable_ || replica.version == rolls_out_, "a batch for weights that ended");
  rule(!action.requests.empty() && replica.ready, "an empty batch, or one for a replica that is not ready");
  ++batches;
  rows_of_batches += rows;
  replica.queue.push_back({action.batch, action.requests});
  rule(replica.queue.size() <= 2, "a replica has more than two batches");
  if (replica.dead || replica.computing) return;
  compute(action.replica);
}

void ServeWorld::compute(ReplicaId id) {
  Replica& replica = replicas_[id];
  if (replica.queue.empty() || replica.dead || replica.hung) return;
  replica.computing = true;
  const Batch batch = replica.queue.front();
  std::int64_t rows = 0;
  bool poison = weights_[replica.version] == Weights::kDieOfRequests;
  for (const RequestId one : batch.requests) {
    rows += requests_[one].rows;
    poison = poison || requests_[one].poison;
  }
  const Duration computed = options_.batch_time + rows * options_.row_time;
  if (poison) return at(some(computed), [this, id] { kill(id); });
  at(computed, [this, id, batch, computed] {
    Replica& self = replicas_[id];
    if (self.dead || self.hung) return;
    self.computing = false;
    self.queue.erase(self.queue.begin());
    compute(id);
    at(some(200us), [this, id, batch, computed] { done(id, batch, computed); });
  });
}

void ServeWorld::done(ReplicaId id, const Batch& batch, Duration computed) {
  BatchDone event{id, batch.id, {}, computed};
  for (const RequestId one : batch.requests) {
    const bool throws = requests_[one].throws;
    event.verdicts.push_back(throws ? Verdict{Verdict::What::kThrew, "it threw"} : Verdict{});
  }
  done_batch_ = batch.requests;
  done_version_ = replicas_[id].version;
  hear(event);
  done_batch_.clear();
}

void ServeWorld::obey(const CheckReplica& action) {
  const ReplicaId id = action.replica;
  if (!replicas_[id].dead && !replicas_[id].hung) at(some(1ms), [this, id] { hear(ReplicaAlive{id}); });
}

/// What is on its way is lost, and its death is heard a little later.
void ServeWorld::kill(ReplicaId id) {
  if (replicas_[id].dead) return;
  replicas_[id].dead = true;
  ++deaths;
  at(some(5ms), [this, id] { hear(ReplicaDied{id, "killed by signal 9"}); });
}

void ServeWorld::misfortune() {
  if (now >= load_until_) return;
  for (auto& [id, replica] : replicas_) {
    if (!replica.ready || replica.dead) continue;
    if (chance(options_.deaths / 100)) kill(id);
    if (chance(options_.hangs / 100)) replica.hung = true;
  }
  if (options_.leaves > 0) {
    std::vector<ReplicaId> leave_now;
    for (const auto& [id, replica] : replicas_) {
      if (!replica.dead && chance(options_.leaves / 100)) leave_now.push_back(id);
    }
    for (const ReplicaId id : leave_now) leave(id);
  }
  at(10ms, [this] { misfortune(); });
}

void ServeWorld::node_drains(ReplicaId id) {
  replicas_[id].leaves = true;
  ++leaves;
  hear(ReplicaLeaves{id});
}

void ServeWorld::leave(ReplicaId id) {
  if (replicas_[id].dead || replicas_[id].leaves) return;
  node_drains(id);
  at(options_.grace, [this, id, stays = chance(0.3)] {
    if (!stays) return kill(id);
    if (replicas_[id].dead) return;
    replicas_[id].leaves = false;
    hear(ReplicaLeaves{id, true});
  });
}

std::vector<ReplicaId> ServeWorld::ready_replicas() const {
  std::vector<ReplicaId> ids;
  for (const auto& [id, replica] : replicas_) {
    if (replica.ready && !replica.dead) ids.push_back(id);
  }
  return ids;
}

// Roll-out.

VersionId ServeWorld::update(Weights weights) {
  const VersionId version = weights_.empty() ? 2 : std::max<VersionId>(2, weights_.rbegin()->first + 1);
  weights_[version] = weights;
  if (rolls_out_ == 0) rolls_out_ = version;
  hear(UpdateAsked{version});
  return version;
}

void ServeWorld::change_weights() {
  if (now >= load_until_) return;
  at(500ms, [this] { change_weights(); });
  if (!chance(options_.updates)) return;
  const auto what = random_.below(8);
  if (what == 0) return hear(UpdateCancelled{});
  if (what == 1 && previous_ != 0 && rolls_out_ == 0) {
    rolls_out_ = previous_;
    return hear(UpdateAsked{previous_});
  }
  const auto bad = static_cast<Weights>(1 + random_.below(4));
  update(what < 6 || (bad == Weights::kDieOfRequests && !options_.deadly_weights) ? Weights::kGood : bad);
}

void ServeWorld::obey(const Updated& action) {
  rule(action.version == rolls_out_, "an update ended that did not run");
  const Weights weights = weights_[action.version];
  rule(weights == Weights::kGood || weights == Weights::kDieOfRequests, "weights that never came up answer");
  for (const auto& [id, replica] : replicas_)
    rule(replica.dead || replica.version == action.version, "a replica of old weights is left");
  previous_ = std::exchange(routable_, std::exchange(rolls_out_, 0));
  ++updated;
}

void ServeWorld::obey(const UpdateFailed& action) {
  rule(!action.error.message().empty(), "an update does not say why it failed");
  last_update_error = action.error.message();
  if (action.version == rolls_out_) rolls_out_ = 0;
  ++not_updated;
}

void ServeWorld::obey(const GiveUp&) {
  gave_up_ = true;
}
void ServeWorld::obey(const Stopped&) {
  rule(draining_ && !stopped_, "it stopped twice, or unasked");
  stopped_ = true;
}

void ServeWorld::hear(const Event& event) {
  carry_out(machine.on(event, now));
  const auto view = machine.view();
  fewest_ready = std::min(fewest_ready, view.ready);
  rule(view.wanted > 0 || view.requests == 0 || stopped_, "requests wait, and no replica is wanted");
}
void ServeWorld::carry_out(const std::vector<Action>& actions) {
  for (const Action& action : actions) std::visit([this](const auto& one) { obey(one); }, action);
}

}  // namespace troupe::serve
