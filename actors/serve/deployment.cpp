#include "actors/serve/deployment.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "actors/train/snapshot.hpp"
#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"

namespace troupe::serve {
namespace {

constexpr double kRowBounds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

/// The call failed since the replica is gone or cannot be reached.
bool is_lost(const ErrorInfo& error) {
  return error.code == ErrorCode::kActorDied || error.code == ErrorCode::kUnavailable;
}

std::size_t bytes_of(data::DType dtype, const data::Shape& shape) {
  std::size_t bytes = collectives::element_size(dtype);
  for (const auto extent : shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

}  // namespace

int http_status(Failure failure) {
  switch (failure) {
    case Failure::kQueueFull:
      return 429;
    case Failure::kUnavailable:
      return 503;
    case Failure::kDeadline:
      return 504;
    case Failure::kReplicaDied:
    case Failure::kModel:
      break;
  }
  return 500;
}

struct Deployment::Metrics {
  Metrics(http::Registry& all, const std::string& name)
      : answered(requests(all, name, 200)),
        latency(all.histogram("troupe_serve_request_duration_seconds",
                              "From a request's arrival to its answer, of those answered.",
                              {{"deployment", name}})),
        queue_wait(all.histogram("troupe_serve_queue_wait_seconds",
                                 "From a request's arrival until it was sent to a replica.",
                                 {{"deployment", name}})),
        batch_rows(all.histogram("troupe_serve_batch_rows", "Rows of the batches that were computed.",
                                 {{"deployment", name}}, kRowBounds)),
        compute(all.histogram("troupe_serve_batch_compute_seconds", "What the net took for a batch.",
                              {{"deployment", name}})),
        left(all.counter("troupe_serve_cancelled_total", "Requests whose client left before the answer.",
                         {{"deployment", name}})),
        retries(all.counter("troupe_serve_retries_total", "Requests sent again, since their replica died.",
                            {{"deployment", name}})),
        started(
            all.counter("troupe_serve_replica_starts_total", "Replicas started.", {{"deployment", name}})),
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
                         {{"deployment", name}})) {
    for (std::size_t i = 0; i < kFailures; ++i)
      failed[i] = requests(all, name, http_status(static_cast<Failure>(i)));
    for (const char* state : {"starting", "warming", "ready", "draining"})
      replicas.push_back(
          all.gauge("troupe_serve_replicas", "Replicas by state.", {{"deployment", name}, {"state", state}}));
  }
  static std::shared_ptr<http::Counter> requests(http::Registry& all, const std::string& name, int code) {
    return all.counter("troupe_serve_requests_total", "Requests that ended, by the code of their response.",
                       {{"code", std::to_string(code)}, {"deployment", name}});
  }

  static std::shared_ptr<http::Counter> updates(http::Registry& all, const std::string& name,
                                                const char* result) {
    return all.counter("troupe_serve_updates_total", "Roll-outs of weights that ended.",
                       {{"deployment", name}, {"result", result}});
  }

