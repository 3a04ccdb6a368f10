/// Which partial sums of a leaf tree meet where, over ranks that are laid out over hosts. Pure.
#pragma once

#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/native/host_layout.hpp"

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

}  // namespace troupe::collectives
