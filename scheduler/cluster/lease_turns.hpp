/// Whose workers of tasks make room for what has waited long for it. Pure.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "scheduler/cluster/actor_table.hpp"
#include "scheduler/cluster/waiting_spawns.hpp"
#include "scheduler/placement/node_index.hpp"

namespace troupe::cluster {

/// What waits, as those see it that are to make room for it.
struct Starved {
  ActorDemand demand;
  std::optional<ProcessAddress> owner{};  ///< of a worker of tasks: who leases it
};

/// The node or bundle whose room it holds.
SpawnPlace place_held_by(const Actor& actor);
/// What a node that placement sees has, now that it is looked at.
NodeView with_room_of(NodeView node, const Actor& actor);
/// Without room that is kept for what waits: that much less is free, as far as any is.
NodeView without(NodeView node, const BundleDemand& kept);

/// The workers of tasks there are, of all processes. Built anew for each look: O(n log n). The actors must
/// outlive it.
class LeaseTurns {
 public:
  struct Config {
    Duration held;    ///< no worker is asked for that has been leased for less
    Duration soon;    ///< those that were asked for are waited for so long,
    Duration within;  ///< and if no others can make the room, so long: their tasks take longer
  };
  LeaseTurns(const Config& config, Instant now) : config_(config), now_(now) {}

  /// `may_be_told`: its node and that of whoever leases it are there.
  void add(const Actor& worker, bool may_be_told);
  /// A worker that waits for `owner` has room kept for it: it counts as leased.
  void add_kept(const ProcessAddress& owner, const ActorDemand& demand);
  /// It has been asked for, and goes: it does not count as leased.
  void told(const Actor& worker);
  bool empty() const { return open_.empty() && going_.empty(); }

  /// Places as they are, with their GPUs by the numbers that these have on their nodes.
  using Views = std::map<SpawnPlace, NodeView>;
  using Kept = std::map<SpawnPlace, std::vector<BundleDemand>>;
  struct Room {
    SpawnPlace place{};
    std::vector<ActorId> tell{};  ///< the workers that are to be given back; those that go already aside
  };
  /// Room in one of `places`, of which `kept` is for others: in the place `first` if it can be made there,
  /// else on the one of the oldest lease, or where fewer must be told. Just enough of them are told, the
  /// oldest leases first. For another worker only those of a process that holds no less than the other then,
  /// even without them; of the same process a demand counts as a process does. Of anyone for one that holds
  /// nothing: those take turns. Nothing: they cannot make the room.
  std::optional<Room> find(const Starved& waits, const Views& places, const SpawnPlace& first,
                           const Kept& kept) const;
  /// The same in one place. Null: no room.
  std::optional<std::vector<ActorId>> room_in(const SpawnPlace& place, const Starved& waits, NodeView view,
                                              const std::vector<BundleDemand>& kept, Duration within) const;
  /// The node as it will be once all have gone that may be asked for.
  NodeView without_all(const NodeView& node) const;
  /// Nodes and bundles that any may leave.
  std::set<SpawnPlace> places() const;

 private:
  struct Held {
    ActorDemand demand;
    std::int64_t count = 0;
  };
  void count(const ProcessAddress& owner, const ActorDemand& demand, int more);
  bool may_take(const Starved& waits, const Actor& worker, const std::vector<const Actor*>& taken) const;

  const Config config_;
  const Instant now_;
  std::map<SpawnPlace, std::vector<const Actor*>> open_;   ///< those that may be told; the oldest lease first
  std::map<SpawnPlace, std::vector<const Actor*>> going_;  ///< those that were
  std::map<ProcessAddress, std::vector<Held>> held_;       ///< by who leases; each demand once
};

}  // namespace troupe::cluster