  std::shared_ptr<http::Counter> answered;
  std::array<std::shared_ptr<http::Counter>, kFailures> failed;
  std::shared_ptr<http::Histogram> latency;
  std::shared_ptr<http::Histogram> queue_wait;
  std::shared_ptr<http::Histogram> batch_rows;
  std::shared_ptr<http::Histogram> compute;
  std::shared_ptr<http::Counter> left;
  std::shared_ptr<http::Counter> retries;
  std::shared_ptr<http::Counter> started;
  std::shared_ptr<http::Counter> updated;
  std::shared_ptr<http::Counter> not_updated;
  std::shared_ptr<http::Gauge> version;
  std::shared_ptr<http::Gauge> rolls_out;
  std::shared_ptr<http::Gauge> queued;
  std::shared_ptr<http::Gauge> ongoing;
  std::shared_ptr<http::Gauge> wanted;
  std::vector<std::shared_ptr<http::Gauge>> replicas;
};

Deployment::Deployment(Parts parts, http::Registry& metrics)
    : parts_(std::move(parts)),
      metrics_(std::make_unique<Metrics>(metrics, parts_.name)),
      serial_([this](Serial::Work work) {
        parts_.session.process().later(Duration{0}, [me = shared_from_this(), work] { work(); });
      }),
      machine_(parts_.config),
      weights_{{1, parts_.weights}} {}

Deployment::~Deployment() = default;

/// Runs in whichever thread brings work: one of the HTTP server, or one of the runtime that receives. None of
/// them may wait.
void Deployment::post(std::function<void()> work) {
  const NoWaitScope no_wait;
  serial_.post(std::move(work));
}

void Deployment::carry_out(const std::vector<Action>& actions) {
  {
    const std::lock_guard lock(mutex_);
    view_ = machine_.view();
    up_ = up_ || machine_.is_up();
  }
  for (const Action& action : actions) std::visit([this](const auto& one) { obey(one); }, action);
  {
    const std::lock_guard lock(mutex_);
    if (up_ || stopped_ || given_up_) changed_.notify_all();
  }
  arm_timer();
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
  post([me = shared_from_this()] { me->carry_out(me->machine_.start(me->clock_.now())); });
}

void Deployment::submit(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply) {
  post([me = shared_from_this(), id, inputs = std::move(inputs), deadline, reply = std::move(reply)] {
    const std::int64_t rows = inputs.shape()[0];
    me->requests_.emplace(id, Waiting{inputs, deadline, me->clock_.now(), reply});
    me->step(Arrived{id, rows, deadline});
  });
}

void Deployment::leave(RequestId id) {
  post([me = shared_from_this(), id] {
    if (me->requests_.erase(id) == 0) return;
    me->metrics_->left->add();
    me->step(Left{id});
  });
}

void Deployment::drain() {
  post([me = shared_from_this()] { me->step(DrainAsked{}); });
}
void Deployment::end() {
  post([me = shared_from_this()] { me->step(DrainAsked{true}); });
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
  return view_.ready > 0 && !view_.drains;
}

std::vector<int> Deployment::pids() const {
  const std::lock_guard lock(mutex_);
  return pids_;
}

DeploymentMachine::View Deployment::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
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
  const std::array<int, 4> counts{view_.starting, view_.warming, view_.ready, view_.draining};
  for (std::size_t i = 0; i < counts.size(); ++i) metrics_->replicas[i]->set(counts[i]);
}

// Requests.

void Deployment::obey(const SendBatch& action) {
  BatchInput batch{parts_.setup.dtype, parts_.setup.row_shape, {}, {}, {}};
  const Seat& seat = seats_.at(action.replica);
  std::size_t bytes = 0;
  for (const RequestId id : action.requests) bytes += requests_.at(id).inputs.bytes().size();
  batch.values.reserve(bytes);
  const Instant now = clock_.now();
  for (const RequestId id : action.requests) {
    Waiting& request = requests_.at(id);
    const auto values = request.inputs.bytes();
    batch.values.insert(batch.values.end(), values.begin(), values.end());
    batch.rows.push_back(request.inputs.shape()[0]);
    batch.deadlines.push_back((request.deadline + seat.clock_offset).count());
    if (std::exchange(request.sent, true)) {
      metrics_->retries->add();
    } else {
      metrics_->queue_wait->observe(to_seconds(now - request.arrived));
    }
  }
  seat.handle.call<&Replica::predict>(batch).then([me = shared_from_this(), action, version = seat.version,
                                                   rows = batch.rows](Result<BatchOutput> output) {
    const auto shared = std::make_shared<Result<BatchOutput>>(std::move(output));  // work is copied
    me->post(
        [me, action, version, rows, shared] { me->batch_done(action, version, rows, std::move(*shared)); });
  });
}

