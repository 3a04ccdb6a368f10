/// Where the bundles of a placement group go: all of them, or none. Pure: the same nodes give the same
/// answer.
#pragma once

#include <string>
#include <vector>

#include "runtime/wire/groups.hpp"
#include "scheduler/placement/node_index.hpp"

namespace troupe::scheduler {

struct GroupPlan {
  bool is_placed = false;
  std::vector<cluster::PlacedBundle> placed;  ///< if it is: one entry a bundle
  std::string reason;                         ///< why there, or what it waits for
  bool cut_off = false;                       ///< if it is not: the search was, and there may be a placement
  bool is_never = false;                      ///< if it is not: nor once all that runs has ended
  std::size_t looks = 0;                      ///< at nodes: what it cost
};

/// Bundles that have a node in `kept` stay there; `nodes` count what those hold as used.
///
/// - STRICT_PACK: one node for all: the one that has least free of those with room.
/// - STRICT_SPREAD: a node for each, by bipartite matching (Kuhn 1955).
/// - PACK: one node if any has room for all, else as few as a search finds that takes the largest bundle
///   first and the node with most bundles, then the emptiest.
/// - SPREAD: the same search, that takes the node with fewest bundles, then the emptiest.
///
/// If there is a placement it is found, or the search was cut off (`cut_off`) after some ten thousand looks
/// at nodes, a million for STRICT_SPREAD: which bundles share which GPUs and nodes is bin packing. Groups
/// whose bundles are alike always find it. PACK whose search on one node was cut off may take several.
/// REQUIRES: kept.size() == spec.bundles.size(), and check_group(spec) finds nothing.
GroupPlan plan_group(const cluster::GroupSpec& spec, const std::vector<cluster::PlacedBundle>& kept,
                     const NodeIndex& nodes);
/// The same plan, looked for on every node: what plan_group falls back to, and is tested against.
GroupPlan plan_group_by_search(const cluster::GroupSpec& spec, const std::vector<cluster::PlacedBundle>& kept,
                               const NodeIndex& nodes);

/// "STRICT_PACK".
const char* name_of(PlacementStrategy strategy);

}  // namespace troupe::scheduler
