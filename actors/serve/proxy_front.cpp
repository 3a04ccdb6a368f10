#include "actors/serve/proxy_front.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/host/may_wait.hpp"

namespace troupe::serve {
namespace {

DeploymentConfig config_of(const ProxyTold& told) {
  DeploymentConfig config;
  config.max_batch = told.max_batch;
  config.max_queue = std::max(told.routes.max_queue, told.max_batch);
  config.batch_wait = Duration(told.batch_wait_ns);
  return config;
}

}  // namespace

ProxyFront::ProxyFront(const Session& session, const ProxyTold& first, http::Registry& metrics)
    : session_(session),
      me_(first.proxy),
      name_(first.name),
      setup_(first.setup),
      max_request_rows_(first.max_request_rows),
      serial_([this](Serial::Work work) {
        session_.process().later(Duration{0}, [me = shared_from_this(), work] { work(); });
      }),
      machine_(config_of(first)),
      book_(first.setup, first.name, metrics) {}

/// As Deployment's.
void ProxyFront::post(std::function<void()> work) {
  const NoWaitScope no_wait;
  serial_.post(std::move(work));
}

void ProxyFront::carry_out(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* batch = std::get_if<SendBatch>(&action)) send(*batch);
    if (const auto* answer = std::get_if<Deliver>(&action)) book_.deliver(*answer);
    if (const auto* failure = std::get_if<Fail>(&action)) book_.fail(*failure);
  }
  {
    const std::lock_guard lock(mutex_);
    ready_ = machine_.is_ready();
    version_ = machine_.routes().version;
  }
  arm_timer();
}

void ProxyFront::arm_timer() {
  const Instant wake = machine_.wake_at();
  if (wake >= armed_) return;
  armed_ = wake;
  const Duration delay = std::max<Duration>(wake - clock_.now(), std::chrono::microseconds(1));
  session_.process().later(delay, [me = shared_from_this(), wake] {
    me->post([me, wake] {
      if (me->armed_ == wake) me->armed_ = Instant::max();
      me->carry_out(me->machine_.tick(me->clock_.now()));
    });
  });
}

void ProxyFront::submit(RequestId id, data::Tensor inputs, Instant deadline, ReplyTo reply) {
  post([me = shared_from_this(), id, inputs = std::move(inputs), deadline, reply = std::move(reply)] {
    const std::int64_t rows = inputs.shape()[0];
    me->book_.add(id, inputs, deadline, reply);
    me->carry_out(me->machine_.arrived({id, rows, deadline}, me->clock_.now()));
  });
}

void ProxyFront::leave(RequestId id) {
  post([me = shared_from_this(), id] {
    if (me->book_.leave(id)) me->carry_out(me->machine_.left(id, me->clock_.now()));
  });
}

void ProxyFront::hear(const ProxyTold& told, const Promise<ProxyReport>& report) {
  post([me = shared_from_this(), told, report = report]() mutable {
    if (told.routes.number >= me->routes_.number) {
      me->routes_ = told.routes;
      std::set<ReplicaId> there;
      for (std::size_t i = 0; i < told.routes.replicas.size() && i < told.replicas.size(); ++i) {
        const auto& one = told.routes.replicas[i];
        there.insert(one.replica);
        if (me->seats_.contains(one.replica)) continue;
        me->seats_[one.replica] = {told.replicas[i], one.version, {}};
        me->ask_clock(one.replica, told.replicas[i]);
      }
      std::erase_if(me->seats_, [&](const auto& one) { return !there.contains(one.first); });
      {
        const std::lock_guard lock(me->mutex_);
        me->output_ = told.output;
      }
      me->keep_to_routes();
    }
    report.set(me->machine_.report());
  });
}

/// To those whose replicas can be reached: deadlines travel in a replica's time.
void ProxyFront::keep_to_routes() {
  Routes reached = routes_;
  std::erase_if(reached.replicas, [&](const auto& one) {
    const auto seat = seats_.find(one.replica);
    return seat == seats_.end() || !seat->second.clock_offset;
  });
  carry_out(machine_.told(reached, clock_.now()));
}

void ProxyFront::ask_clock(ReplicaId id, const ActorHandle<Replica>& replica) {
  const Instant asked = clock_.now();
  replica.call<&Replica::clock>().then([me = shared_from_this(), id, asked](Result<std::int64_t> theirs) {
    me->post([me, id, asked, theirs, ours = (asked + me->clock_.now()) / 2] {
      const auto seat = me->seats_.find(id);
      if (seat == me->seats_.end()) return;
      if (!theirs) return void(me->seats_.erase(seat));  // the next routes that have it ask again
      seat->second.clock_offset = Instant(*theirs) - ours;
      me->keep_to_routes();
    });
  });
}

void ProxyFront::send(const SendBatch& action) {
  const Seat& seat = seats_.at(action.replica);
  const BatchInput batch = book_.batch_of(action, *seat.clock_offset, me_);
  const auto done = [me = shared_from_this(), action, version = seat.version,
                     rows = batch.rows](Result<BatchOutput> output) {
    const auto shared = std::make_shared<Result<BatchOutput>>(std::move(output));  // work is copied
    me->post(
        [me, action, version, rows, shared] { me->batch_done(action, version, rows, std::move(*shared)); });
  };
  try {
    seat.handle.call<&Replica::predict>(batch).then(done);
  } catch (const Error& error) {  // a large batch is an object, and there may be no room for one
    done(error.info());
  }
}

void ProxyFront::batch_done(const SendBatch& sent, VersionId version, const std::vector<std::int64_t>& rows,
                            Result<BatchOutput> result) {
  const Instant now = clock_.now();
  if (!result && is_lost(result.error())) {
    const bool for_good = result.error().code == ErrorCode::kActorDied;
    log(LogLevel::kInfo, name_ + ": replica " + std::to_string(sent.replica) +
                             (for_good ? " died: " : " is out of reach: ") + result.error().message());
    return carry_out(machine_.replica_lost(sent.replica, result.error().message(), for_good, now));
  }
  carry_out(machine_.done(book_.take(sent, version, rows, std::move(result)), now));
  book_.forget_outputs();
}

bool ProxyFront::is_ready() const {
  const std::lock_guard lock(mutex_);
  return ready_;
}
VersionId ProxyFront::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}
std::optional<ReplicaInfo> ProxyFront::output() const {
  const std::lock_guard lock(mutex_);
  return output_;
}

}  // namespace troupe::serve