void Deployment::batch_done(const SendBatch& sent, VersionId version, const std::vector<std::int64_t>& rows,
                            Result<BatchOutput> result) {
  if (!result && is_lost(result.error())) return died(sent.replica, result.error().message());
  BatchDone done{sent.replica, sent.batch, {}, {}};
  if (!result) {
    log(LogLevel::kWarning, parts_.name + ": replica " + std::to_string(sent.replica) +
                                " failed at a batch: " + result.error().message());
    done.verdicts.assign(
        sent.requests.size(),
        {Verdict::What::kThrew, "its replica failed at its batch: the server's log says why"});
    return step(done);
  }
  const auto output = std::make_shared<const BatchOutput>(*std::move(result));
  const std::size_t row_bytes = bytes_of(output->dtype, output->row_shape);
  std::int64_t all_rows = 0;
  std::size_t at = 0;
  returned_.assign(sent.requests.size(), {{}, version, {}});
  for (std::size_t i = 0; i < sent.requests.size() && output->verdicts.size() == rows.size(); ++i) {
    if (output->verdicts[i].what != Verdict::What::kAnswered) continue;
    const std::size_t bytes = static_cast<std::size_t>(rows[i]) * row_bytes;
    if (at + bytes > output->values.size()) return step(done);  // no answer to any of them
    data::Shape shape{rows[i]};
    shape.insert(shape.end(), output->row_shape.begin(), output->row_shape.end());
    returned_[i].outputs = data::Tensor(output->dtype, std::move(shape),
                                        std::shared_ptr<const std::byte>(output, output->values.data() + at));
    at += bytes;
    all_rows += rows[i];
  }
  metrics_->batch_rows->observe(static_cast<double>(all_rows));
  metrics_->compute->observe(to_seconds(Duration(output->computed_ns)));
  done.verdicts = output->verdicts;
  done.computed = Duration(output->computed_ns);
  step(done);
  returned_.clear();
}

void Deployment::obey(const Deliver& action) {
  const auto request = requests_.extract(action.request);
  metrics_->answered->add();
  metrics_->latency->observe(to_seconds(clock_.now() - request.mapped().arrived));
  request.mapped().reply(std::move(returned_.at(action.place)));
}

void Deployment::obey(const Fail& action) {
  const auto request = requests_.extract(action.request);
  metrics_->failed[static_cast<std::size_t>(action.failure)]->add();
  request.mapped().reply({{}, 0, action});
}

// Replicas.

void Deployment::obey(const StartReplica& action) {
  log(LogLevel::kInfo, parts_.name + ": replica " + std::to_string(action.replica) + " starts with weights " +
                           std::to_string(action.version) + ": " + action.reason);
  metrics_->started->add();
  seats_[action.replica] = {.version = action.version, .weights = weights_.at(action.version)};
  const auto started_or_not = [me = shared_from_this(),
                               id = action.replica](Result<ActorHandle<Replica>> replica) {
    me->post([me, id, replica] { me->started(id, replica); });
  };
  try {
    parts_.start_replica(started_or_not);
  } catch (const Error& error) {
    started_or_not(error.info());
  }
}

void Deployment::obey(const StopReplica& action) {
  log(LogLevel::kInfo,
      parts_.name + ": replica " + std::to_string(action.replica) + " ends: " + action.reason);
  const auto seat = seats_.extract(action.replica);
  if (seat.empty()) return;
  if (seat.mapped().handle) parts_.session.kill(seat.mapped().handle, action.reason);
  const std::lock_guard lock(mutex_);
  std::erase(pids_, seat.mapped().pid);
}

void Deployment::started(ReplicaId id, Result<ActorHandle<Replica>> replica) {
  const auto seat = seats_.find(id);
  if (seat == seats_.end()) {
    if (replica) parts_.session.kill(*replica, "it is not wanted any more");
    return;
  }
  if (!replica) return failed(id, replica.error());
  seat->second.handle = *replica;
  parts_.session.monitor(*replica, [weak = weak_from_this(), id](const std::string& why) {
    if (const auto me = weak.lock()) me->post([me, id, why] { me->died(id, why); });
  });
  step(ReplicaUp{id});
  load(id, 0);
}

void Deployment::failed(ReplicaId id, const ErrorInfo& why) {
  if (seats_.contains(id))
    log(LogLevel::kWarning,
        parts_.name + ": replica " + std::to_string(id) + " does not come up: " + why.message());
  step(ReplicaFailed{id, why});
}

