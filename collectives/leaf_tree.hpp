/// The fixed tree on which everything is summed.
///
/// A job has L logical ranks ("leaves"). Values are summed over one binary tree on the leaves [0, L): a node
/// over n leaves splits at the largest power of two below n. The tree depends on L alone, so the sum of a
/// step has the same bits however the leaves are dealt out to trainers. A trainer hosts an interval of
/// leaves; the largest tree nodes inside its interval are its partial sums, and the owner of a slice adds all
/// trainers' partials in tree order.
#pragma once

#include <vector>

namespace troupe::collectives {

/// Leaves [begin, end). Also names a node of the tree.
struct LeafInterval {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const LeafInterval&) const = default;
};

/// Where a node over `leaves` leaves splits: the largest power of two below it. REQUIRES: leaves >= 2.
int split_point(int leaves);

/// The largest tree nodes inside `interval`, left to right: at most about 2 log2(leaves).
/// REQUIRES: 0 <= interval.begin <= interval.end <= leaves.
std::vector<LeafInterval> canonical_nodes(LeafInterval interval, int leaves);

/// Deals `leaves` to `ranks` trainers as adjacent intervals, in rank order: nobody hosts more than
/// ceil(leaves / ranks), and each interval ends where the largest node does that leaves enough for the ranks
/// behind it, which gives the fewest partial sums that there can be, or hardly more (10 / 9 of them at most
/// with up to 40 leaves). In time linear in the leaves. REQUIRES: 1 <= ranks <= leaves.
std::vector<LeafInterval> deal_leaves(int leaves, int ranks);

/// One leaf a rank: the tree of the operations on plain buffers.
std::vector<LeafInterval> rank_leaves(int ranks);

/// One step of summing partials in tree order: slot[into] += slot[from], the slots being all partials, left
/// to right.
struct FoldStep {
  int into = 0;
  int from = 0;
  bool operator==(const FoldStep&) const = default;
};

/// The additions that sum `nodes` (a partition of [0, leaves) into tree nodes, left to right) up the tree
/// into slot 0.
std::vector<FoldStep> fold_plan(const std::vector<LeafInterval>& nodes, int leaves);

}  // namespace troupe::collectives
