#include "collectives/native/leaf_nodes.hpp"

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

}  // namespace troupe::collectives
