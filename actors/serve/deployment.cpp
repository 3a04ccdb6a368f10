#include "actors/serve/deployment.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "actors/serve/calls.hpp"
#include "actors/train/snapshot.hpp"
#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"

namespace troupe::serve {

namespace {

constexpr double kStartBounds[] = {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
/// Of weights, under way at a time, of 16 MiB each: objects in this process's own memory, of which all that
/// it sends, large batches too, has 1 GiB.
constexpr int kMostPieces = 16;
/// When a piece is sent again for which there was no room.
constexpr Duration kRoomAgain = std::chrono::milliseconds(250);

}  // namespace

struct Deployment::Metrics {
  Metrics(http::Registry& all, const std::string& name)
      : started(
            all.counter("troupe_serve_replica_starts_total", "Replicas started.", {{"deployment", name}})),
        failures(all.counter("troupe_serve_replica_failures_total", "Replicas that died, or did not come up.",
                             {{"deployment", name}})),
        updated(updates(all, name, "done")),
        not_updated(updates(all, name, "failed")),
        version(
            all.gauge("troupe_serve_weights_version", "Of the weights that answer.", {{"deployment", name}})),
        rolls_out(all.gauge("troupe_serve_update_version", "Of the weights that roll out; 0: none do.",
                            {{"deployment", name}})),
        queued(
            all.gauge("troupe_serve_queued_rows", "Rows that wait for a replica.", {{"deployment", name}})),
        ongoing(all.gauge("troupe_serve_ongoing_requests", "Requests without an answer.",
                          {{"deployment", name}})),
        wanted(all.gauge("troupe_serve_desired_replicas", "Replicas that the load asks for.",
                         {{"deployment", name}})),
        cold_starts(all.counter("troupe_serve_cold_starts_total",
                                "Times that requests found no replica, and waited until one came up.",
                                {{"deployment", name}})),
        start_time(all.histogram("troupe_serve_replica_start_seconds",
                                 "From the order to start a replica until it was ready.",
                                 {{"deployment", name}}, kStartBounds)) {
    for (const char* state : {"starting", "warming", "ready", "draining"})
      replicas.push_back(
          all.gauge("troupe_serve_replicas", "Replicas by state.", {{"deployment", name}, {"state", state}}));
  }
  static std::shared_ptr<http::Counter> updates(http::Registry& all, const std::string& name,
                                                const char* result) {
    return all.counter("troupe_serve_updates_total", "Roll-outs of weights that ended.",
                       {{"deployment", name}, {"result", result}});
  }

