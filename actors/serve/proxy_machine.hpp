/// A deployment as one proxy on another node sees it: its requests, and the replicas that it was told of.
/// Pure. It starts and stops nothing. While nobody tells it anything it goes on with what it was told last.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/serve/autoscaler.hpp"
#include "actors/serve/deployment_types.hpp"
#include "actors/serve/request_router.hpp"

namespace troupe::serve {

/// Not thread-safe. Of the actions there are SendBatch, Deliver and Fail. `now` never goes back.
class ProxyMachine {
 public:
  using Actions = std::vector<Action>;

  explicit ProxyMachine(const DeploymentConfig& config);
  ProxyMachine(const ProxyMachine&) = delete;
  ProxyMachine& operator=(const ProxyMachine&) = delete;

  /// The routes of which the shell can reach the replicas. Older ones than it has are passed over.
  Actions told(const Routes& routes, Instant now);
  Actions arrived(const Arrived& event, Instant now);
  Actions left(RequestId request, Instant now);
  Actions done(const BatchDone& event, Instant now);
  /// A call to it failed. `for_good`: it has died; else it may be reached again, and is used again when the
  /// next routes have it.
  Actions replica_lost(ReplicaId replica, const std::string& why, bool for_good, Instant now);
  /// Wanted at wake_at(); more of them do no harm.
  Actions tick(Instant now);
  Instant wake_at() const { return router_.next_wake(); }

  /// What whoever told the routes is to know; what is counted since the last one begins anew.
  ProxyReport report();
  /// Takes requests, and a replica is there.
  bool is_ready() const;
  const Routes& routes() const { return routes_; }
  std::int64_t requests() const { return router_.requests(); }

 private:
  Actions finish();

  const DeploymentConfig config_;
  Autoscaler times_;
  Actions out_;
  RequestRouter router_;
  Routes routes_;
  std::set<ReplicaId> dead_;  ///< that the routes still have
  std::int64_t arrived_rows_ = 0;
  std::vector<ProxyReport::Computed> computed_;
  std::set<ReplicaId> heard_;
};

}  // namespace troupe::serve
