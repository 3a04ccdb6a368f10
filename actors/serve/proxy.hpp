/// A proxy: an actor with a process of its own on some node of the cluster, which serves HTTP there and sends
/// requests straight to the replicas. Whoever runs the deployments tells it of them (Routes).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/serve/replica.hpp"
#include "runtime/client/actor_handle.hpp"

namespace troupe::serve {

class Control;
class HttpEndpoint;
class ProxyFront;

/// Where it listens.
struct ProxyListen {
  std::string host;
  std::uint16_t port = 0;
  std::string tls_certificate, tls_key;  ///< files of its node
  std::string fleet;                     ///< that it is of
  /// The fleet of the program whose place its own takes: where one of that listens on this node, it waits for
  /// take_over(). Empty: it takes nobody's.
  std::string in_place_of;
  std::vector<std::string> names{};  ///< of the deployments that it is going to be told of
};

/// What it is told of a deployment.
struct ProxyTold {
  ProxyId proxy = 0;  ///< who it is
  std::string name;
  std::int64_t max_batch = 1, batch_wait_ns = 0;
  std::uint64_t max_request_rows = 1;
  ReplicaSetup setup;
  std::optional<ReplicaInfo> output;
  Routes routes;
  std::vector<ActorHandle<Replica>> replicas;  ///< of routes.replicas, in their order
};

class Proxy {
 public:
  /// Throws what http::Server throws.
  explicit Proxy(const ProxyListen& listen);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  /// "http://10.0.0.7:8000"
  std::string url() const;
  /// HttpEndpoint's; with `all` not before everything is ready. Returns whether it listens.
  bool take_over(bool all);
  Future<ProxyReport> hear(const ProxyTold& told);
  /// The deployment is over. Responses under way are sent first where it was the last.
  void remove(const std::string& name);
  /// Accepts no connection from here on. Answers when every request has its response, or after `timeout_ms`.
  Future<bool> drain(std::int64_t timeout_ms);

 private:
  struct Shown;
  void show(const std::string& name);

  const std::string fleet_;
  std::shared_ptr<HttpEndpoint> endpoint_;
  std::map<std::string, std::shared_ptr<ProxyFront>> fronts_;
  std::map<std::string, std::unique_ptr<Shown>> shown_;  ///< of all that it ever had
  std::unique_ptr<Control> control_;  ///< where its successor asks; null: it cannot. The first to go
};

}  // namespace troupe::serve
