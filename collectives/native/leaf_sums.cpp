#include "collectives/native/leaf_sums.hpp"

#include "collectives/native/leaf_nodes.hpp"

namespace troupe::collectives {

LeafSums::LeafSums(const std::vector<LeafInterval>& intervals, const HostLayout& layout, int rank)
    : all(sources_of(intervals, layout, rank, true), intervals.back().end),
      mixed(sources_of(intervals, layout, rank, false), intervals.back().end) {
  const int leaves = intervals.back().end;
  for (const LeafInterval interval : intervals) of_rank.push_back(canonical_nodes(interval, leaves).size());
  for (const LeafInterval group : layout.host_groups()) {
    of_host_group.push_back(canonical_nodes(leaves_of(intervals, group), leaves).size());
  }
  const LeafInterval own = leaves_of(intervals, layout.host_groups()[layout.host_group_of(rank)]);
  const LeafNodes nodes = sources_of(intervals, layout, rank, true);
  for (const LeafInterval node : canonical_nodes(own, leaves)) {
    const LeafNodes inside = nodes_below(node, nodes);
    own_host_group.push_back({TreeSum(inside, node.size()), inside.size()});
  }
}

}  // namespace troupe::collectives
