#include "scheduler/placement/node_index.hpp"

#include <algorithm>
#include <vector>

namespace troupe::scheduler {
namespace {

using cluster::ActorDemand;
using cluster::format_cpus;
using cluster::kMaxCpu_e4;
using cluster::NodeView;
using cluster::Placement;
using cluster::PlacementVerdict;

/// So many nodes are named in a sentence; the others are counted.
constexpr std::size_t kNamed = 4;

std::int64_t free_cpu(const NodeView& node) {
  return node.cpu_e4 - node.cpu_used_e4;
}

std::string describe(const NodeView& node) {
  return node.name + " has " + format_cpus(free_cpu(node)) + " of " + format_cpus(node.cpu_e4) +
         (node.suspect ? " and is silent" : "");
}

std::string wanted(const ActorDemand& demand) {
  return format_cpus(demand.cpu_e4) + " CPU";
}

}  // namespace

bool NodeIndex::Use::operator<(const Use& other) const {
  const std::int64_t left = used_e4 * other.cpu_e4;
  const std::int64_t right = other.used_e4 * cpu_e4;
  if (left != right) return left < right;
  if (actors != other.actors) return actors < other.actors;
  return id < other.id;
}

/// A node without CPUs counts as full, so that uses can be compared.
NodeIndex::Use NodeIndex::use_of(const NodeView& node) {
  if (node.cpu_e4 == 0) return {1, 1, node.actors, node.id};
  return {node.cpu_used_e4, node.cpu_e4, node.actors, node.id};
}

void NodeIndex::set(NodeView node) {
  TROUPE_ASSERT(node.cpu_e4 >= 0 && node.cpu_e4 <= kMaxCpu_e4, "a node's CPUs were checked at the door");
  TROUPE_ASSERT(node.cpu_used_e4 >= 0 && node.cpu_used_e4 <= kMaxCpu_e4, "actors hold what a node had");
  const auto at = nodes_.find(node.id);
  if (at != nodes_.end()) forget(at->second);
  ++sizes_[node.cpu_e4];
  if (!node.suspect && free_cpu(node) >= 0) by_use_.insert(use_of(node), free_cpu(node));
  nodes_.insert_or_assign(node.id, std::move(node));
}

void NodeIndex::remove(NodeId node) {
  const auto at = nodes_.find(node);
  if (at == nodes_.end()) return;
  forget(at->second);
  nodes_.erase(at);
}

void NodeIndex::forget(const NodeView& node) {
  by_use_.erase(use_of(node));
  const auto size = sizes_.find(node.cpu_e4);
  TROUPE_ASSERT(size != sizes_.end(), "every node's size is counted");
  if (--size->second == 0) sizes_.erase(size);
}

std::int64_t NodeIndex::free_of(NodeId node) const {
  const auto at = nodes_.find(node);
  if (at == nodes_.end() || at->second.suspect) return -1;
  return std::max<std::int64_t>(-1, free_cpu(at->second));
}

Placement NodeIndex::place(const ActorDemand& demand) const {
  TROUPE_ASSERT(demand.cpu_e4 >= 0 && demand.cpu_e4 <= kMaxCpu_e4, "a demand was checked at the door");
  if (demand.affinity) return only_there(demand);
  const Use* best = demand.isolated ? by_use_.first(demand.cpu_e4) : by_use_.last(demand.cpu_e4);
  if (best == nullptr) {
    if (nodes_.empty() || largest() >= demand.cpu_e4) return {};
    return {PlacementVerdict::kNever,
            {},
            "no node has " + wanted(demand) + " at all: the largest has " + format_cpus(largest())};
  }
  if (!demand.isolated) {  // the lowest id of those that are as full and have as many actors
    Use tied = *best;
    tied.id = {};
    best = by_use_.first_from(tied, demand.cpu_e4);
  }
  const NodeView& node = nodes_.at(best->id);
  return {PlacementVerdict::kPlaced, node.id,
          (demand.isolated ? "least used node: " : "fullest node with room: ") + describe(node)};
}

Placement NodeIndex::only_there(const ActorDemand& demand) const {
  const auto at = nodes_.find(demand.affinity);
  if (at == nodes_.end()) {
    return {
        PlacementVerdict::kNever,
        {},
        "it must run on node " + to_string(demand.affinity) +
            ", which is not a live node of this cluster, or leaves it"};
  }
  const NodeView& node = at->second;
  if (node.cpu_e4 < demand.cpu_e4) {
    return {
        PlacementVerdict::kNever,
        {},
        "it must run on " + node.name + ", which has no " + wanted(demand) + " at all: " + describe(node)};
  }
  if (free_of(node.id) < demand.cpu_e4) return {};
  return {PlacementVerdict::kPlaced, node.id, "it must run on " + node.name};
}

std::string NodeIndex::why_waits(const ActorDemand& demand) const {
  if (nodes_.empty()) return "no node has joined yet";
  if (const auto at = nodes_.find(demand.affinity); at != nodes_.end())
    return "it must run on " + at->second.name + ", and " + describe(at->second);
  std::vector<const NodeView*> nearest;  // to having room
  for (const auto& [id, node] : nodes_) nearest.push_back(&node);
  const std::size_t named = std::min(kNamed, nearest.size());
  std::partial_sort(nearest.begin(), nearest.begin() + static_cast<std::ptrdiff_t>(named), nearest.end(),
                    [](const NodeView* a, const NodeView* b) {
                      return free_cpu(*a) != free_cpu(*b) ? free_cpu(*a) > free_cpu(*b) : a->id < b->id;
                    });
  std::string list;
  for (std::size_t i = 0; i < named; ++i) list += (i == 0 ? "" : ", ") + describe(*nearest[i]);
  if (nearest.size() > named) list += ", and " + std::to_string(nearest.size() - named) + " nodes with less";
  return "no node has " + wanted(demand) + " free: " + list;
}

}  // namespace troupe::scheduler
