#include "scheduler/placement/place.hpp"

#include <catch2/catch.hpp>

using namespace troupe;
using namespace troupe::cluster;
using scheduler::place;

namespace {

NodeView node(std::uint64_t id, const char* name, double cpus, double used, int actors = 0) {
  const auto e4 = [](double c) { return static_cast<std::int64_t>(c * kCpu); };
  return {NodeId{id}, name, e4(cpus), e4(used), actors, false};
}

}  // namespace

TEST_CASE("isolated actors go to the node that is least used for its size") {
  const auto placed = place({node(1, "a", 4, 2), node(2, "b", 8, 3)}, {kCpu, true, {}});
  CHECK(placed.verdict == PlacementVerdict::kPlaced);
  CHECK(placed.node == NodeId{2});
  CHECK(placed.reason == "least used node: b has 5 of 8");
}

TEST_CASE("light actors are packed onto the fullest node that has room") {
  CHECK(place({node(1, "a", 4, 1), node(2, "b", 4, 3), node(3, "c", 4, 4)}, {kCpu, false, {}}).node ==
        NodeId{2});
  CHECK(place({node(1, "a", 4, 0, 0), node(2, "b", 4, 0, 5)}, {0, false, {}}).node == NodeId{2});
}

TEST_CASE("ties go to the node with fewer actors when spreading, then to the lower id") {
  CHECK(place({node(1, "a", 2, 0, 3), node(2, "b", 2, 0, 1)}, {kCpu, true, {}}).node == NodeId{2});
  CHECK(place({node(1, "a", 2, 0), node(2, "b", 2, 0)}, {kCpu, true, {}}).node == NodeId{1});
}

TEST_CASE("what does not fit now waits, what never fits is refused, and the sentence says why") {
  const auto wait = place({node(1, "a", 2, 1.5), node(2, "b", 1, 0.25)}, {kCpu, true, {}});
  CHECK(wait.verdict == PlacementVerdict::kWait);
  CHECK(wait.reason == "no node has 1 CPU free: a has 0.5 of 2, b has 0.75 of 1");
  const auto never = place({node(1, "a", 2, 0)}, {3 * kCpu, true, {}});
  CHECK(never.verdict == PlacementVerdict::kNever);
  CHECK(never.reason == "no node has 3 CPU at all: a has 2 of 2");
  CHECK(place({}, {kCpu, true, {}}).verdict == PlacementVerdict::kWait);
}

TEST_CASE("affinity names one node: full waits, too small or gone is refused") {
  const std::vector<NodeView> nodes{node(1, "a", 2, 2), node(2, "b", 2, 0)};
  CHECK(place(nodes, {kCpu, false, NodeId{2}}).node == NodeId{2});
  CHECK(place(nodes, {kCpu, false, NodeId{1}}).verdict == PlacementVerdict::kWait);
  CHECK(place(nodes, {3 * kCpu, false, NodeId{1}}).verdict == PlacementVerdict::kNever);
  CHECK(place(nodes, {kCpu, false, NodeId{9}}).verdict == PlacementVerdict::kNever);
}

TEST_CASE("a silent node gets nothing new") {
  auto silent = node(1, "a", 8, 0);
  silent.suspect = true;
  CHECK(place({silent, node(2, "b", 2, 1)}, {kCpu, true, {}}).node == NodeId{2});
  CHECK(place({silent}, {kCpu, true, {}}).reason == "no node has 1 CPU free: a has 8 of 8 and is silent");
}
