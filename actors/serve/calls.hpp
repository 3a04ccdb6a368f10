/// The deployments of a session, as they ask each other: where their replicas' calls arrive, and who ends
/// before whom.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/serve/call_graph.hpp"
#include "actors/serve/deployment.hpp"
#include "actors/serve/handle.hpp"
#include "scheduler/init/init.hpp"

namespace troupe::serve {

/// Thread-safe. It calls deployments without its lock.
class Calls : public std::enable_shared_from_this<Calls> {
 public:
  /// The one of this session, or a new one.
  static std::shared_ptr<Calls> of(const DriverSession& session);
  /// Null: it is gone.
  static std::shared_ptr<Calls> at(std::uint64_t number);

  Calls(const DriverSession& session, std::uint64_t number);
  ~Calls();

  /// It may be asked from here on, and asks these. Throws BadConfig where that makes no sense.
  CallGraph::Id add(const std::shared_ptr<Deployment>& deployment, const std::set<std::string>& asks);
  /// It asks nobody any more, and cannot be asked: those that it asked may end. Again: nothing.
  void remove(CallGraph::Id id);
  /// Where replicas ask, for `then`, which is called once, in any thread. It ends with the program's node: at
  /// the next one there is another.
  void with_entrance(const std::function<void(const Result<ActorHandle<Entrance>>&)>& then);

  /// Names of those that ask it, and do not end yet.
  std::vector<std::string> callers_of(const std::string& name) const;
  /// Those that ask it, and those that ask them, take no more requests from here on, and end.
  void drain_callers_of(const std::string& name);
  /// How long those may take that ask it.
  Duration drain_time_of_callers(const std::string& name) const;

  Future<CallAnswer> ask(CallRequest request);
  /// A replica is gone: nobody waits for what it asked.
  void forget(ActorId replica);

 private:
  using Asked = std::pair<CallGraph::Id, RequestId>;
  std::shared_ptr<Deployment> deployment(CallGraph::Id id) const;
  void answered(ActorId replica, const Asked& asked);

  const Session session_;
  const std::weak_ptr<const void> session_life_;
  const std::uint64_t number_;
  const MonotonicClock clock_;

  mutable std::mutex mutex_;  ///< guards what follows
  CallGraph graph_;
  CallGraph::Id last_ = 0;
  std::map<CallGraph::Id, std::weak_ptr<Deployment>> deployments_;
  ActorHandle<Entrance> entrance_;
  std::map<ActorId, std::set<Asked>> under_way_;
};

/// Where the calls of replicas arrive: an actor in the program.
class Entrance {
 public:
  explicit Entrance(std::uint64_t calls) : calls_(calls) {}
  Future<CallAnswer> ask(const CallRequest& request);

 private:
  const std::uint64_t calls_;
};

}  // namespace troupe::serve
