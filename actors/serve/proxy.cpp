#include "actors/serve/proxy.hpp"

#include <unistd.h>

#include <chrono>
#include <set>

#include "actors/serve/control.hpp"
#include "actors/serve/http_endpoint.hpp"
#include "actors/serve/proxy_front.hpp"
#include "actors/serve/take_over.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/host/actor_context.hpp"
#include "runtime/link/socket/named_socket.hpp"

namespace troupe::serve {
namespace {

/// For the first routes: then requests of what it has not heard of are refused.
constexpr Duration kFirstRoutes = std::chrono::seconds(5);

std::string node_here() {
  return to_string(this_actor().session().node());
}

std::shared_ptr<HttpEndpoint> endpoint_of(const ProxyListen& listen) {
  http::ServerOptions options{.host = listen.host,
                              .port = listen.port,
                              .tls_certificate = listen.tls_certificate,
                              .tls_key = listen.tls_key};
  std::optional<Predecessor> former;
  if (!listen.in_place_of.empty()) former = find_former_proxy(listen.in_place_of, node_here());
  if (former) options.port = static_cast<std::uint16_t>(former->port);
  auto endpoint = std::make_shared<HttpEndpoint>(
      options, former, std::set<std::string>(listen.names.begin(), listen.names.end()));
  this_actor().session().process().later(kFirstRoutes, [weak = std::weak_ptr(endpoint)] {
    if (const auto there = weak.lock()) there->know_all();
  });
  return endpoint;
}

}  // namespace

/// A deployment of the proxy, as the proxy that takes its place sees it.
struct Proxy::Shown final : Controlled {
  Shown(std::shared_ptr<HttpEndpoint> at, std::string its_name, std::string its_fleet)
      : endpoint(std::move(at)), name(std::move(its_name)), fleet(std::move(its_fleet)), node(node_here()) {}
  const std::shared_ptr<HttpEndpoint> endpoint;
  const std::string name, fleet, node;
  std::atomic<bool> has_ended = false;

  DeploymentStatus status() override {
    return {.name = name,
            .url = endpoint->url() + "/v1/" + name,
            .port = endpoint->address().port,
            .stopped = has_ended || !endpoint->listens(),
            .pids = {},
            .fleet = fleet,
            .node = node};
  }
  std::vector<UniqueFd> listening() override { return endpoint->listening(); }
  void scale(Replicas) override { refuse(); }
  VersionId update_from(const std::string&) override { refuse(); }
  VersionId roll_back() override { refuse(); }
  void stop_serving() override { refuse(); }
  void leave() override { refuse(); }
  std::string metrics() override { refuse(); }
  [[noreturn]] void refuse() const {
    throw BadConfig("cannot do that to '" + name + "'", "this is a proxy of it", "ask its program");
  }
};

Proxy::Proxy(const ProxyListen& listen) : fleet_(listen.fleet), endpoint_(endpoint_of(listen)) {
  auto listening = listen_by_name(serving_socket_name(::geteuid(), ::getpid(), Serving::kProxy));
  if (listening) {
    control_ = std::make_unique<Control>(*std::move(listening));
  } else {
    log(LogLevel::kWarning, "no proxy can take this one's place: " + listening.error().message());
  }
}

Proxy::~Proxy() = default;

std::string Proxy::url() const {
  return endpoint_->url();
}

bool Proxy::take_over(bool all) {
  endpoint_->take_over(all ? Takes::kAllReady : Takes::kNow);
  return endpoint_->listens();
}

Future<ProxyReport> Proxy::hear(const ProxyTold& told) {
  const Promise<ProxyReport> report;
  auto& front = fronts_[told.name];
  if (front == nullptr) {
    front = std::make_shared<ProxyFront>(this_actor().session(), told, endpoint_->metrics());
    front->hear(told, report);  // before anybody can ask
    endpoint_->add(front);
    show(told.name);
  } else {
    front->hear(told, report);
  }
  return report.future();
}

void Proxy::show(const std::string& name) {
  auto& shown = shown_[name];
  if (shown) shown->has_ended = false;
  if (shown || !control_) return;
  shown = std::make_unique<Shown>(endpoint_, name, fleet_);
  control_->add(*shown);
}

void Proxy::remove(const std::string& name) {
  if (const auto shown = shown_.find(name); shown != shown_.end() && shown->second)
    shown->second->has_ended = true;
  if (fronts_.erase(name) > 0) endpoint_->remove(name);
}

Future<bool> Proxy::drain(std::int64_t timeout_ms) {
  for (const auto& [name, shown] : shown_) {
    if (shown) shown->has_ended = true;
  }
  Promise<bool> drained;
  // Not in the actor's turn: it is told of replicas meanwhile.
  start_quiet_thread([endpoint = endpoint_, drained, timeout_ms]() mutable {
    drained.set(endpoint->drain(std::chrono::milliseconds(timeout_ms)));
  }).detach();
  return drained.future();
}

}  // namespace troupe::serve
