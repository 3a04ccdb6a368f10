/// The placement groups that the head knows, and who holds what of their bundles.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/wire/cluster.hpp"
#include "scheduler/cluster/actor_table.hpp"
#include "scheduler/placement/node_index.hpp"

namespace troupe::cluster {

/// A group. Its bundles hold room on their nodes; actors in it hold room of its bundles.
struct Group {
  struct Use {
    std::int64_t cpu_e4 = 0;
    GpuUse gpus{};  ///< one entry a GPU of the bundle, while that is held
    int actors = 0;
    ResourceAmounts other{};  ///< memory and custom resources
    bool operator==(const Use&) const = default;
  };
  GroupRecord record;
  std::string queue{};             ///< of its job; empty: none
  std::string reason{};            ///< why its bundles are where they are, or what it waits for
  std::string not_placed{};        ///< what the last search said that found no room
  std::vector<Use> used{};         ///< by bundle
  std::set<ActorId> actors{};      ///< those that are on a node
  std::uint64_t number = 0;        ///< counts them in the order in which they came
  bool cut_off = false;            ///< the search for its room was, or takes long: again at a tick
  std::uint64_t tried = 0;         ///< if it was: counts searches, to take turns
  Instant since{};                 ///< when it was made, or known again after a restart of the head
  Instant lost_at{};               ///< when it last lost a bundle
  Instant ready_at{};              ///< when it last got all its room
  Instant reason_at{};             ///< when `reason` was written, of one that waits
  std::set<Requester> awaiting{};  ///< who wants to hear when it is ready
  std::string told{};              ///< to those that are to start with it: what it waits for
  Instant told_at{};
  scheduler::NodeIndex room{"bundle"};  ///< the bundles that take actors, by id_of_bundle
};

/// Since when it waits.
inline Instant waits_since(const Group& group) {
  return std::max(group.since, group.lost_at);
}
/// Bundles as nodes of an index of their own.
inline NodeId id_of_bundle(std::int32_t bundle) {
  return {static_cast<std::uint64_t>(bundle) + 1};
}
inline std::size_t bundle_of_id(NodeId id) {
  return id.value - 1;
}

/// "placement group x": as messages name it.
std::string name_of(const GroupRecord& group);
/// Where in the group that demand goes, on the bundle's real node. An actor goes to the bundle that it asks
/// for, or to the least used one (isolated) or the fullest one with room.
Placement place_in(const Group& group, const ActorDemand& demand);
/// Why that demand waits.
std::string why_waits_in(const Group& group, const ActorDemand& demand);
/// The bundle as it is. Its GPUs count from 0. `node`: where it is, as placement sees that.
NodeView view_of_bundle(const Group& group, std::size_t bundle, const NodeView& node);
/// An actor holds room of its bundle, or (sign -1) not any more. REQUIRES: is_in_its_bundle.
void use_bundle(Group& group, const Actor& actor, int sign);
/// Whether the actor's node and GPUs are its bundle's.
bool is_in_its_bundle(const Group& group, const ActorRecord& actor);

/// Not thread-safe. Everything takes O(log n), but for named(), which looks at the groups of its job.
class GroupTable {
 public:
  /// REQUIRES: its id is new.
  Group& add(GroupRecord record);
  Group* find(GroupId id);
  const Group* find(GroupId id) const;
  Group& at(GroupId id) { return groups_.at(id); }
  /// The one of that name in the job which was not removed; null: there is none.
  Group* named(JobId job, const std::string& name);
  /// The one that this request made.
  Group* of_request(const Requester& requester);
  std::vector<GroupId> of_job(JobId job) const;
  void set_state(Group& group, GroupState state);
  void erase(GroupId id);

  /// First come, first served. After a restart of the head in the order of their ids.
  const std::map<std::uint64_t, GroupId>& waiting() const { return waiting_; }
  const std::map<GroupId, Group>& all() const { return groups_; }
  /// Of all groups.
  std::size_t bundles() const { return bundles_; }
  /// Aborts if an invariant does not hold.
  void check() const;

 private:
  std::map<GroupId, Group> groups_;
  std::map<JobId, std::set<GroupId>> jobs_;
  std::map<Requester, GroupId> requests_;
  std::map<std::uint64_t, GroupId> waiting_;  ///< by Group::number
  std::uint64_t last_number_ = 0;
  std::size_t bundles_ = 0;  ///< Invariant: the sum over groups_
};

}  // namespace troupe::cluster