/// Told by its call, and by its monitor once more.
void Deployment::died(ReplicaId id, const std::string& why) {
  if (seats_.contains(id))
    log(LogLevel::kWarning, parts_.name + ": replica " + std::to_string(id) + " died: " + why);
  step(ReplicaDied{id, why});
}

/// One piece after the other.
void Deployment::load(ReplicaId id, std::uint64_t offset) {
  const auto at = seats_.find(id);
  if (at == seats_.end()) return;
  Seat& seat = at->second;
  const wire::Bytes piece = train::state_piece(*seat.weights, offset);
  if (piece.empty()) {
    seat.weights = nullptr;
    return warm_up(id, seat.handle);
  }
  seat.handle.call<&Replica::add_weights>(piece).then(
      [me = shared_from_this(), id, offset](Result<void> done) {
        me->post([me, id, offset, done] {
          if (!done) return me->failed(id, done.error());
          me->load(id, offset + train::kStatePiece);
        });
      });
}

void Deployment::warm_up(ReplicaId id, const ActorHandle<Replica>& replica) {
  replica.call<&Replica::warm_up>().then([me = shared_from_this(), id, replica](Result<ReplicaInfo> info) {
    me->post([me, id, replica, info] {
      if (!info) return me->failed(id, info.error());
      {
        const std::lock_guard lock(me->mutex_);
        me->output_ = *info;
      }
      me->set_clock(id, replica, info->pid);
    });
  });
}

/// Deadlines travel in the replica's time.
void Deployment::set_clock(ReplicaId id, const ActorHandle<Replica>& replica, int pid) {
  const Instant asked = clock_.now();
  replica.call<&Replica::clock>().then(
      [me = shared_from_this(), id, asked, pid](Result<std::int64_t> theirs) {
        me->post([me, id, asked, pid, theirs, ours = (asked + me->clock_.now()) / 2] {
          const auto seat = me->seats_.find(id);
          if (seat == me->seats_.end()) return;
          if (!theirs) return me->failed(id, theirs.error());
          seat->second.clock_offset = Instant(*theirs) - ours;
          seat->second.pid = pid;
          {
            const std::lock_guard lock(me->mutex_);
            me->pids_.push_back(pid);
          }
          log(LogLevel::kInfo, me->parts_.name + ": replica " + std::to_string(id) + " (pid " +
                                   std::to_string(pid) + ") is ready");
          me->step(ReplicaReady{id});
        });
      });
}

void Deployment::obey(const CheckReplica& action) {
  seats_.at(action.replica)
      .handle.call<&Replica::clock>()
      .then([me = shared_from_this(), id = action.replica](Result<std::int64_t> clock) {
        me->post([me, id, clock] {
          if (clock) return me->step(ReplicaAlive{id});
          me->died(id, clock.error().message());
        });
      });
}

void Deployment::obey(const GiveUp& action) {
  const std::lock_guard lock(mutex_);
  given_up_ = action.error;
}

// Other weights.

void Deployment::update(std::shared_ptr<const wire::Bytes> weights, UpdateDone done) {
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

void Deployment::begin_update(VersionId version, UpdateDone done) {
  log(LogLevel::kInfo, parts_.name + ": weights " + std::to_string(version) + " roll out");
  updates_.emplace(version, std::move(done));
  step(UpdateAsked{version});
}

void Deployment::obey(const Updated& action) {
  log(LogLevel::kInfo, parts_.name + ": weights " + std::to_string(action.version) + " answer");
  previous_ = std::exchange(current_, action.version);
  end_update(action.version, action.version);
}

void Deployment::obey(const UpdateFailed& action) {
  log(LogLevel::kWarning, parts_.name + ": weights " + std::to_string(action.version) +
                              " do not roll out, and weights " + std::to_string(current_) +
                              " go on: " + action.error.message());
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
  http::Registry nowhere;
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  metrics_ = std::make_unique<Metrics>(nowhere, parts_.name);
}

}  // namespace troupe::serve
