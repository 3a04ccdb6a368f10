/// Who runs where: the nodes, ordered so that a decision takes O(log n), with a sentence of why.
///
/// Affinity first. Isolated actors are spread: onto the node that is least used for its size, so that
/// trainers get cores of their own and one node's death takes few. Others are packed: onto the fullest node
/// that has room, so that whole nodes stay free for large demands. Ties go to fewer (spread) or more (pack)
/// actors, then to the lower id: the same nodes give the same answer.
///
/// What asks for GPUs goes to the node that has the fewest free of those with room, so that whole nodes stay
/// free and the trainers of a job lie side by side; ties as when spreading. Such a decision looks at every
/// node that has GPUs.
///
/// Memory, custom resources and labels leave out the nodes that have them not: of the others the same is
/// chosen. Isolated actors that ask for them look at nodes until one has them, others at every node.
///
/// Groups walk over nodes by what these have free (next_tightest, next_emptiest).
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/placement/placement.hpp"
#include "scheduler/placement/weighted_set.hpp"

namespace troupe::scheduler {

/// Not thread-safe.
class NodeIndex {
 public:
  /// `noun`: as sentences call what it holds.
  explicit NodeIndex(std::string noun = "node") : noun_(std::move(noun)) {}

  /// Adds the node, or takes up what changed of it. O(log n).
  /// REQUIRES: 0 <= cpu_e4 <= kMaxCpu_e4 and 0 <= cpu_used_e4 <= kMaxCpu_e4.
  void set(cluster::NodeView node);
  void remove(NodeId node);
  /// Why there is no node. REQUIRES: there is none.
  std::string why_empty() const;

  /// O(log n); O(nodes with GPUs) for a demand for GPUs, O(n) at most for memory, custom resources and
  /// labels. REQUIRES: 0 <= demand.cpu_e4 <= kMaxCpu_e4, and
  /// is_count_of_gpus(demand.gpu_e4).
  cluster::Placement place(const cluster::ActorDemand& demand) const;
  /// Why `demand` is not placed now, for a person who asks. O(n).
  std::string why_waits(const cluster::ActorDemand& demand) const;
  /// The same in short, of a demand for CPUs. O(log n). REQUIRES: no affinity, nothing but CPUs.
  std::string why_waits_for_cpus(const cluster::ActorDemand& demand) const;
  /// What is free of what `demand` asks for, of those that have most of it: "a has 1 of 4, b has 0 of 4".
  /// One node is to hold it all, or (`on_one` false) several together: each that has a part is told then.
  std::string list_free(const cluster::ActorDemand& demand, bool on_one = true) const;
  /// "2 GPUs and 1 CPU".
  static std::string wanted(const cluster::ActorDemand& demand);

  /// The CPUs that an actor could get there now; -1 if nothing is placed there.
  std::int64_t free_of(NodeId node) const;
  /// Whether an actor could get what it asks for there now.
  bool fits(NodeId node, const cluster::ActorDemand& demand) const;
  /// The same of a node that looks so.
  static bool fits(const cluster::NodeView& node, const cluster::ActorDemand& demand);
  /// Whether a part of any of its GPUs is free.
  bool has_free_gpus(NodeId node) const;
  /// Whether some node, suspect or not, has so much at all. O(1) for CPUs alone.
  bool has_room_for(const cluster::ActorDemand& demand) const;
  /// The CPUs of the largest node, suspect or not; -1 if there is none.
  std::int64_t largest() const { return sizes_.empty() ? -1 : sizes_.rbegin()->first; }
  /// Nodes by what they have free: of GPUs (if `by_gpus`), then of CPUs, then by id.
  ///
  /// The first behind `after` (null: of all) that has in all, whatever is free of each single GPU, what
  /// `demand` asks for. Each look at a node takes one off `looks`; null: none has it, or those are used up.
  /// O(log n) a look, and one look as a rule: it walks over nodes that have the CPUs and enough of one of the
  /// resources, or the GPUs and the CPUs. REQUIRES: by_gpus if demand.gpu_e4 > 0.
  const cluster::NodeView* next_tightest(const cluster::ActorDemand& demand, bool by_gpus,
                                         const cluster::NodeView* after, std::size_t& looks) const;
  /// The same from the one that has most free on, of several as much the lower id first; those that have room
  /// for `demand`. Null, too, for a demand without GPUs `by_gpus` once no node has a GPU free.
  const cluster::NodeView* next_emptiest(const cluster::ActorDemand& demand, bool by_gpus,
                                         const cluster::NodeView* after, std::size_t& looks) const;
  /// The most CPUs that any node has free; -1 if nothing is placed anywhere.
  std::int64_t most_free() const { return by_use_.empty() ? -1 : by_use_.most(); }
  const std::map<NodeId, cluster::NodeView>& nodes() const { return nodes_; }

 private:
  /// In this order the least used comes first.
  struct Use {
    std::int64_t used_e4 = 0;
    std::int64_t cpu_e4 = 0;
    int actors = 0;
    NodeId id{};
    bool operator<(const Use& other) const;
  };
  static Use use_of(const cluster::NodeView& node);
  struct Free {
    std::int64_t gpu_e4 = 0;  ///< 0 where GPUs do not count
    std::int64_t cpu_e4 = 0;
    NodeId id{};
    auto operator<=>(const Free&) const = default;
  };
  static Free free_on(const cluster::NodeView& node, bool by_gpus);
  static Free behind(Free at);
  /// Nodes in order, and what one must weigh to have enough of what they are weighed by.
  struct Walk {
    const WeightedSet<Free>* nodes = nullptr;
    std::int64_t least = 0;
    const Free* first_from(const Free& from) const { return nodes->first_from(from, least); }
  };
  /// What a demand needs is on nodes that are on all of these. Empty: none has it.
  std::vector<Walk> walks_for(const cluster::ActorDemand& demand, bool by_gpus) const;
  const WeightedSet<Free>& walk_by(const std::string& name) const;
  static void add(const cluster::NodeView& node, const std::string& name, WeightedSet<Free>& walk);

  cluster::Placement only_there(const cluster::ActorDemand& demand) const;
  cluster::Placement place_on_gpus(const cluster::ActorDemand& demand) const;
  cluster::Placement place_with_others(const cluster::ActorDemand& demand) const;
  const cluster::NodeView* least_used_with(const cluster::ActorDemand& demand) const;
  const cluster::NodeView* fullest_with(const cluster::ActorDemand& demand) const;
  std::string why_never(const cluster::ActorDemand& demand) const;
  void forget(const cluster::NodeView& node);

  std::string noun_;
  std::map<NodeId, cluster::NodeView> nodes_;
  bool had_nodes_ = false;
  std::set<NodeId> with_gpus_;
  WeightedSet<Use> by_use_;    ///< those that are not suspect and not overfull; weight: free CPUs
  WeightedSet<Free> by_free_;  ///< the same nodes; weight: none
  /// Of these those with that resource, by what is free of it; with GPUs, by free CPUs. From when a group
  /// first asks for it: what nobody asks for costs nothing.
  mutable std::map<std::string, WeightedSet<Free>> by_name_;
  std::map<std::int64_t, int> sizes_;  ///< how many nodes have so many CPUs
};

}  // namespace troupe::scheduler
