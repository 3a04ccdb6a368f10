#include "collectives/native/leaf_sums.hpp"

namespace troupe::collectives {

LeafInterval leaves_of(const LeafNodes& intervals, LeafInterval group) {
  return {intervals[static_cast<std::size_t>(group.begin)].begin,
          intervals[static_cast<std::size_t>(group.end) - 1].end};
}

LeafNodes sources_of(const LeafNodes& intervals, const HostLayout& layout, int rank, bool apart) {
  const int leaves = intervals.back().end;
  LeafNodes all;
  const auto append = [&](LeafInterval of) {
    const LeafNodes nodes = canonical_nodes(of, leaves);
    all.insert(all.end(), nodes.begin(), nodes.end());
  };
  for (const LeafInterval group : layout.host_groups()) {
    if (!apart && !layout.together(rank, group.begin)) {
      append(leaves_of(intervals, group));
      continue;
    }
    for (int r = group.begin; r < group.end; ++r) append(intervals[static_cast<std::size_t>(r)]);
  }
  return all;
}

LeafNodes nodes_below(LeafInterval node, const LeafNodes& nodes) {
  LeafNodes inside;
  for (const LeafInterval n : nodes) {
    if (n.begin >= node.begin && n.end <= node.end)
      inside.push_back({n.begin - node.begin, n.end - node.begin});
  }
  return inside;
}

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
