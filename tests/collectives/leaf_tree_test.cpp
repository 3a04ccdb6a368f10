#include "collectives/leaf_tree.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace troupe::collectives;

namespace {

/// The expression that folding `nodes` computes, as text: it must not depend on how the leaves were dealt.
std::string expression(LeafInterval node) {
  if (node.size() == 1) return std::to_string(node.begin);
  const int middle = node.begin + split_point(node.size());
  return "(" + expression({node.begin, middle}) + "+" + expression({middle, node.end}) + ")";
}

std::string folded(const std::vector<LeafInterval>& nodes, int leaves) {
  std::vector<std::string> slots;
  for (auto node : nodes) slots.push_back(expression(node));
  for (auto step : fold_plan(nodes, leaves))
    slots[step.into] = "(" + slots[step.into] + "+" + slots[step.from] + ")";
  return slots[0];
}

}  // namespace

TEST_CASE("every deal of every size sums the same expression") {
  for (int leaves = 1; leaves <= 40; ++leaves) {
    for (int ranks = 1; ranks <= leaves; ++ranks) {
      const auto dealt = deal_leaves(leaves, ranks);
      std::vector<LeafInterval> all;
      int at = 0;
      for (auto interval : dealt) {
        REQUIRE(interval.begin == at);
        REQUIRE(interval.size() >= 1);
        REQUIRE(interval.size() <= (leaves + ranks - 1) / ranks);
        at = interval.end;
        const auto nodes = canonical_nodes(interval, leaves);
        all.insert(all.end(), nodes.begin(), nodes.end());
      }
      REQUIRE(at == leaves);
      REQUIRE(folded(all, leaves) == expression({0, leaves}));
    }
  }
}

TEST_CASE("one partial a trainer is the rule") {
  CHECK(deal_leaves(4, 3) == std::vector<LeafInterval>{{0, 2}, {2, 3}, {3, 4}});
  CHECK(deal_leaves(8, 2) == std::vector<LeafInterval>{{0, 4}, {4, 8}});
  // In linear time: what grows with leaves times ranks does not end here.
  CHECK(deal_leaves(10'000'000, 1'000'003).size() == 1'000'003);
  CHECK(canonical_nodes({1, 7}, 8) == std::vector<LeafInterval>{{1, 2}, {2, 4}, {4, 6}, {6, 7}});
  CHECK(split_point(5) == 4);
  CHECK(split_point(4) == 2);
}
