#include "actors/serve/proxy.hpp"

#include <chrono>

#include "actors/serve/http_endpoint.hpp"
#include "actors/serve/proxy_front.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/host/actor_context.hpp"

namespace troupe::serve {

Proxy::Proxy(const ProxyListen& listen)
    : endpoint_(std::make_shared<HttpEndpoint>(http::ServerOptions{.host = listen.host,
                                                                   .port = listen.port,
                                                                   .tls_certificate = listen.tls_certificate,
                                                                   .tls_key = listen.tls_key})) {}

Proxy::~Proxy() = default;

std::string Proxy::url() const {
  return endpoint_->url();
}

Future<ProxyReport> Proxy::hear(const ProxyTold& told) {
  const Promise<ProxyReport> report;
  auto& front = fronts_[told.name];
  if (front == nullptr) {
    front = std::make_shared<ProxyFront>(this_actor().session(), told, endpoint_->metrics());
    front->hear(told, report);  // before anybody can ask
    endpoint_->add(front);
  } else {
    front->hear(told, report);
  }
  return report.future();
}

void Proxy::remove(const std::string& name) {
  if (fronts_.erase(name) > 0) endpoint_->remove(name);
}

Future<bool> Proxy::drain(std::int64_t timeout_ms) {
  Promise<bool> drained;
  // Not in the actor's turn: it is told of replicas meanwhile.
  start_quiet_thread([endpoint = endpoint_, drained, timeout_ms]() mutable {
    drained.set(endpoint->drain(std::chrono::milliseconds(timeout_ms)));
  }).detach();
  return drained.future();
}

}  // namespace troupe::serve