  std::shared_ptr<http::Counter> started;
  std::shared_ptr<http::Counter> failures;
  std::shared_ptr<http::Counter> updated;
  std::shared_ptr<http::Counter> not_updated;
  std::shared_ptr<http::Gauge> version;
  std::shared_ptr<http::Gauge> rolls_out;
  std::shared_ptr<http::Gauge> queued;
  std::shared_ptr<http::Gauge> ongoing;
  std::shared_ptr<http::Gauge> wanted;
  std::shared_ptr<http::Counter> cold_starts;
  std::shared_ptr<http::Histogram> start_time;
  std::vector<std::shared_ptr<http::Gauge>> replicas;
};

Deployment::Deployment(Parts parts, http::Registry& metrics)
    : parts_(std::move(parts)),
      metrics_(std::make_unique<Metrics>(metrics, parts_.name)),
      serial_([this](Serial::Work work) {
        parts_.session.process().later(Duration{0}, [me = shared_from_this(), work] { work(); });
      }),
      machine_(parts_.config),
      book_(parts_.setup, parts_.name, metrics),
      sender_(book_, 0, sender_of()),
      weights_{{1, parts_.weights}},
      weights_from_{parts_.weights.from, ""} {}

Deployment::~Deployment() {
  if (call_id_ != 0) parts_.calls->remove(call_id_);
}

BatchSender::Owner Deployment::sender_of() {
  return {.post = [this](std::function<void()> work) { post(std::move(work)); },
          .life = [this] { return shared_from_this(); },
          .lost = [this](ReplicaId id, const ErrorInfo& why) { died(id, why.message()); },
          .done = [this](const BatchDone& batch) { step(batch); }};
}

/// Runs in whichever thread brings work: one of the HTTP server, or one of the runtime that receives. None of
/// them may wait.
void Deployment::post(std::function<void()> work) {
  const NoWaitScope no_wait;
  serial_.post(std::move(work));
}

void Deployment::carry_out(const std::vector<Action>& actions) {
  publish_view();
  for (const Action& action : actions) std::visit([this](const auto& one) { obey(one); }, action);
  arm_timer();
}

void Deployment::publish_view() {
  const auto view = machine_.view();
  const auto from = [this](VersionId version) {
    const auto at = weights_.find(version);
    return at == weights_.end() ? std::string() : at->second.from;
  };
  const std::lock_guard lock(mutex_);
  if (view.version != view_.version || view.rolls_out != view_.rolls_out)
    weights_from_ = {from(view.version), from(view.rolls_out)};
  view_ = view;
  if (!up_ && machine_.is_up()) {
    up_ = true;
    changed_.notify_all();
  }
}

void Deployment::step(const Event& event) {
  carry_out(machine_.on(event, clock_.now()));
}

void Deployment::arm_timer() {
  const Instant wake = machine_.wake_at();
  if (wake >= armed_) return;
  armed_ = wake;
  const Duration delay = std::max<Duration>(wake - clock_.now(), std::chrono::microseconds(1));
  parts_.session.process().later(delay, [me = shared_from_this(), wake] {
    me->post([me, wake] {
      if (me->armed_ == wake) me->armed_ = Instant::max();
      me->step(Tick{});
    });
  });
}

void Deployment::start() {
  if (parts_.calls) call_id_ = parts_.calls->add(shared_from_this(), parts_.asks);
  post([me = shared_from_this()] { me->carry_out(me->machine_.start(me->clock_.now())); });
}

void Deployment::submit(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply) {
  accept(id, std::move(inputs), deadline, std::move(reply), false);
}
void Deployment::submit_call(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply) {
  accept(id, std::move(inputs), deadline, std::move(reply), true);
}

void Deployment::accept(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply, bool called) {
  post([me = shared_from_this(), id, inputs = std::move(inputs), deadline, reply = std::move(reply), called] {
    const std::int64_t rows = inputs.shape()[0];
    me->book_.add(id, inputs, deadline, reply);
    me->step(Arrived{id, rows, deadline, called});
  });
}

void Deployment::leave(RequestId id) {
  post([me = shared_from_this(), id] {
    if (me->book_.leave(id)) me->step(Left{id});
  });
}

void Deployment::drain() {
  const Duration callers = parts_.calls ? parts_.calls->drain_time_of_callers(parts_.name) : Duration{0};
  post([me = shared_from_this(), callers] { me->step(DrainAsked{.callers_take = callers}); });
}
void Deployment::end() {
  post([me = shared_from_this()] { me->step(DrainAsked{.at_once = true}); });
}
void Deployment::caller_joined() {
  post([me = shared_from_this()] { me->step(CallerJoined{}); });
}
void Deployment::caller_left() {
  post([me = shared_from_this()] { me->step(CallerLeft{}); });
}

bool Deployment::wait_up(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (!up_ && !given_up_) changed_.wait_for(lock, timeout);
  if (!up_ && given_up_) throw_error(*given_up_);
  return up_;
}

bool Deployment::wait_stopped(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (!stopped_) changed_.wait_for(lock, timeout);
  return stopped_;
}

bool Deployment::is_ready() const {
  const std::lock_guard lock(mutex_);
  return (view_.ready > 0 || view_.starts_on_demand) && !view_.drains;
}

std::vector<int> Deployment::pids() const {
  const std::lock_guard lock(mutex_);
  return pids_;
}

std::string Deployment::last_failure() const {
  const std::lock_guard lock(mutex_);
  return last_failure_;
}

DeploymentMachine::View Deployment::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

std::pair<std::string, std::string> Deployment::weights_from() const {
  const std::lock_guard lock(mutex_);
  return weights_from_;
}

VersionId Deployment::version() const {
  const std::lock_guard lock(mutex_);
  return view_.version;
}

std::optional<ReplicaInfo> Deployment::output() const {
  const std::lock_guard lock(mutex_);
  return output_;
}

void Deployment::measure() {
  const std::lock_guard lock(mutex_);
  metrics_->version->set(static_cast<double>(view_.version));
  metrics_->rolls_out->set(static_cast<double>(view_.rolls_out));
  metrics_->queued->set(static_cast<double>(view_.queued_rows));
  metrics_->ongoing->set(static_cast<double>(view_.requests));
  metrics_->wanted->set(view_.wanted);
  metrics_->cold_starts->raise_to(view_.cold_starts);
  const std::array<int, 4> counts{view_.starting, view_.warming, view_.ready, view_.draining};
  for (std::size_t i = 0; i < counts.size(); ++i) metrics_->replicas[i]->set(counts[i]);
}

// Requests.

void Deployment::obey(const SendBatch& action) {
  sender_.send(action);
}
void Deployment::obey(const Deliver& action) {
  book_.deliver(action);
}
void Deployment::obey(const Fail& action) {
  book_.fail(action);
}

// Proxies.

void Deployment::add_proxy(ProxyId id, const ActorHandle<Proxy>& proxy) {
  post([me = shared_from_this(), id, proxy] {
    me->proxies_[id] = proxy;
    me->step(ProxyJoined{id});
  });
}

void Deployment::remove_proxy(ProxyId id) {
  post([me = shared_from_this(), id] {
    if (me->proxies_.erase(id) > 0) me->step(ProxyLeft{id});
  });
}

void Deployment::obey(const TellProxy& action) {
  const auto proxy = proxies_.find(action.proxy);
  if (proxy == proxies_.end()) return;
  ProxyTold told{action.proxy,
                 parts_.name,
                 parts_.config.max_batch,
                 parts_.config.batch_wait.count(),
                 parts_.max_request_rows,
                 parts_.setup,
                 {},
                 action.routes,
                 {}};
  {
    const std::lock_guard lock(mutex_);
    told.output = output_;
  }
  for (const auto& one : action.routes.replicas) told.replicas.push_back(sender_.handle(one.replica));
  proxy->second.call<&Proxy::hear>(told).then(
      [me = shared_from_this(), id = action.proxy](const Result<ProxyReport>& report) {
        me->post([me, id, report] {
          if (report) return me->step(ProxyAnswered{id, *report});
          log(LogLevel::kInfo, me->parts_.name + ": proxy " + std::to_string(id) +
                                   " was told nothing: " + report.error().message());
          me->step(ProxyAnswered{id, {}});
        });
      });
}

void Deployment::obey(const DropProxy& action) {
  log(LogLevel::kWarning,
      parts_.name + ": proxy " + std::to_string(action.proxy) + " ends: " + action.reason);
  const auto proxy = proxies_.extract(action.proxy);
  if (!proxy.empty()) parts_.session.kill(proxy.mapped(), action.reason);
}

// Replicas.

void Deployment::obey(const StartReplica& action) {
  log(LogLevel::kInfo, parts_.name + ": replica " + std::to_string(action.replica) + " starts with weights " +
                           std::to_string(action.version) + ": " + action.reason);
  metrics_->started->add();
  starts_[action.replica] = {
      .version = action.version, .weights = weights_.at(action.version).file, .since = clock_.now()};
  if (parts_.asks.empty()) return spawn(action.replica, ReplicaCalls{});
  const Duration most = parts_.config.health_timeout * 3 / 4;
  parts_.calls->with_entrance(
      [me = shared_from_this(), id = action.replica, most](const Result<ActorHandle<Entrance>>& entrance) {
        me->post([me, id, most, entrance] {
          entrance ? me->spawn(id, ReplicaCalls{*entrance, most.count()}) : me->started(id, entrance.error());
        });
      });
}

void Deployment::spawn(ReplicaId id, const ReplicaCalls& calls) {
  const auto start = starts_.find(id);
  if (start == starts_.end()) return;  // it is not wanted any more
  const auto started_or_not = [me = shared_from_this(), id](Result<ActorHandle<Replica>> replica) {
    me->post([me, id, replica] { me->started(id, replica); });
  };
  try {
    start->second.spawn = parts_.start_replica(calls, started_or_not);
  } catch (const Error& error) {
    started_or_not(error.info());
  }
}

void Deployment::obey(const StopReplica& action) {
  log(action.has_failed ? LogLevel::kWarning : LogLevel::kInfo,
      parts_.name + ": replica " + std::to_string(action.replica) +
          (action.has_failed ? " failed: " : " ends: ") + action.reason);
  if (action.has_failed) note_failure(action.replica, action.reason);
  const auto start = starts_.extract(action.replica);
  if (start.empty()) return;
  if (const auto& spawn = start.mapped().spawn)  // else it waits on, for a CPU, and goes before those wanted
    spawn->cancel({ErrorCode::kUnavailable, "a replica was not started", action.reason, ""});
  if (sender_.has(action.replica)) {
    const auto handle = sender_.handle(action.replica);
    parts_.session.kill(handle, action.reason);
    if (parts_.calls) parts_.calls->forget(handle.address().actor);
    sender_.remove(action.replica);
  }
  const std::lock_guard lock(mutex_);
  std::erase(pids_, start.mapped().pid);
}

void Deployment::started(ReplicaId id, Result<ActorHandle<Replica>> replica) {
  const auto start = starts_.find(id);
  if (start == starts_.end()) {
    if (replica) parts_.session.kill(*replica, "it is not wanted any more");
    return;
  }
  start->second.spawn = nullptr;
  if (!replica) return failed(id, replica.error());
  sender_.add(id, *replica, start->second.version);
  parts_.session.monitor(*replica, [weak = weak_from_this(), id](const std::string& why) {
    if (const auto me = weak.lock()) me->post([me, id, why] { me->died(id, why); });
  });
  parts_.session.watch_leaving(*replica, [weak = weak_from_this(), id](const Leaving& leaving) {
    if (const auto me = weak.lock())
      me->post([me, id, stays = leaving.stays] { me->step(ReplicaLeaves{id, stays}); });
  });
  step(ReplicaUp{id});
  load(id, 0);
}

void Deployment::failed(ReplicaId id, const ErrorInfo& why) {
  step(ReplicaFailed{id, why});
}

/// Told by its call, and by its monitor once more.
void Deployment::died(ReplicaId id, const std::string& why) {
  step(ReplicaDied{id, why});
}

void Deployment::note_failure(ReplicaId id, const std::string& why) {
  std::string text = "replica " + std::to_string(id) + ": " + why;
  if (why.find("killed by signal 9") != std::string::npos && why.find("(its process: ") == std::string::npos)
    text += "; troupe did not send that: a person did, or the kernel, as memory ran out (then dmesg says so)";
  const std::lock_guard lock(mutex_);
  last_failure_ = std::move(text);
  metrics_->failures->add();
}

/// One piece after the other. Who has begun goes before those that have not: some are ready early.
void Deployment::load(ReplicaId id, std::uint64_t offset) {
  if (!starts_.contains(id)) return;
  const std::uint64_t all = starts_.at(id).weights->size();
  step(ReplicaLoads{id, std::min(offset, all), all});
  if (offset == 0) {
    loads_.emplace_back(id, offset);
  } else {
    loads_.emplace_front(id, offset);
  }
  send_pieces();
}

void Deployment::send_pieces() {
  while (pieces_ < kMostPieces && !waits_for_room_ && !loads_.empty()) {
    const auto [id, offset] = loads_.front();
    if (!send_piece(id, offset)) return;
    loads_.pop_front();
  }
}

/// False: there is no room for it now.
bool Deployment::send_piece(ReplicaId id, std::uint64_t offset) {
  const auto at = starts_.find(id);
  if (at == starts_.end()) return true;  // it is late
  const ActorHandle<Replica>& handle = sender_.handle(id);
  const wire::Bytes piece = train::state_piece(*at->second.weights, offset);
  if (piece.empty()) {
    at->second.weights = nullptr;
    warm_up(id, handle);
    return true;
  }
  const auto done = [me = shared_from_this(), id, offset](const Result<void>& had) {
    me->post([me, id, offset, had] {
      --me->pieces_;
      had ? me->load(id, offset + train::kStatePiece) : me->failed(id, had.error());
      me->send_pieces();
    });
  };
  try {
    handle.call<&Replica::add_weights>(piece).then(done);
  } catch (const LimitExceeded& error) {
    waits_for_room_ = true;
    if (!std::exchange(is_full_, true))
      log(LogLevel::kWarning,
          parts_.name + ": the weights of replica " + std::to_string(id) + " wait for room: " + error.what());
    parts_.session.process().later(kRoomAgain, [me = shared_from_this()] {
      me->post([me] {
        me->waits_for_room_ = false;
        me->send_pieces();
      });
    });
    return false;
  } catch (const Error& error) {
    failed(id, error.info());
    return true;
  }
  ++pieces_;
  is_full_ = false;
  return true;
}

void Deployment::warm_up(ReplicaId id, const ActorHandle<Replica>& replica) {
  replica.call<&Replica::warm_up>().then([me = shared_from_this(), id](Result<ReplicaInfo> info) {
    me->post([me, id, info] {
      if (!info) return me->failed(id, info.error());
      if (!me->sender_.has(id)) return;
      {
        const std::lock_guard lock(me->mutex_);
        me->output_ = *info;
      }
      me->sender_.ask_clock(id, [me = me.get(), id, pid = info->pid](const Result<void>& timed) {
        timed ? me->ready(id, pid) : me->failed(id, timed.error());
      });
    });
  });
}

void Deployment::ready(ReplicaId id, int pid) {
  Start& start = starts_.at(id);
  start.pid = pid;
  const double seconds = to_seconds(clock_.now() - start.since);
  metrics_->start_time->observe(seconds);
  {
    const std::lock_guard lock(mutex_);
    pids_.push_back(pid);
  }
  log(LogLevel::kInfo, parts_.name + ": replica " + std::to_string(id) + " (pid " + std::to_string(pid) +
                           ") is ready after " + std::to_string(seconds).substr(0, 5) + " s");
  step(ReplicaReady{id});
}

void Deployment::obey(const CheckReplica& action) {
  // The sender's answer comes in this one's turn, while it lives.
  sender_.ask_clock(action.replica, [this, id = action.replica](const Result<void>& timed) {
    timed ? step(ReplicaAlive{id}) : died(id, timed.error().message());
  });
}

void Deployment::obey(const GiveUp& action) {
  const std::lock_guard lock(mutex_);
  given_up_ = action.error;
  changed_.notify_all();
}

// Other weights.

void Deployment::update(KeptWeights weights, UpdateDone done) {
  post([me = shared_from_this(), weights = std::move(weights), done = std::move(done)] {
    const VersionId version = ++me->last_version_;
    me->weights_[version] = weights;
    me->begin_update(version, done);
  });
}

void Deployment::roll_back(UpdateDone done) {
  post([me = shared_from_this(), done = std::move(done)] {
    if (me->machine_.view().rolls_out != 0) {
      me->step(UpdateCancelled{});
      return done(me->current_);
    }
    if (me->previous_ == 0)
      return done(ErrorInfo{ErrorCode::kBadConfig, "there are no weights to go back to", "none were replaced",
                            "call update() first"});
    me->begin_update(me->previous_, done);
  });
}

void Deployment::cancel_update() {
  post([me = shared_from_this()] { me->step(UpdateCancelled{}); });
}

void Deployment::scale(Replicas replicas, std::function<void()> taken) {
  post([me = shared_from_this(), replicas, taken = std::move(taken)] {
    me->step(ScaleAsked{replicas});
    taken();
  });
}

/// "weights 3 (step 120 of Digits{...})"
std::string Deployment::named(VersionId version) const {
  const auto at = weights_.find(version);
  return "weights " + std::to_string(version) + (at == weights_.end() ? "" : " (" + at->second.from + ")");
}

void Deployment::begin_update(VersionId version, UpdateDone done) {
  log(LogLevel::kInfo, parts_.name + ": " + named(version) + " roll out");
  updates_.emplace(version, std::move(done));
  step(UpdateAsked{version});
}

void Deployment::obey(const Updated& action) {
  log(LogLevel::kInfo, parts_.name + ": " + named(action.version) + " answer");
  previous_ = std::exchange(current_, action.version);
  end_update(action.version, action.version);
}

void Deployment::obey(const UpdateFailed& action) {
  log(LogLevel::kWarning, parts_.name + ": " + named(action.version) + " do not roll out, and weights " +
                              std::to_string(current_) + " go on: " + action.error.message());
  end_update(action.version, action.error);
}

/// Of the weights, those that answer, those before them and those that roll out are kept.
void Deployment::end_update(VersionId version, Result<VersionId> result) {
  const auto done = updates_.extract(version);
  std::erase_if(weights_, [&](const auto& one) {
    return one.first != current_ && one.first != previous_ && !updates_.contains(one.first);
  });
  (result.ok() ? metrics_->updated : metrics_->not_updated)->add();
  done.mapped()(std::move(result));
}

/// Its series go: what still comes, such as a late answer, counts nowhere.
void Deployment::obey(const Stopped&) {
  if (call_id_ != 0) parts_.calls->remove(std::exchange(call_id_, 0));
  http::Registry nowhere;
  book_.drop_metrics();
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
  metrics_ = std::make_unique<Metrics>(nowhere, parts_.name);
}

}  // namespace troupe::serve
