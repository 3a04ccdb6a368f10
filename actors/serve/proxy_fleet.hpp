/// The proxies of a program's HTTP endpoint: one on each node of the cluster but the program's own, which
/// serve the same deployments there.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/serve/deployment.hpp"
#include "actors/serve/fleet_machine.hpp"
#include "actors/serve/proxy.hpp"
#include "runtime/client/session.hpp"

namespace troupe::serve {

/// Thread-safe. Held by shared_ptr.
class ProxyFleet : public std::enable_shared_from_this<ProxyFleet> {
 public:
  ProxyFleet(const Session& session, ProxyListen listen) : session_(session), listen_(std::move(listen)) {}

  /// The deployment is served by all of them from here on.
  void add(const std::shared_ptr<Deployment>& deployment);
  /// It is over: where it was the last, the proxies send the responses that are under way, and end. Waits for
  /// that for some seconds.
  void remove(const std::string& name);
  /// Of those that listen.
  std::vector<std::string> urls() const;

 private:
  struct Seat {
    ActorHandle<Proxy> handle;
    std::string url;  ///< empty: it does not listen yet
  };

  void look_at_nodes();
  void nodes_seen(const std::vector<NodeId>& nodes);
  void start(const StartProxy& action);
  void started(ProxyId id, const Result<ActorHandle<Proxy>>& proxy);
  void listens(ProxyId id, const std::string& url);
  void failed(ProxyId id, const std::string& why);
  void leaves(ProxyId id, bool stays);
  void stop(ProxyId id, const std::string& reason);

  const Session session_;
  const ProxyListen listen_;
  const MonotonicClock clock_;

  mutable std::mutex mutex_;  ///< guards what follows
  FleetMachine machine_;
  std::map<ProxyId, Seat> seats_;
  std::map<std::string, std::shared_ptr<Deployment>> deployments_;
  bool runs_ = false;   ///< there is a deployment
  bool looks_ = false;  ///< at the nodes, again and again
};

}  // namespace troupe::serve
