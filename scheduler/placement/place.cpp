#include "scheduler/placement/place.hpp"

#include <string>

namespace troupe::scheduler {
namespace {

using cluster::ActorDemand;
using cluster::format_cpus;
using cluster::NodeView;
using cluster::Placement;
using cluster::PlacementVerdict;

std::int64_t free_of(const NodeView& node) {
  return node.cpu_e4 - node.cpu_used_e4;
}

std::string describe(const NodeView& node) {
  return node.name + " has " + format_cpus(free_of(node)) + " of " + format_cpus(node.cpu_e4) +
         (node.suspect ? " and is silent" : "");
}

std::string wanted(const ActorDemand& demand) {
  return format_cpus(demand.cpu_e4) + " CPU";
}

/// Negative: `a` is less used than `b`, as parts of what each has.
int compare_use(const NodeView& a, const NodeView& b) {
  const std::int64_t left = a.cpu_used_e4 * b.cpu_e4;
  const std::int64_t right = b.cpu_used_e4 * a.cpu_e4;
  return left < right ? -1 : left > right ? 1 : 0;
}

/// Whether `a` is the better home. Nodes come in id order, so a tie keeps the lower id.
bool better(const NodeView& a, const NodeView& b, bool spread) {
  const int use = compare_use(a, b);
  if (use != 0) return spread ? use < 0 : use > 0;
  return spread ? a.actors < b.actors : a.actors > b.actors;
}

Placement nowhere(const std::vector<NodeView>& nodes, const ActorDemand& demand) {
  std::string list;
  bool ever = nodes.empty();
  for (const NodeView& node : nodes) {
    list += (list.empty() ? "" : ", ") + describe(node);
    ever = ever || node.cpu_e4 >= demand.cpu_e4;
  }
  if (nodes.empty()) return {PlacementVerdict::kWait, {}, "no node has joined yet"};
  if (!ever) return {PlacementVerdict::kNever, {}, "no node has " + wanted(demand) + " at all: " + list};
  return {PlacementVerdict::kWait, {}, "no node has " + wanted(demand) + " free: " + list};
}

Placement only_there(const std::vector<NodeView>& nodes, const ActorDemand& demand) {
  for (const NodeView& node : nodes) {
    if (node.id != demand.affinity) continue;
    if (node.cpu_e4 < demand.cpu_e4) {
      return {
          PlacementVerdict::kNever,
          {},
          "it must run on " + node.name + ", which has no " + wanted(demand) + " at all: " + describe(node)};
    }
    if (node.suspect || free_of(node) < demand.cpu_e4) {
      return {PlacementVerdict::kWait, {}, "it must run on " + node.name + ", and " + describe(node)};
    }
    return {PlacementVerdict::kPlaced, node.id, "it must run on " + node.name};
  }
  return {PlacementVerdict::kNever,
          {},
          "it must run on node " + to_string(demand.affinity) + ", which is not a live node of this cluster"};
}

}  // namespace

Placement place(const std::vector<NodeView>& nodes, const ActorDemand& demand) {
  if (demand.affinity) return only_there(nodes, demand);
  const NodeView* best = nullptr;
  for (const NodeView& node : nodes) {
    if (node.suspect || free_of(node) < demand.cpu_e4) continue;
    if (best == nullptr || better(node, *best, demand.isolated)) best = &node;
  }
  if (best == nullptr) return nowhere(nodes, demand);
  return {PlacementVerdict::kPlaced, best->id,
          (demand.isolated ? "least used node: " : "fullest node with room: ") + describe(*best)};
}

}  // namespace troupe::scheduler
