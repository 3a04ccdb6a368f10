/// Whose workers of tasks make room for what has waited long for it. Pure.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
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

/// The workers of tasks there are, of all processes, by where they hold room and by age. Workers are set and
/// removed in O(log n); a look takes O(log n) where the oldest lease makes the room, and O(places) where none
/// can. A worker that is set must stay where it is in memory until it is removed. Not thread-safe.
class LeaseTurns {
 public:
  struct Config {
    Duration held;    ///< no worker is asked for that has been leased for less
    Duration soon;    ///< those that were asked for are waited for so long,
    Duration within;  ///< and if no others can make the room, so long: their tasks take longer
  };
  explicit LeaseTurns(const Config& config) : config_(config) {}

  /// As it is now. `may_be_told`: its node and that of whoever leases it are there. One that ends, or has
  /// been asked for, goes: it does not count as leased.
  void set(const Actor& worker, bool may_be_told);
  /// If it is there.
  void remove(ActorId worker);
  bool empty() const { return places_.empty(); }
  /// Whether any is in that group; none: on a node.
  bool any_in(GroupId group) const;
  /// Whether it leases any whose task does not wait, also one that goes.
  bool has_any(const ProcessAddress& owner) const { return at_work_.contains(owner); }
  /// For tests: whether both know the same workers in the same places.
  bool is_same(const LeaseTurns& other) const;

  /// Looks begin; nothing is kept.
  void begin(Instant now);
  /// A worker that waits for `owner` has room kept for it: it counts as leased, in these looks. -1: no
  /// longer.
  void add_kept(const ProcessAddress& owner, const ActorDemand& demand, int more = 1);
  /// Places looked at since.
  std::size_t looks() const { return looks_; }
  void add_look() { ++looks_; }

  /// The place as it is, with its GPUs by the numbers that these have on their node.
  using ViewOf = std::function<NodeView(const SpawnPlace&)>;
  using Kept = std::map<SpawnPlace, std::vector<BundleDemand>>;
  struct Room {
    SpawnPlace place{};
    std::vector<ActorId> tell{};  ///< the workers that are to be given back; those that go already aside
  };
  /// Room in a place of which `kept` is for others: in the place `first` if it can be made there, else where
  /// one goes already, on the one of the oldest lease, or where fewer must be told. Just enough of them are
  /// told, the oldest leases first. For another worker only those of a process that holds no less than the
  /// other then, even without them; of the same process, and for a worker that can be in few places (a group,
  /// a node, custom resources), a demand counts as a process does. Of anyone for one that holds nothing:
  /// those take turns. Nothing: they cannot make the room.
  std::optional<Room> find(const Starved& waits, const ViewOf& view_of, const SpawnPlace& first,
                           const Kept& kept);
  /// The same in one place. Null: no room.
  std::optional<std::vector<ActorId>> room_in(const SpawnPlace& place, const Starved& waits, NodeView view,
                                              const std::vector<BundleDemand>& kept, Duration within) const;
  /// The node as it will be once all have gone that may be asked for.
  NodeView without_all(const NodeView& node) const;

 private:
  struct Held {
    ActorDemand demand;
    std::int64_t count = 0;
  };
  using Shares = std::map<ProcessAddress, std::vector<Held>>;  ///< by who leases; each demand once
  /// As it was set.
  struct Lease {
    const Actor* worker = nullptr;
    SpawnPlace place;
    Instant up_at{};
    bool goes = false;
    bool is_open = false;
    bool waits = false;
    ActorDemand held;
    bool operator==(const Lease&) const = default;
  };
  struct There {
    std::map<std::pair<Instant, ActorId>, const Actor*> open;  ///< those that may be told; the oldest first
    std::map<ActorId, const Actor*> going;                     ///< those that were
    Instant oldest() const { return open.empty() ? Instant::min() : open.begin()->first.first; }
    bool operator==(const There&) const = default;
  };
  static void count(Shares& shares, const ProcessAddress& owner, const ActorDemand& demand, int more);
  void put(const Lease& lease, bool is_there);
  std::int64_t share_of(const ProcessAddress& owner, const ActorDemand& wanted,
                        const ActorDemand* only) const;
  static bool counts_alike(const Starved& waits, const ProcessAddress& owner);
  bool may_take(const Starved& waits, const ProcessAddress& owner, const ActorDemand& held,
                std::int64_t taken) const;
  bool may_take_any(const Starved& waits) const;

  const Config config_;
  std::map<ActorId, Lease> leases_;
  std::map<SpawnPlace, There> places_;                            ///< those where any is open or goes
  std::set<SpawnPlace> going_at_;                                 ///< of these those where one goes
  std::set<std::tuple<GroupId, Instant, SpawnPlace>> by_oldest_;  ///< all of them
  Shares held_;
  std::map<ProcessAddress, std::size_t> at_work_;  ///< how many it leases whose tasks do not wait
  // Since begin().
  Instant now_{};
  Shares kept_;
  std::size_t looks_ = 0;
};

}  // namespace troupe::cluster
