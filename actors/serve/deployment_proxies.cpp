/// What a deployment tells its proxies on other nodes, and what it hears from them.
#include <algorithm>
#include <utility>

#include "actors/serve/deployment_machine.hpp"

namespace troupe::serve {
namespace {

/// How often a proxy is told, and asked, where nothing is new.
constexpr Duration kTellEvery = std::chrono::milliseconds(250);

}  // namespace

void DeploymentMachine::on_event(const ProxyJoined& event) {
  if (!stopped_) proxies_[event.proxy] = {.heard = now_};
}

void DeploymentMachine::on_event(const ProxyLeft& event) {
  if (proxies_.erase(event.proxy) == 0) return;
  router_.set_max_queue(max_queue_beside(0));
  reconcile();
  dispatch();
  check_drained();
}

void DeploymentMachine::on_event(const ProxyAnswered& event) {
  const auto at = proxies_.find(event.proxy);
  if (at == proxies_.end()) return;
  Proxy& proxy = at->second;
  proxy.asked = false;
  proxy.next = now_ + kTellEvery;
  if (!event.report) return;
  proxy.heard = now_;
  proxy.last = *event.report;
  if (proxy.last.arrived_rows > 0) scaler_.arrived(proxy.last.arrived_rows, now_);
  for (const auto& batch : proxy.last.computed) scaler_.computed(batch.rows, Duration(batch.ns));
  for (const ReplicaId id : proxy.last.heard) {
    const auto replica = replicas_.find(id);
    if (replica == replicas_.end()) continue;
    replica->second.heard = now_;
    count_answer(replica->second);
  }
  scale_from_zero();
  router_.set_max_queue(max_queue_beside(0));
  reconcile();
  dispatch();
  check_drained();
}

std::int64_t DeploymentMachine::rows_queued_beside(ProxyId id) const {
  std::int64_t rows = id == 0 ? 0 : router_.queued_rows();
  for (const auto& [one, proxy] : proxies_) {
    if (one != id) rows += proxy.last.queued_rows;
  }
  return rows;
}

/// The queue of the deployment is one for all: each proxy may fill what the others leave.
std::int64_t DeploymentMachine::max_queue_beside(ProxyId id) const {
  return std::max(config_.max_batch, config_.max_queue - rows_queued_beside(id));
}

/// A proxy may yet send it a batch, or has one there.
bool DeploymentMachine::is_held(ReplicaId id, const Replica& replica) const {
  if (!replica.was_ready) return false;
  return std::any_of(proxies_.begin(), proxies_.end(), [&](const auto& one) {
    const Proxy& proxy = one.second;
    if (proxy.told == 0) return false;
    const auto& busy = proxy.last.busy;
    return replica.closed_in == 0 || proxy.last.seen < replica.closed_in ||
           std::find(busy.begin(), busy.end(), id) != busy.end();
  });
}

bool DeploymentMachine::proxies_have_requests() const {
  return std::any_of(proxies_.begin(), proxies_.end(), [&](const auto& one) {
    const Proxy& proxy = one.second;
    return proxy.told > 0 && (drained_in_ == 0 || proxy.last.seen < drained_in_ || proxy.last.requests > 0);
  });
}

Routes DeploymentMachine::routes_now() const {
  Routes routes;
  routes.number = routes_.number;
  for (const auto& [id, replica] : replicas_) {
    if (replica.state == ReplicaState::kReady || replica.state == ReplicaState::kDraining)
      routes.replicas.push_back({id, replica.version, replica.state == ReplicaState::kReady});
  }
  routes.version = current_.id;
  routes.rolls_out = next_ ? next_->id : 0;
  routes.drains = draining_;
  routes.is_out_of_order = is_out_of_order();
  routes.starts_on_demand = starts_on_demand();
  return routes;
}

void DeploymentMachine::tell_proxies() {
  if (proxies_.empty() || stopped_) return;
  if (Routes now = routes_now(); now != routes_) {
    ++now.number;
    routes_ = std::move(now);
  }
  for (auto& [id, replica] : replicas_) {
    if (replica.state == ReplicaState::kDraining && replica.closed_in == 0)
      replica.closed_in = routes_.number;
  }
  if (draining_ && drained_in_ == 0) drained_in_ = routes_.number;
  for (auto& [id, proxy] : proxies_) {
    if (proxy.asked || (proxy.told == routes_.number && now_ < proxy.next)) continue;
    proxy.asked = true;
    proxy.told = routes_.number;
    TellProxy told{id, routes_};
    told.routes.max_queue = max_queue_beside(id);
    out_.push_back(std::move(told));
  }
}

void DeploymentMachine::end_proxies() {
  Routes last;
  last.number = routes_.number + 1;
  last.version = current_.id;
  last.drains = last.ended = true;
  for (const auto& [id, proxy] : std::exchange(proxies_, {})) out_.push_back(TellProxy{id, last});
}

void DeploymentMachine::look_after_proxies() {
  std::vector<ProxyId> silent;
  for (const auto& [id, proxy] : proxies_) {
    if (now_ >= proxy.heard + config_.health_timeout) silent.push_back(id);
  }
  for (const ProxyId id : silent) {
    out_.push_back(DropProxy{id, "it has not answered for too long"});
    on_event(ProxyLeft{id});
  }
}

Instant DeploymentMachine::next_of_proxies() const {
  Instant wake = Instant::max();
  for (const auto& [id, proxy] : proxies_) {
    wake = std::min(wake, proxy.heard + config_.health_timeout);
    if (!proxy.asked) wake = std::min(wake, proxy.next);
  }
  return wake;
}

}  // namespace troupe::serve
