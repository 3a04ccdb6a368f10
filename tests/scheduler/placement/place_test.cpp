#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "runtime/core/random.hpp"
#include "scheduler/placement/node_index.hpp"

using namespace troupe;
using namespace troupe::cluster;
using scheduler::NodeIndex;
using scheduler::WeightedSet;

namespace {

NodeView node(std::uint64_t id, const char* name, double cpus, double used, int actors = 0) {
  const auto e4 = [](double c) { return static_cast<std::int64_t>(c * kCpu); };
  return {NodeId{id}, name, e4(cpus), e4(used), actors, false};
}

/// With GPUs of which so much is held.
NodeView with_gpus(NodeView node, const std::vector<double>& held) {
  for (const double one : held) node.gpus.push_back(static_cast<std::int64_t>(one * kGpu));
  return node;
}

ActorDemand gpus(double count, double cpus = 0, NodeId affinity = {}) {
  return {static_cast<std::int64_t>(cpus * kCpu), true, affinity, static_cast<std::int64_t>(count * kGpu)};
}

NodeIndex index_of(const std::vector<NodeView>& nodes) {
  NodeIndex made;
  for (const NodeView& one : nodes) made.set(one);
  return made;
}

Placement place(const std::vector<NodeView>& nodes, const ActorDemand& demand) {
  return index_of(nodes).place(demand);
}

/// The policy, said once more by looking at every node.
Placement reference(const std::vector<NodeView>& nodes, const ActorDemand& demand) {
  const auto use = [](const NodeView& n) {
    return n.cpu_e4 == 0 ? std::pair<std::int64_t, std::int64_t>{1, 1} : std::pair{n.cpu_used_e4, n.cpu_e4};
  };
  const NodeView* best = nullptr;
  bool ever = nodes.empty() && !demand.affinity;
  for (const NodeView& n : nodes) {
    if (demand.affinity && n.id != demand.affinity) continue;
    ever = ever || n.cpu_e4 >= demand.cpu_e4;
    if (n.suspect || n.cpu_e4 - n.cpu_used_e4 < demand.cpu_e4) continue;
    if (best != nullptr) {
      const auto [used, cpu] = use(n);
      const auto [best_used, best_cpu] = use(*best);
      const auto order = used * best_cpu <=> best_used * cpu;
      const auto by_actors = n.actors <=> best->actors;
      const bool less = order < 0 || (order == 0 && by_actors < 0);
      const bool more = order > 0 || (order == 0 && by_actors > 0);
      const bool lower = !less && !more && n.id < best->id;
      if (!(demand.isolated ? less : more) && !lower) continue;
    }
    best = &n;
  }
  if (best != nullptr) return {PlacementVerdict::kPlaced, best->id, ""};
  return {ever ? PlacementVerdict::kWait : PlacementVerdict::kNever, {}, ""};
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

TEST_CASE("ties go to fewer actors when spreading and to more when packing, then to the lower id") {
  CHECK(place({node(1, "a", 2, 0, 3), node(2, "b", 2, 0, 1)}, {kCpu, true, {}}).node == NodeId{2});
  CHECK(place({node(1, "a", 2, 0), node(2, "b", 2, 0)}, {kCpu, true, {}}).node == NodeId{1});
  CHECK(place({node(1, "a", 2, 0), node(2, "b", 2, 0)}, {kCpu, false, {}}).node == NodeId{1});
}

TEST_CASE("what does not fit now waits, what never fits is refused, and the sentence says why") {
  const auto waits = index_of({node(1, "a", 2, 1.5), node(2, "b", 1, 0.25)});
  CHECK(waits.place({kCpu, true, {}}).verdict == PlacementVerdict::kWait);
  CHECK(waits.why_waits({kCpu, true, {}}) == "no node has 1 CPU free: b has 0.75 of 1, a has 0.5 of 2");
  const auto never = place({node(1, "a", 2, 0)}, {3 * kCpu, true, {}});
  CHECK(never.verdict == PlacementVerdict::kNever);
  CHECK(never.reason == "no node has 3 CPU at all: the largest has 2");
  CHECK(place({}, {kCpu, true, {}}).verdict == PlacementVerdict::kWait);
  CHECK(index_of({}).why_waits({kCpu, true, {}}) == "no node has joined yet");
  // Was: the same of a cluster whose nodes had all drained.
  NodeIndex left = index_of({node(1, "a", 2, 0)});
  left.remove(NodeId{1});
  CHECK(left.why_waits({kCpu, true, {}}) ==
        "no node is left: those that had joined drain, have left or died");
  CHECK(left.why_waits_for_cpus({kCpu, true, {}}) == left.why_waits({kCpu, true, {}}));
}

TEST_CASE("of many nodes a sentence names a few") {
  NodeIndex many;
  for (std::uint64_t id = 1; id <= 10; ++id) many.set(node(id, "n", 1, 0.9));
  CHECK(many.why_waits({kCpu, true, {}}).ends_with("n has 0.1 of 1, and 6 nodes with less"));
}

TEST_CASE("affinity names one node: full waits, too small or gone is refused") {
  const std::vector<NodeView> nodes{node(1, "a", 2, 2), node(2, "b", 2, 0)};
  CHECK(place(nodes, {kCpu, false, NodeId{2}}).node == NodeId{2});
  CHECK(place(nodes, {kCpu, false, NodeId{1}}).verdict == PlacementVerdict::kWait);
  CHECK(place(nodes, {3 * kCpu, false, NodeId{1}}).verdict == PlacementVerdict::kNever);
  CHECK(place(nodes, {kCpu, false, NodeId{9}}).verdict == PlacementVerdict::kNever);
  CHECK(index_of(nodes).why_waits({kCpu, false, NodeId{1}}) == "it must run on a, and a has 0 of 2 CPU");
}

TEST_CASE("a silent node gets nothing new") {
  auto silent = node(1, "a", 8, 0);
  silent.suspect = true;
  CHECK(place({silent, node(2, "b", 2, 1)}, {kCpu, true, {}}).node == NodeId{2});
  CHECK(index_of({silent}).why_waits({kCpu, true, {}}) ==
        "no node has 1 CPU free: a has 8 of 8 and is silent");
}

TEST_CASE("whole GPUs are the first that nobody holds; a part lies on one GPU, the fullest with room") {
  const auto deal = [](const std::vector<double>& held, double count) {
    return deal_gpus(with_gpus({}, held).gpus, static_cast<std::int64_t>(count * kGpu));
  };
  using Dealt = std::vector<std::uint32_t>;
  CHECK(deal({0, 0, 0}, 2) == Dealt{0, 1});
  CHECK(deal({1, 0, 0.25, 0}, 2) == Dealt{1, 3});
  CHECK(deal({1, 0.25, 0}, 2) == std::nullopt);
  CHECK(deal({0, 0.25, 0.5, 0.75}, 0.5) == Dealt{2});
  CHECK(deal({0, 0.75}, 0.5) == Dealt{0});
  CHECK(deal({0.75, 0.75}, 0.5) == std::nullopt);  // half a GPU is free, and on no GPU
  CHECK(deal({}, 1) == std::nullopt);
  CHECK(is_count_of_gpus(0));
  CHECK(is_count_of_gpus(1));
  CHECK(is_count_of_gpus(3 * kGpu));
  CHECK_FALSE(is_count_of_gpus(15000));
  CHECK_FALSE(is_count_of_gpus(-1));
  CHECK_FALSE(is_count_of_gpus((kMaxGpus + 1) * kGpu));
}

TEST_CASE("who asks for GPUs goes where the fewest suffice, so that whole nodes stay free") {
  const std::vector<NodeView> nodes{with_gpus(node(1, "a", 8, 0), {0, 0, 0, 0}),
                                    with_gpus(node(2, "b", 8, 0), {1, 0, 0}), node(3, "c", 64, 0)};
  const auto two = place(nodes, gpus(2, 1));
  CHECK(two.node == NodeId{2});
  CHECK(two.gpus == std::vector<std::uint32_t>{1, 2});
  CHECK(two.reason == "fewest free GPUs that suffice: b has 2 of 3 GPUs and 8 of 8 CPUs");
  CHECK(place(nodes, gpus(3)).node == NodeId{1});
  CHECK(place(nodes, gpus(1, 8, NodeId{1})).gpus == std::vector<std::uint32_t>{0});
  CHECK(place(nodes, gpus(2, 9)).verdict == PlacementVerdict::kNever);  // no node has both
}

TEST_CASE("who waits for GPUs is told what is free of each, and who asks too much what there is") {
  const auto full = index_of(
      {with_gpus(node(1, "a", 8, 0), {1, 0.5}), with_gpus(node(2, "b", 8, 0), {1}), node(3, "c", 8, 0)});
  CHECK(full.place(gpus(1)).verdict == PlacementVerdict::kWait);
  CHECK(full.why_waits(gpus(1)) ==
        "no node has 1 GPU free: a has 0.5 of 2 GPUs (0.5 of GPUs that others share), b has 0 of 1 GPU");
  CHECK(full.why_waits(gpus(1, 0, NodeId{2})) == "it must run on b, and b has 0 of 1 GPU");
  CHECK(full.place(gpus(0.5)).node == NodeId{1});
  const auto never = full.place(gpus(3));
  CHECK(never.verdict == PlacementVerdict::kNever);
  CHECK(never.reason == "no node has 3 GPUs at all: the most GPUs of one are 2");
  CHECK(place({node(3, "c", 8, 0)}, gpus(1)).reason == "no node has 1 GPU at all: none has a GPU");
  CHECK(place({node(3, "c", 8, 0)}, gpus(1, 0, NodeId{3})).verdict == PlacementVerdict::kNever);
}

TEST_CASE("the index deals GPUs as somebody would who looks at every node") {
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  NodeIndex indexed;
  std::map<NodeId, NodeView> nodes;
  for (int round = 0; round < 3000; ++round) {
    CAPTURE(round);
    const NodeId id{1 + random.below(8)};
    if (random.below(5) == 0) {
      nodes.erase(id);
      indexed.remove(id);
    } else {
      NodeView made = node(id.value, "n", 4, static_cast<double>(random.below(5)));
      made.suspect = random.below(5) == 0;
      for (std::uint64_t i = random.below(4); i > 0; --i)
        made.gpus.push_back(static_cast<std::int64_t>(random.below(5)) * kGpu / 4);
      nodes[id] = made;
      indexed.set(made);
    }
    const double counts[] = {0.25, 0.5, 0.75, 1, 2, 3};
    const ActorDemand demand = gpus(counts[random.below(6)], static_cast<double>(random.below(3)),
                                    NodeId{random.below(4) == 0 ? 1 + random.below(8) : 0});
    bool ever = nodes.empty() && !demand.affinity;
    const NodeView* best = nullptr;
    for (const auto& [key, n] : nodes) {
      if (demand.affinity && key != demand.affinity) continue;
      ever = ever || static_cast<std::int64_t>(n.gpus.size()) * kGpu >= demand.gpu_e4;  // all have the CPUs
      if (n.suspect || n.cpu_e4 - n.cpu_used_e4 < demand.cpu_e4 || !deal_gpus(n.gpus, demand.gpu_e4))
        continue;
      const auto key_of = [](const NodeView& v) { return std::tuple(free_gpu(v.gpus), v.cpu_used_e4, v.id); };
      if (best == nullptr || key_of(n) < key_of(*best)) best = &n;
    }
    const Placement found = indexed.place(demand);
    REQUIRE((found.verdict == PlacementVerdict::kPlaced) == (best != nullptr));
    if (best == nullptr) REQUIRE((found.verdict == PlacementVerdict::kNever) == !ever);
    if (best != nullptr) REQUIRE(found.node == best->id);
    if (best != nullptr) REQUIRE(found.gpus == *deal_gpus(best->gpus, demand.gpu_e4));
  }
}

TEST_CASE("the index decides as somebody would who looks at every node") {
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  NodeIndex indexed;
  std::map<NodeId, NodeView> nodes;
  for (int round = 0; round < 4000; ++round) {
    CAPTURE(round);
    const NodeId id{1 + random.below(12)};
    if (random.below(5) == 0) {
      nodes.erase(id);
      indexed.remove(id);
    } else {
      const auto cpus = static_cast<std::int64_t>(random.below(4));
      // Sometimes more is held than a node has: it came back with fewer CPUs.
      const auto used = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(cpus) + 2));
      nodes[id] = {
          id, "n", cpus * kCpu, used * kCpu, static_cast<int>(random.below(3)), random.below(4) == 0};
      indexed.set(nodes[id]);
    }
    std::vector<NodeView> list;
    for (const auto& [key, view] : nodes) list.push_back(view);
    const ActorDemand demand{static_cast<std::int64_t>(random.below(5)) * kCpu, random.below(2) == 0,
                             NodeId{random.below(4) == 0 ? 1 + random.below(12) : 0}};
    const Placement wanted = reference(list, demand);
    const Placement found = indexed.place(demand);
    REQUIRE(found.verdict == wanted.verdict);
    REQUIRE(found.node == wanted.node);
  }
}

TEST_CASE("a weighted set finds what a scan finds") {
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  WeightedSet<int> set;
  std::map<int, std::int64_t> all;
  for (int round = 0; round < 5000; ++round) {
    const int key = static_cast<int>(random.below(60));
    CHECK(set.erase(key) == (all.erase(key) == 1));
    if (random.below(3) != 0) {
      const auto weight = static_cast<std::int64_t>(random.below(20));
      set.insert(key, weight);
      all[key] = weight;
    }
    const auto bound = static_cast<std::int64_t>(random.below(22));
    const int from = static_cast<int>(random.below(60));
    const int* first = nullptr;
    const int* first_from = nullptr;
    const int* last = nullptr;
    for (const auto& [k, weight] : all) {
      if (weight < bound) continue;
      if (first == nullptr) first = &k;
      if (first_from == nullptr && k >= from) first_from = &k;
      last = &k;
    }
    const auto same = [](const int* a, const int* b) {
      return a == nullptr || b == nullptr ? a == b : *a == *b;
    };
    REQUIRE(set.size() == all.size());
    REQUIRE(same(set.first(bound), first));
    REQUIRE(same(set.first_from(from, bound), first_from));
    REQUIRE(same(set.last(bound), last));
  }
}
