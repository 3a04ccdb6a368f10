/// Spawns that no node can hold now, by what they wait for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/wire/cluster.hpp"
#include "scheduler/placement/weighted_set.hpp"

namespace troupe::cluster {

/// A spawn that waits for resources. It has no actor id and no record yet, but if it is the next life of an
/// actor.
struct PendingSpawn {
  Requester requester;
  ActorSpec spec;
  int attempts = 0;              ///< nodes that died while they started it
  ActorId restarts{};            ///< whose next life it is; none: it is a first one
  Instant since{};               ///< it waits
  std::uint64_t stopped_by = 0;  ///< the number of the queue that may hold no more; 0: it waits for a node
  Instant told_at{};             ///< when its process last heard what it waits for,
  std::size_t told = 0;          ///< and a hash of that
};

/// Where a spawn may run: on one node or (NodeId{}) any; or of a placement group's bundles on one or any; or
/// nowhere, until a queue may hold more.
struct SpawnPlace {
  GroupId group{};
  NodeId node{};            ///< in a group: id_of_bundle
  std::uint64_t queue = 0;  ///< by number; 0: none
  auto operator<=>(const SpawnPlace&) const = default;
};

/// First come, first served, of those that fit. Everything takes O(log n) a spawn. Not thread-safe.
class WaitingSpawns {
 public:
  /// REQUIRES: !contains(spawn.requester).
  void add(PendingSpawn spawn);
  /// Takes it out.
  std::optional<PendingSpawn> take(const Requester& requester);
  bool contains(const Requester& requester) const { return numbers_.contains(requester); }
  /// REQUIRES: contains(requester).
  const PendingSpawn& at(const Requester& requester) const { return spawns_.at(numbers_.at(requester)); }
  /// Its process has heard what it waits for. REQUIRES: contains(requester).
  void set_told(const Requester& requester, Instant at, std::size_t told);
  std::size_t size() const { return spawns_.size(); }
  bool empty() const { return spawns_.empty(); }
  std::size_t payload_bytes() const { return payload_bytes_; }

  /// The first that may run at `place` and asks for no more than `free_e4` CPUs; null if there is none. Of
  /// those that ask for more than CPUs the first that `fits` takes: each of them is asked about, but those
  /// that ask for GPUs only if `has_gpus`.
  const PendingSpawn* first_fit(const SpawnPlace& place, std::int64_t free_e4,
                                const std::function<bool(const ActorDemand&)>& fits, bool has_gpus) const;
  /// Those that may run on no other node.
  std::vector<Requester> bound_to(NodeId node) const;
  std::vector<Requester> of_group(GroupId group) const;
  /// Whether any waits at that place.
  bool has(const SpawnPlace& place) const {
    return queues_.contains(place) || gpu_queues_.contains(place) || other_queues_.contains(place);
  }
  /// Those that a process of `node` asked for.
  std::vector<Requester> asked_by(NodeId node) const;
  std::vector<Requester> of_job(JobId job) const;

  /// In the order in which they came.
  const std::map<std::uint64_t, PendingSpawn>& all() const { return spawns_; }

 private:
  void collect(const SpawnPlace& place, std::vector<Requester>& found) const;

  /// By number; the weight is the demand, negative: the first that weighs -free or more fits.
  using Queue = scheduler::WeightedSet<std::uint64_t>;

  std::uint64_t next_number_ = 0;
  std::size_t payload_bytes_ = 0;  ///< the sum over spawns_
  std::map<std::uint64_t, PendingSpawn> spawns_;
  std::map<Requester, std::uint64_t> numbers_;
  std::map<SpawnPlace, Queue> queues_;
  using Listed = std::map<SpawnPlace, std::set<std::uint64_t>>;
  Listed gpu_queues_;    ///< the same of those that ask for GPUs
  Listed other_queues_;  ///< and of others that ask for memory, custom resources or labels
  std::map<JobId, std::map<std::uint64_t, Requester>> jobs_;
};

}  // namespace troupe::cluster
