/// The sums of one leaf tree over ranks that are laid out over hosts: which partial sums meet where, how many
/// each gives, and the additions that are left to whoever owns a slice.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/native/host_layout.hpp"
#include "collectives/native/tree_sum.hpp"

namespace troupe::collectives {

using LeafNodes = std::vector<LeafInterval>;

/// The leaves of a host group. `intervals`: every rank's leaves, adjacent, in rank order.
LeafInterval leaves_of(const LeafNodes& intervals, LeafInterval group);

/// The nodes that an owner on the host of `rank` adds up: those of each rank on its host, and of each host
/// group elsewhere. `apart`: those of every rank, wherever it is.
LeafNodes sources_of(const LeafNodes& intervals, const HostLayout& layout, int rank, bool apart);

/// The nodes among `nodes` that are inside `node`, as nodes of a tree of its own: a part of the tree is the
/// tree of its leaves.
LeafNodes nodes_below(LeafInterval node, const LeafNodes& nodes);

/// Not thread-safe: the TreeSums have room of their own.
struct LeafSums {
  /// `intervals`: every rank's leaves, adjacent. `rank`: whose sums these are.
  LeafSums(const std::vector<LeafInterval>& intervals, const HostLayout& layout, int rank);

  /// One partial sum of the own host, of so many partial sums of its ranks, left to right.
  struct Node {
    TreeSum sum;
    std::size_t sources = 0;
  };

  std::vector<std::size_t> of_rank;   ///< by rank: its partial sums
  std::vector<std::size_t> of_group;  ///< by host group: the partial sums that its host adds up for others
  std::vector<std::size_t> of_host;   ///< by host: those of all its groups
  std::vector<std::size_t> apart;     ///< by host: those of all its ranks
  TreeSum all;                        ///< of every rank's partial sums
  TreeSum mixed;                      ///< of those of this host's ranks, and of other hosts' groups
  std::vector<Node> own_host;
};

}  // namespace troupe::collectives
