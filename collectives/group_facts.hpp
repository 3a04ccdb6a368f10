/// What a process group is, from its making to its end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/types.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::collectives {

struct GroupFacts {
  std::string_view backend;  ///< "native", "nccl", "gloo" or "mpi"; outlives the group
  int rank = 0;
  int size = 1;
  Generation generation;
  /// Every rank's leaves: adjacent, none empty, in rank order from 0. Empty: one leaf a rank.
  std::vector<LeafInterval> leaves;
  Device device{};   ///< where its buffers are; of CPUs the index does not count
  std::string name;  ///< of the group in errors; empty: it has none

  /// The partial sums of this rank.
  std::vector<LeafInterval> partials() const {
    return canonical_nodes(leaves[static_cast<std::size_t>(rank)], leaves.back().end);
  }
};

/// "the process group 'default'", or "the process group" without a name.
inline std::string group_called(std::string_view name) {
  return name.empty() ? "the process group" : "the process group '" + std::string(name) + "'";
}
/// What to do about a group that was aborted.
inline constexpr const char* kAfterAbort =
    "make another one, by rebuild() on every rank that lives or by init_process_group, "
    "of a group of actors by form_process_group, and wrap modules again; "
    "train::run does so by itself";
/// What a Timeout says first: "a collective of the process group 'default' timed out".
inline std::string timed_out_in(std::string_view name) {
  return "a collective " + (name.empty() ? "" : "of " + group_called(name) + " ") + "timed out";
}

inline constexpr int kMaxGroupRanks =
    1 << 14;  ///< so that a stage of the native backend has an element for each

/// The leaves, one a rank where there are none. Throws BadConfig, naming `backend`, for a rank that does not
/// exist and for leaves that are not a deal for `size` ranks.
std::vector<LeafInterval> checked_leaves(std::string_view backend, int rank, int size,
                                         std::vector<LeafInterval> leaves);

}  // namespace troupe::collectives
