/// Where deployments are reached, in the program that runs them or in a proxy: POST /v1/NAME, KServe's
/// protocol below /v2, GET /healthz, GET /metrics.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "actors/serve/front.hpp"
#include "actors/serve/http/kserve.hpp"
#include "runtime/http/metrics.hpp"
#include "runtime/http/server.hpp"

namespace troupe::serve {

class ProxyFleet;

/// Thread-safe.
class HttpEndpoint {
 public:
  /// The one of this program that listens there, or a new one. Port 0: a new one. Throws Unavailable for a
  /// port that somebody else has, BadConfig for one of this program with other TLS files.
  static std::shared_ptr<HttpEndpoint> at(const http::ServerOptions& options);

  explicit HttpEndpoint(const http::ServerOptions& options);
  ~HttpEndpoint();

  /// Throws BadConfig for a name that is taken here.
  void add(const std::shared_ptr<Front>& deployment);
  /// Its requests get 404 from here on. Responses under way are sent to their end first where it was the
  /// last.
  void remove(const std::string& name);
  /// http::Server's.
  bool drain(std::chrono::milliseconds timeout) { return server_->drain(timeout); }

  /// The proxies that serve the same on other nodes: those that there are, or new ones.
  std::shared_ptr<ProxyFleet> fleet(const std::function<std::shared_ptr<ProxyFleet>()>& make);

  /// "http://127.0.0.1:8000"
  std::string url() const;
  const Endpoint& address() const { return server_->address(); }
  http::Registry& metrics() { return metrics_; }

 private:
  void handle(http::Request request, http::Answer answer);
  void predict(const std::shared_ptr<Front>& to, http::Request request, http::Answer answer);
  void handle_kserve(const http::KserveRoute& route, http::Request request, http::Answer answer);
  void infer(const std::shared_ptr<Front>& to, const std::string& version, http::Request request,
             http::Answer answer);
  http::Response health();
  http::Response measured();
  std::shared_ptr<Front> find(const std::string& name) const;
  bool has_ended() const;  ///< it serves nothing any more, and closes
  std::string names() const;
  bool is_closed() const;

  http::Registry metrics_;
  const std::string tls_certificate_;
  mutable std::mutex mutex_;  ///< guards what follows
  bool closed_ = false;       ///< its last deployment is gone
  std::map<std::string, std::shared_ptr<Front>> deployments_;
  std::shared_ptr<ProxyFleet> fleet_;     ///< null: nobody asked for one
  std::unique_ptr<http::Server> server_;  ///< the last to come, the first to go
};

}  // namespace troupe::serve
