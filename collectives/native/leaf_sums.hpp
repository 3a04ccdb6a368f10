/// The sums of one leaf tree over ranks that are laid out over hosts: how many partial sums each gives, and
/// the additions that are left to whoever owns a slice. Not thread-safe: the TreeSums have room of their own.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/native/host_layout.hpp"
#include "collectives/native/tree_sum.hpp"

namespace troupe::collectives {

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
