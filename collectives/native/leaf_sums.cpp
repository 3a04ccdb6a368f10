#include "collectives/native/leaf_sums.hpp"

namespace troupe::collectives {
namespace {

using Nodes = std::vector<LeafInterval>;

void append(Nodes& all, const Nodes& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// The leaves of a host group.
LeafInterval leaves_of(const Nodes& intervals, LeafInterval group) {
  return {intervals[static_cast<std::size_t>(group.begin)].begin,
          intervals[static_cast<std::size_t>(group.end) - 1].end};
}

/// The nodes that an owner on the machine of `rank` adds up; `apart`: those of every rank, wherever it is.
Nodes sources_of(const Nodes& intervals, const HostLayout& layout, int rank, bool apart) {
  const int leaves = intervals.back().end;
  Nodes all;
  for (const LeafInterval group : layout.host_groups()) {
    if (!apart && !layout.together(rank, group.begin)) {
      append(all, canonical_nodes(leaves_of(intervals, group), leaves));
      continue;
    }
    for (int r = group.begin; r < group.end; ++r) {
      append(all, canonical_nodes(intervals[static_cast<std::size_t>(r)], leaves));
    }
  }
  return all;
}

/// The additions below `node`, of the partial sums among `nodes` that are inside it. A part of the tree is
/// the tree of its leaves.
LeafSums::Node below(LeafInterval node, const Nodes& nodes) {
  Nodes inside;
  for (const LeafInterval n : nodes) {
    if (n.begin >= node.begin && n.end <= node.end)
      inside.push_back({n.begin - node.begin, n.end - node.begin});
  }
  return {TreeSum(inside, node.size()), inside.size()};
}

}  // namespace

LeafSums::LeafSums(const Nodes& intervals, const HostLayout& layout, int rank)
    : all(sources_of(intervals, layout, rank, true), intervals.back().end),
      mixed(sources_of(intervals, layout, rank, false), intervals.back().end) {
  const int leaves = intervals.back().end;
  for (const LeafInterval interval : intervals) of_rank.push_back(canonical_nodes(interval, leaves).size());
  for (const LeafInterval group : layout.host_groups()) {
    of_host_group.push_back(canonical_nodes(leaves_of(intervals, group), leaves).size());
  }
  const LeafInterval group = layout.host_groups()[layout.host_group_of(rank)];
  Nodes nodes;
  for (int r = group.begin; r < group.end; ++r) {
    append(nodes, canonical_nodes(intervals[static_cast<std::size_t>(r)], leaves));
  }
  for (const LeafInterval node : canonical_nodes(leaves_of(intervals, group), leaves)) {
    own_host_group.push_back(below(node, nodes));
  }
}

}  // namespace troupe::collectives
