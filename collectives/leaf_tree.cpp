#include "collectives/leaf_tree.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::collectives {
namespace {

void collect(LeafInterval node, LeafInterval wanted, std::vector<LeafInterval>& out) {
  if (node.end <= wanted.begin || wanted.end <= node.begin) return;
  if (wanted.begin <= node.begin && node.end <= wanted.end) {
    out.push_back(node);
    return;
  }
  const int middle = node.begin + split_point(node.size());
  collect({node.begin, middle}, wanted, out);
  collect({middle, node.end}, wanted, out);
}

/// Sums the slots under `node`, the first of which is slot `at`; returns the slot after the last.
int fold(LeafInterval node, int at, const std::vector<LeafInterval>& nodes, std::vector<FoldStep>& out) {
  TROUPE_ASSERT(at < static_cast<int>(nodes.size()), "the partials cover every leaf");
  if (nodes[at] == node) return at + 1;
  const int middle = node.begin + split_point(node.size());
  const int right = fold({node.begin, middle}, at, nodes, out);
  const int next = fold({middle, node.end}, right, nodes, out);
  out.push_back({at, right});
  return next;
}

}  // namespace

int split_point(int leaves) {
  TROUPE_ASSERT(leaves >= 2, "a single leaf does not split");
  int power = 1;
  while (power * 2 < leaves) power *= 2;
  return power;
}

std::vector<LeafInterval> canonical_nodes(LeafInterval interval, int leaves) {
  TROUPE_ASSERT(0 <= interval.begin && interval.begin <= interval.end && interval.end <= leaves,
                "an interval of leaves lies inside the tree");
  std::vector<LeafInterval> nodes;
  if (interval.size() > 0) collect({0, leaves}, interval, nodes);
  return nodes;
}

std::vector<LeafInterval> deal_leaves(int leaves, int ranks) {
  TROUPE_ASSERT(1 <= ranks && ranks <= leaves, "every trainer hosts at least one leaf");
  const int widest = (leaves + ranks - 1) / ranks;
  // The larger the node that ends at a cut, the fewer partials to its left and right.
  const auto alignment = [&](int cut) { return cut == leaves ? leaves : cut & -cut; };
  std::vector<LeafInterval> dealt;
  for (int r = 0, at = 0; r < ranks; ++r) {
    const int others = ranks - r - 1;  // who need a leaf each, and take no more than `widest`
    const int first = std::max(at + 1, leaves - others * widest),
              last = std::min(at + widest, leaves - others);
    int cut = last;
    for (int c = last - 1; c >= first; --c) {
      if (alignment(c) > alignment(cut)) cut = c;
    }
    dealt.push_back({at, cut});
    at = cut;
  }
  return dealt;
}

std::vector<FoldStep> fold_plan(const std::vector<LeafInterval>& nodes, int leaves) {
  std::vector<FoldStep> steps;
  const int used = fold({0, leaves}, 0, nodes, steps);
  TROUPE_ASSERT(used == static_cast<int>(nodes.size()), "the partials cover every leaf once");
  return steps;
}

std::vector<LeafInterval> rank_leaves(int ranks) {
  std::vector<LeafInterval> leaves;
  leaves.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) leaves.push_back({r, r + 1});
  return leaves;
}

}  // namespace troupe::collectives
