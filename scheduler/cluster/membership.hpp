/// Who is alive, from heartbeats. A dead member stays dead under its id: one that comes back gets a new id.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/ids.hpp"
#include "scheduler/cluster/time_queue.hpp"

namespace troupe::cluster {

struct MembershipConfig {
  Duration heartbeat = std::chrono::seconds(1);  ///< how often a member shows itself
  Duration suspect = std::chrono::seconds(3);    ///< silent this long: nothing new is placed there
  Duration dead = std::chrono::seconds(6);       ///< silent this long: dead, for good
};

enum class Liveness { kUnknown, kAlive, kSuspect, kDead };

/// One change that a tick found.
struct LivenessChange {
  NodeId node{};
  Liveness to = Liveness::kAlive;
  std::string reason;
};

/// Not thread-safe. Time is passed in: RunningTime, as a judge that was stopped itself cannot have heard
/// them.
///
/// A heartbeat takes O(log n), a tick O(log n) for every member that changed.
class Membership {
 public:
  explicit Membership(MembershipConfig config) : config_(config) {}

  /// Starts to watch `node`. False if that id is dead: it must not come back.
  bool join(NodeId node, Instant now);
  /// A sign of life; a suspect is alive again. Returns the liveness before it, kUnknown or kDead for those it
  /// cannot help.
  Liveness heard(NodeId node, Instant now);
  /// Declares `node` dead now. False if it is dead or unknown already.
  bool leave(NodeId node);
  /// Forgets a dead member. REQUIRES: liveness(node) == kDead.
  void forget(NodeId node);
  /// Finds who became suspect or dead, those who are silent for longest first.
  std::vector<LivenessChange> tick(Instant now);

  Liveness liveness(NodeId node) const;

 private:
  struct Member {
    Instant last_heard{};
    Liveness liveness = Liveness::kAlive;
  };

  MembershipConfig config_;
  std::map<NodeId, Member> members_;
  TimeQueue<NodeId> next_;  ///< when a living member turns suspect, and a suspect dead
};

}  // namespace troupe::cluster
