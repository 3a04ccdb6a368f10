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
      name_(first.name),
      setup_(first.setup),
      max_request_rows_(first.max_request_rows),
      serial_([this](Serial::Work work) {
        session_.process().later(Duration{0}, [me = shared_from_this(), work] { work(); });
      }),
      machine_(config_of(first)),
      book_(first.setup, first.name, metrics),
      sender_(book_, first.proxy, sender_of()) {}

BatchSender::Owner ProxyFront::sender_of() {
  return {.post = [this](std::function<void()> work) { post(std::move(work)); },
          .life = [this] { return shared_from_this(); },
          .lost = [this](ReplicaId id, const ErrorInfo& why) { lost(id, why); },
          .done = [this](const BatchDone& batch) { carry_out(machine_.done(batch, clock_.now())); }};
}

/// As Deployment's.
void ProxyFront::post(std::function<void()> work) {
  const NoWaitScope no_wait;
  serial_.post(std::move(work));
}

void ProxyFront::carry_out(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* batch = std::get_if<SendBatch>(&action)) sender_.send(*batch);
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
        if (me->sender_.has(one.replica)) continue;
        me->sender_.add(one.replica, told.replicas[i], one.version);
        me->sender_.ask_clock(one.replica, [me = me.get(), id = one.replica](const Result<void>& timed) {
          if (!timed) return me->sender_.remove(id);  // the next routes that have it ask again
          me->keep_to_routes();
        });
      }
      me->sender_.keep_only([&](ReplicaId id) { return there.contains(id); });
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
  std::erase_if(reached.replicas, [&](const auto& one) { return !sender_.is_timed(one.replica); });
  carry_out(machine_.told(reached, clock_.now()));
}

void ProxyFront::lost(ReplicaId id, const ErrorInfo& why) {
  const bool for_good = why.code == ErrorCode::kActorDied;
  log(LogLevel::kInfo, name_ + ": replica " + std::to_string(id) +
                           (for_good ? " died: " : " is out of reach: ") + why.message());
  carry_out(machine_.replica_lost(id, why.message(), for_good, clock_.now()));
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
