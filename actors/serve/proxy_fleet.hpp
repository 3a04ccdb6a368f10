/// The proxies of a program's HTTP endpoint: one on each node of the cluster but the program's own, which
/// serve the same deployments there.
#pragma once

#include <functional>
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
#include "runtime/core/condition.hpp"

namespace troupe::serve {

/// Thread-safe. Held by shared_ptr.
class ProxyFleet : public std::enable_shared_from_this<ProxyFleet> {
 public:
  /// `listen`: without its fleet, which is this one. `interrupted`: nobody is to wait any longer.
  ProxyFleet(const Session& session, ProxyListen listen, std::function<bool()> interrupted);

  /// The deployment is served by all of them from here on.
  void add(const std::shared_ptr<Deployment>& deployment);
  /// It is over: where it was the last, the proxies send the responses that are under way, and end. Waits for
  /// that for some seconds.
  void remove(const std::string& name);
  /// Of those that listen, or have an address and take the place of another there.
  std::vector<std::string> urls() const;
  /// Of all programs and machines.
  const std::string& id() const { return listen_.fleet; }

  /// Those that are to take another fleet's place (ProxyListen::in_place_of) do so, each once it has heard of
  /// what is served. Waits for that.
  void take_over();
  /// Until every node has a proxy that listens, or a signal came, for ten seconds from the first call, or
  /// from take_over(), at most: a node without one keeps nobody waiting longer.
  void wait_placed();
  /// Another program's proxies listen where these do: these answer what they have accepted, and take no more.
  /// No other is started. Does not wait.
  void leave(std::chrono::milliseconds timeout);
  /// Until they have, where they leave.
  void wait_left() const;

 private:
  struct Seat {
    ActorHandle<Proxy> handle;
    std::string url;  ///< empty: it has not said where it listens
  };

  void look_at_nodes();
  void nodes_seen(const std::vector<NodeId>& nodes);
  void start(const StartProxy& action);
  void started(ProxyId id, const Result<ActorHandle<Proxy>>& proxy);
  void listens(ProxyId id, const std::string& url);
  void take_place(ProxyId id, const ActorHandle<Proxy>& proxy);
  void failed(ProxyId id, const std::string& why);
  void leaves(ProxyId id, bool stays);
  void stop(ProxyId id, const std::string& reason);

  const Session session_;
  const ProxyListen listen_;
  const std::function<bool()> interrupted_;
  const MonotonicClock clock_;

  mutable std::mutex mutex_;  ///< guards what follows
  Condition changed_;         ///< who is placed
  FleetMachine machine_;
  std::map<ProxyId, Seat> seats_;
  std::map<std::string, std::shared_ptr<Deployment>> deployments_;
  bool runs_ = false;    ///< there is a deployment
  bool looks_ = false;   ///< at the nodes, again and again
  bool waits_ = false;   ///< in place of others: until take_over()
  Instant places_by_{};  ///< nobody waits longer; those that take a place do so, whatever they have heard of
  std::vector<Future<bool>> leaving_;
  Instant leaves_by_{};
};

}  // namespace troupe::serve
