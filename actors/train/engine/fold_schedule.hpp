/// In which array each leaf's gradient goes, and which arrays are added when, so that a trainer computes its
/// partial sums of the leaf tree (collectives/leaf_tree.hpp) leaf by leaf, left to right. Pure.
///
/// Arrays 0, 1, ... are the partials of the rank's canonical nodes; the others are scratch. Like a binary
/// counter: the left child of a node is summed in the node's own array, the right child in a scratch array
/// and added to it, so that about log2(leaves) scratch arrays do. A right child that is a leaf is added
/// without one.
#pragma once

#include <vector>

#include "collectives/leaf_tree.hpp"

namespace troupe::train {

struct LeafFold {
  int array = 0;                             ///< where the leaf's gradient goes
  bool add = false;                          ///< added to what is there; otherwise it replaces it
  std::vector<collectives::FoldStep> after;  ///< then, in order: array[into] += array[from]
};

struct FoldSchedule {
  std::vector<LeafFold> leaves;  ///< in the order of the interval
  int partials = 0;
  int scratch = 0;  ///< arrays partials, partials + 1, ...
};

/// REQUIRES: 0 <= interval.begin <= interval.end <= leaves.
FoldSchedule make_fold_schedule(collectives::LeafInterval interval, int leaves);

}  // namespace troupe::train
