/// The head as a pure state machine: nodes, jobs, actors, names. Events in, actions out; no clock, no I/O.
/// The caller carries the actions out in order: whatever is acknowledged was persisted by an earlier action.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/wire/cluster.hpp"
#include "scheduler/cluster/membership.hpp"
#include "runtime/core/clock.hpp"
#include "scheduler/placement/policy.hpp"
#include "runtime/core/random.hpp"

namespace troupe::cluster {

struct ClusterConfig {
  MembershipConfig membership;
  /// A node that was told to start an actor has this long to say how it went.
  Duration start_deadline = std::chrono::seconds(60);
  /// Ended actors are remembered this long (so that a late watcher hears why), then forgotten.
  Duration keep_dead = std::chrono::seconds(600);
};

/// A spawn that no node can hold now.
struct PendingSpawn {
  Requester requester;
  ActorSpec spec;
  std::string reason;  ///< why it waits, in words
};

/// Not thread-safe.
class ClusterMachine {
 public:
  /// `ids` gives identities and must outlive the machine.
  ClusterMachine(ClusterConfig config, PlacementPolicy placement, Random& ids);

  /// Call with Tick at least once a heartbeat. `now` never goes back.
  std::vector<ClusterAction> on(const ClusterEvent& event, Instant now);

  struct Node {
    NodeInfo info;
    bool registered = false;  ///< false after a head restart until the node has shown up again
    std::int64_t cpu_used_e4 = 0;
    int actors = 0;
  };
  struct Actor {
    ActorRecord record;
    std::set<NodeId> watchers;
    Instant deadline{};  ///< kStarting: start deadline; kDead: when it is forgotten
    std::string reason;  ///< why it is where it is, or why it ended
  };

  // For status and tests.
  const std::map<NodeId, Node>& nodes() const { return nodes_; }
  const std::map<ActorId, Actor>& actors() const { return actors_; }
  const std::map<std::string, JobRecord>& jobs() const { return jobs_; }
  const std::vector<PendingSpawn>& pending() const { return pending_; }
  Liveness liveness(NodeId node) const { return membership_.liveness(node); }

 private:
  using Actions = std::vector<ClusterAction>;

  void handle(const NodeJoined& e, Instant now, Actions& out);
  void handle(const Heartbeat& e, Instant now, Actions& out);
  void handle(const NodeLeft& e, Instant now, Actions& out);
  void handle(const JobRegistered& e, Instant now, Actions& out);
  void handle(const JobEnded& e, Instant now, Actions& out);
  void handle(const SpawnRequested& e, Instant now, Actions& out);
  void handle(const SpawnCancelled& e, Instant now, Actions& out);
  void handle(const ActorStarted& e, Instant now, Actions& out);
  void handle(const ActorFailed& e, Instant now, Actions& out);
  void handle(const ActorDown& e, Instant now, Actions& out);
  void handle(const WatchActor& e, Instant now, Actions& out);
  void handle(const LookupActor& e, Instant now, Actions& out);
  void handle(const KillRequested& e, Instant now, Actions& out);
  void handle(const Tick& e, Instant now, Actions& out);
  void handle(const Restored& e, Instant now, Actions& out);

  void node_gone(NodeId node, const std::string& reason, Instant now, Actions& out);
  void end_job(JobRecord& job, const std::string& reason, Instant now, Actions& out);
  void end_actor(Actor& actor, const std::string& reason, Instant now, Actions& out);
  void actor_gone(Actor& actor, const ErrorInfo& why, Instant now, Actions& out);
  void actor_alive(Actor& actor, ProcessId process, Actions& out);
  void reconcile(NodeId node, const std::vector<LiveActor>& listed, Instant now, Actions& out);
  bool try_start(const PendingSpawn& spawn, Instant now, Actions& out, std::string& why_not);
  void retry_pending(Instant now, Actions& out);
  void announce(const std::string& reason, Actions& out) const;
  bool job_runs(JobId id) const;
  std::vector<NodeView> views() const;
  void hold(const Actor& actor, int sign);

  ClusterConfig config_;
  PlacementPolicy placement_;
  Random& ids_;
  Membership membership_;
  std::map<NodeId, Node> nodes_;
  std::map<ActorId, Actor> actors_;
  std::map<std::string, ActorId> names_;  ///< of living actors
  std::map<std::string, JobRecord> jobs_;
  std::map<Requester, ActorId>
      answered_;  ///< which actor a request led to: a repeated request is not a second
  std::vector<PendingSpawn> pending_;
};

}  // namespace troupe::cluster
