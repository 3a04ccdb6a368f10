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

Nodes nodes_of_ranks(const Nodes& intervals, LeafInterval ranks) {
  Nodes all;
  for (int r = ranks.begin; r < ranks.end; ++r) {
    append(all, canonical_nodes(intervals[static_cast<std::size_t>(r)], intervals.back().end));
  }
  return all;
}

/// The nodes that an owner on the host of `rank` adds up; `apart`: those of every rank, wherever it is.
Nodes sources_of(const Nodes& intervals, const HostLayout& layout, int rank, bool apart) {
  Nodes all;
  for (const LeafInterval group : layout.host_groups()) {
    append(all, apart || layout.together(rank, group.begin)
                    ? nodes_of_ranks(intervals, group)
                    : canonical_nodes(leaves_of(intervals, group), intervals.back().end));
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
    : of_host(static_cast<std::size_t>(layout.hosts())),
      apart(of_host.size()),
      all(sources_of(intervals, layout, rank, true), intervals.back().end),
      mixed(sources_of(intervals, layout, rank, false), intervals.back().end) {
  const int leaves = intervals.back().end;
  for (const LeafInterval interval : intervals) of_rank.push_back(canonical_nodes(interval, leaves).size());
  for (const LeafInterval group : layout.host_groups()) {
    const auto host = static_cast<std::size_t>(layout.host_of(group.begin));
    const Nodes nodes = nodes_of_ranks(intervals, group);
    const Nodes sums = canonical_nodes(leaves_of(intervals, group), leaves);
    of_group.push_back(sums.size());
    of_host[host] += sums.size();
    apart[host] += nodes.size();
    if (!layout.together(rank, group.begin)) continue;
    for (const LeafInterval node : sums) own_host.push_back(below(node, nodes));
  }
}

}  // namespace troupe::collectives
