#include "collectives/native/leaf_sums.hpp"

#include "collectives/native/leaf_nodes.hpp"

namespace troupe::collectives {

LeafSums::LeafSums(const std::vector<LeafInterval>& intervals, const HostLayout& layout, int rank)
    : of_host(static_cast<std::size_t>(layout.hosts())),
      apart(of_host.size()),
      all(sources_of(intervals, layout, rank, true), intervals.back().end),
      mixed(sources_of(intervals, layout, rank, false), intervals.back().end) {
  const int leaves = intervals.back().end;
  for (const LeafInterval interval : intervals) of_rank.push_back(canonical_nodes(interval, leaves).size());
  const LeafNodes nodes = sources_of(intervals, layout, rank, true);
  for (const LeafInterval group : layout.host_groups()) {
    const auto host = static_cast<std::size_t>(layout.host_of(group.begin));
    const LeafNodes sums = canonical_nodes(leaves_of(intervals, group), leaves);
    of_group.push_back(sums.size());
    of_host[host] += sums.size();
    for (int r = group.begin; r < group.end; ++r) apart[host] += of_rank[static_cast<std::size_t>(r)];
    if (!layout.together(rank, group.begin)) continue;
    for (const LeafInterval node : sums) {
      const LeafNodes inside = nodes_below(node, nodes);
      own_host.push_back({TreeSum(inside, node.size()), inside.size()});
    }
  }
}

}  // namespace troupe::collectives
