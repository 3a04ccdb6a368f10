#include "actors/serve/proxy_machine.hpp"

#include <algorithm>

namespace troupe::serve {
namespace {

/// Batches that a report tells of: what they take is an average of some tens.
constexpr std::size_t kMostComputed = 64;

}  // namespace

ProxyMachine::ProxyMachine(const DeploymentConfig& config)
    : config_(config), times_(config), router_(config, times_, out_) {}

ProxyMachine::Actions ProxyMachine::finish() {
  router_.dispatch();
  return std::exchange(out_, {});
}

ProxyMachine::Actions ProxyMachine::told(const Routes& routes, Instant now) {
  router_.set_now(now);
  if (routes.number < routes_.number) return finish();
  routes_ = routes;
  router_.set_newest(routes.rolls_out);
  router_.set_max_queue(std::max(routes.max_queue, config_.max_batch));
  if (routes.drains) router_.hold_no_more();
  std::set<ReplicaId> there;
  for (const auto& one : routes.replicas) {
    there.insert(one.replica);
    if (dead_.contains(one.replica)) continue;
    if (one.open) {
      router_.open(one.replica, one.version);
    } else {
      router_.close(one.replica);
    }
  }
  std::erase_if(dead_, [&](ReplicaId id) { return !there.contains(id); });
  for (const ReplicaId id : router_.known()) {
    if (!there.contains(id)) router_.lose(id, "it is gone");
  }
  if (routes.ended)
    router_.fail_all(Failure::kUnavailable, "the deployment has ended, and there was no time to answer it",
                     false);
  if (routes.is_out_of_order) router_.fail_all(Failure::kUnavailable, "no replica comes up", true);
  return finish();
}

ProxyMachine::Actions ProxyMachine::arrived(const Arrived& event, Instant now) {
  router_.set_now(now);
  if (routes_.drains) {
    router_.fail(event.request, Failure::kUnavailable, "the deployment ends");
  } else if (routes_.is_out_of_order) {
    router_.fail(event.request, Failure::kUnavailable, "no replica comes up", std::chrono::seconds(1));
  } else {
    arrived_rows_ += event.rows;
    router_.arrive(event);
  }
  return finish();
}

ProxyMachine::Actions ProxyMachine::left(RequestId request, Instant now) {
  router_.set_now(now);
  router_.leave(request);
  return finish();
}

ProxyMachine::Actions ProxyMachine::done(const BatchDone& event, Instant now) {
  router_.set_now(now);
  if (!router_.has_batch(event.replica, event.batch)) return finish();
  heard_.insert(event.replica);
  const std::int64_t rows = router_.done(event);
  if (rows > 0 && event.computed > Duration{0}) {
    times_.computed(rows, event.computed);
    if (computed_.size() < kMostComputed) computed_.push_back({rows, event.computed.count()});
  }
  return finish();
}

ProxyMachine::Actions ProxyMachine::replica_lost(ReplicaId replica, const std::string& why, bool for_good,
                                                 Instant now) {
  router_.set_now(now);
  const bool is_told = std::any_of(routes_.replicas.begin(), routes_.replicas.end(),
                                   [&](const auto& one) { return one.replica == replica; });
  if (for_good && is_told) dead_.insert(replica);
  router_.lose(replica, why);
  return finish();
}

ProxyMachine::Actions ProxyMachine::tick(Instant now) {
  router_.set_now(now);
  router_.expire();
  return finish();
}

ProxyReport ProxyMachine::report() {
  ProxyReport report;
  report.seen = routes_.number;
  report.requests = router_.requests();
  report.queued_rows = router_.queued_rows();
  report.busy = router_.busy();
  report.arrived_rows = std::exchange(arrived_rows_, 0);
  report.computed = std::exchange(computed_, {});
  report.heard.assign(heard_.begin(), heard_.end());
  heard_.clear();
  return report;
}

bool ProxyMachine::is_ready() const {
  if (routes_.drains) return false;
  return routes_.starts_on_demand ||
         std::any_of(routes_.replicas.begin(), routes_.replicas.end(),
                     [&](const auto& one) { return one.open && !dead_.contains(one.replica); });
}

}  // namespace troupe::serve
