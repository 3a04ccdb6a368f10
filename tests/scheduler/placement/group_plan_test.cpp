#include "scheduler/placement/group_plan.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <set>

#include "runtime/core/random.hpp"

using namespace troupe;
using namespace troupe::cluster;
using scheduler::name_of;
using scheduler::NodeIndex;
using scheduler::plan_group;

namespace {

/// CPUs and what is held of each GPU.
struct Size {
  int cpus = 0;
  GpuUse gpus;
};
const std::vector<Size> kSizes = [] {
  std::vector<Size> all;
  for (int cpus = 0; cpus < 3; ++cpus) {
    for (const GpuUse& gpus : std::vector<GpuUse>{{}, {0}, {kGpu / 2}, {0, kGpu / 2}})
      all.push_back({cpus, gpus});
  }
  return all;
}();
const std::vector<BundleDemand> kDemands{{kCpu, 0},        {2 * kCpu, 0}, {0, kGpu / 2},
                                         {kCpu, kGpu / 2}, {0, kGpu},     {kCpu, 2 * kGpu}};
const std::vector<PlacementStrategy> kStrategies{PlacementStrategy::kPack, PlacementStrategy::kSpread,
                                                 PlacementStrategy::kStrictPack,
                                                 PlacementStrategy::kStrictSpread};

NodeView view(std::uint64_t id, const Size& size) {
  return {NodeId{id}, "n" + std::to_string(id), size.cpus * kCpu, 0, 0, false, size.gpus};
}

NodeIndex index(const std::vector<NodeView>& nodes) {
  NodeIndex made;
  for (const NodeView& one : nodes) made.set(one);
  return made;
}

/// Takes the room of a bundle, if these GPUs of the node have it.
bool take(NodeView& node, const BundleDemand& bundle, const std::vector<std::uint32_t>& gpus) {
  if (static_cast<std::int64_t>(gpus.size()) != count_of_gpus(bundle.gpu_e4)) return false;
  if (std::set<std::uint32_t>(gpus.begin(), gpus.end()).size() != gpus.size()) return false;
  node.cpu_used_e4 += bundle.cpu_e4;
  for (const std::uint32_t gpu : gpus) {
    if (gpu >= node.gpus.size()) return false;
    node.gpus[gpu] += held_of_each(bundle.gpu_e4);
    if (node.gpus[gpu] > kGpu) return false;
  }
  return node.cpu_used_e4 <= node.cpu_e4;
}

/// Whether there is a placement at all: every node and every GPU is tried for every bundle.
bool exists(const GroupSpec& spec, std::vector<PlacedBundle> placed, const std::vector<NodeView>& nodes,
            std::size_t at = 0) {
  while (at < placed.size() && placed[at].node) ++at;
  if (at == placed.size()) return true;
  const BundleDemand& bundle = spec.bundles[at];
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const NodeId id = nodes[n].id;
    bool allowed = true;
    for (const PlacedBundle& other : placed) {
      if (!other.node) continue;
      if (spec.strategy == PlacementStrategy::kStrictPack) allowed = allowed && other.node == id;
      if (spec.strategy == PlacementStrategy::kStrictSpread) allowed = allowed && other.node != id;
    }
    if (!allowed) continue;
    const auto count = static_cast<std::uint32_t>(nodes[n].gpus.size());
    for (std::uint32_t which = 0; which < (1u << count); ++which) {
      std::vector<std::uint32_t> gpus;
      for (std::uint32_t gpu = 0; gpu < count; ++gpu) {
        if ((which >> gpu & 1u) != 0) gpus.push_back(gpu);
      }
      std::vector<NodeView> then = nodes;
      if (!take(then[n], bundle, gpus)) continue;
      auto next = placed;
      next[at] = {id, gpus};
      if (exists(spec, std::move(next), then, at + 1)) return true;
    }
  }
  return false;
}

/// That the plan has room, keeps to its strategy, and leaves what was kept. Gives the nodes as they are then.
std::vector<NodeView> check_plan(const GroupSpec& spec, const std::vector<PlacedBundle>& kept,
                                 const std::vector<PlacedBundle>& placed, std::vector<NodeView> nodes) {
  std::set<NodeId> on;
  bool fits = placed.size() == spec.bundles.size();
  for (std::size_t i = 0; fits && i < placed.size(); ++i) {
    on.insert(placed[i].node);
    if (kept[i].node) {
      fits = placed[i] == kept[i];
      continue;
    }
    fits = false;
    for (NodeView& node : nodes) {
      if (node.id == placed[i].node) fits = take(node, spec.bundles[i], placed[i].gpus);
    }
  }
  REQUIRE(fits);
  if (spec.strategy == PlacementStrategy::kStrictPack) REQUIRE(on.size() == 1);
  if (spec.strategy == PlacementStrategy::kStrictSpread) REQUIRE(on.size() == placed.size());
  return nodes;
}

/// Calls `visit` with every non-descending list of `length` numbers below `bound`.
void lists(std::size_t length, std::size_t bound,
           const std::function<void(const std::vector<std::size_t>&)>& visit) {
  std::vector<std::size_t> list;
  const std::function<void(std::size_t)> grow = [&](std::size_t from) {
    if (list.size() == length) return visit(list);
    for (std::size_t i = from; i < bound; ++i) {
      list.push_back(i);
      grow(i);
      list.pop_back();
    }
  };
  grow(0);
}

GroupSpec spec_of(PlacementStrategy strategy, std::vector<BundleDemand> bundles) {
  return {JobId{1}, "", strategy, std::move(bundles)};
}
BundleDemand cpus(double count) {
  return {static_cast<std::int64_t>(count * kCpu), 0};
}

}  // namespace

TEST_CASE("whenever there is a placement one is found, and it holds: every small case") {
  std::size_t cases = 0, placed_cases = 0, repaired = 0;
  SeededRandom random(7);
  for (std::size_t count = 1; count <= 3; ++count) {
    lists(count, kSizes.size(), [&](const std::vector<std::size_t>& sizes) {
      std::vector<NodeView> nodes;
      for (std::size_t i = 0; i < sizes.size(); ++i) nodes.push_back(view(i + 1, kSizes[sizes[i]]));
      const NodeIndex all = index(nodes);
      const std::size_t most = count == 3 ? 3 : 4;
      for (std::size_t bundles = 1; bundles <= most; ++bundles) {
        lists(bundles, kDemands.size(), [&](const std::vector<std::size_t>& demands) {
          for (const PlacementStrategy strategy : kStrategies) {
            GroupSpec spec = spec_of(strategy, {});
            for (const std::size_t demand : demands) spec.bundles.push_back(kDemands[demand]);
            const std::vector<PlacedBundle> none(bundles);
            const auto plan = plan_group(spec, none, all);
            ++cases;
            if (plan.is_placed != exists(spec, none, nodes)) {
              CAPTURE(sizes, demands, name_of(strategy), plan.reason);
              FAIL("a placement exists, or none does");
            }
            if (plan.reason.empty()) FAIL("it says no reason");
            if (!plan.is_placed) continue;
            ++placed_cases;
            // A node dies: what was there is placed on the others.
            auto then = check_plan(spec, none, plan.placed, nodes);
            if (random.below(8) != 0) continue;
            const NodeId dead = plan.placed[random.below(bundles)].node;
            auto kept = plan.placed;
            for (PlacedBundle& bundle : kept) {
              if (bundle.node == dead) bundle = {};
            }
            std::erase_if(then, [&](const NodeView& node) { return node.id == dead; });
            const auto again = plan_group(spec, kept, index(then));
            REQUIRE(again.is_placed == exists(spec, kept, then));
            if (again.is_placed) check_plan(spec, kept, again.placed, then);
            repaired += again.is_placed ? 1 : 0;
          }
        });
      }
    });
  }
  CHECK(cases > 100'000);
  CHECK(placed_cases > 10'000);
  CHECK(repaired > 500);
}

TEST_CASE("PACK takes one node if it can, and the one that has least free; SPREAD takes many") {
  const NodeIndex nodes = index({view(1, {8, {}}), view(2, {4, {}}), view(3, {2, {}})});
  const std::vector<PlacedBundle> none(3);
  const auto on = [](const scheduler::GroupPlan& plan) {
    std::vector<std::uint64_t> ids;
    for (const PlacedBundle& bundle : plan.placed) ids.push_back(bundle.node.value);
    return ids;
  };
  const std::vector<BundleDemand> ones{cpus(1), cpus(1), cpus(1)};
  CHECK(on(plan_group(spec_of(PlacementStrategy::kPack, ones), none, nodes)) ==
        std::vector<std::uint64_t>{2, 2, 2});
  CHECK(on(plan_group(spec_of(PlacementStrategy::kStrictPack, ones), none, nodes)) ==
        std::vector<std::uint64_t>{2, 2, 2});
  CHECK(on(plan_group(spec_of(PlacementStrategy::kSpread, ones), none, nodes)) ==
        std::vector<std::uint64_t>{1, 2, 3});
  CHECK(plan_group(spec_of(PlacementStrategy::kSpread, ones), none, nodes).reason ==
        "SPREAD on 3 nodes: n1, n2, n3");
  // More than any node has: two nodes do.
  CHECK(on(plan_group(spec_of(PlacementStrategy::kPack, {cpus(4), cpus(4), cpus(4)}), none, nodes)) ==
        std::vector<std::uint64_t>{1, 1, 2});
}

TEST_CASE("what waits says what it waits for") {
  const auto reason = [](PlacementStrategy strategy, const std::vector<BundleDemand>& bundles,
                         const std::vector<NodeView>& nodes) {
    const auto plan =
        plan_group(spec_of(strategy, bundles), std::vector<PlacedBundle>(bundles.size()), index(nodes));
    CHECK_FALSE(plan.is_placed);
    return plan.reason;
  };
  std::vector<NodeView> two{view(1, {4, {}}), view(2, {4, {}})};
  CHECK(reason(PlacementStrategy::kPack, {cpus(1)}, {}) == "no node has joined yet");
  CHECK(reason(PlacementStrategy::kPack, {cpus(1), cpus(64)}, two) ==
        "bundle 1: no node has 64 CPU at all: the largest has 4");
  CHECK(reason(PlacementStrategy::kStrictPack, {cpus(3), cpus(3)}, two) ==
        "STRICT_PACK wants all 2 bundles on one node, and none has 6 CPU: n1 has 4 of 4, n2 has 4 of 4; it "
        "waits for a node that has it");
  CHECK(
      reason(PlacementStrategy::kStrictSpread, {cpus(1), cpus(1), cpus(1)}, two) ==
      "STRICT_SPREAD wants a node for each of all 3 bundles, and the cluster has 2 nodes; it waits for more");
  CHECK(
      reason(PlacementStrategy::kStrictSpread, {cpus(3), cpus(3)}, {view(1, {4, {}}), view(2, {2, {}})}) ==
      "STRICT_SPREAD wants a node for each of all 2 bundles, and there is room for 1 (2 nodes): n1 has 4 of "
      "4, n2 has 2 of 2");
  CHECK(reason(PlacementStrategy::kPack, {cpus(3), cpus(3), cpus(3)}, two) ==
        "all 3 bundles do not fit at a time: they ask for 9 CPU: n1 has 4 of 4, n2 has 4 of 4");
  two[0].cpu_used_e4 = two[1].cpu_used_e4 = 3 * kCpu;
  CHECK(reason(PlacementStrategy::kSpread, {cpus(2)}, two) ==
        "bundle 0: no node has 2 CPU free: n1 has 1 of 4, n2 has 1 of 4");
  two[0].suspect = two[1].suspect = true;
  CHECK(reason(PlacementStrategy::kSpread, {cpus(1)}, two) ==
        "bundle 0: no node has 1 CPU free: n1 has 1 of 4 and is silent, n2 has 1 of 4 and is silent");
}

// Was: what waited for a node that no cluster has was told of those who hold room now.
TEST_CASE("a plan says whether any room that comes free would help") {
  std::vector<NodeView> nodes = {view(1, {2, {}}), view(2, {2, {}})};
  nodes[0].cpu_used_e4 = nodes[1].cpu_used_e4 = 2 * kCpu;
  const auto is_never = [&](PlacementStrategy strategy, const std::vector<BundleDemand>& bundles) {
    const auto plan =
        plan_group(spec_of(strategy, bundles), std::vector<PlacedBundle>(bundles.size()), index(nodes));
    CHECK_FALSE(plan.is_placed);
    return plan.is_never;
  };
  const std::vector<BundleDemand> two{cpus(2), cpus(2)}, three{cpus(2), cpus(2), cpus(2)};
  CHECK_FALSE(is_never(PlacementStrategy::kPack, two));
  CHECK(is_never(PlacementStrategy::kPack, {cpus(1), cpus(3)}));
  CHECK(is_never(PlacementStrategy::kStrictPack, two));
  CHECK_FALSE(is_never(PlacementStrategy::kStrictPack, {cpus(1), cpus(1)}));
  nodes[0].cpu_used_e4 = 0;
  CHECK_FALSE(is_never(PlacementStrategy::kStrictSpread, two));
  CHECK(is_never(PlacementStrategy::kStrictSpread, three));
}

TEST_CASE("a thousand bundles on a thousand nodes, and one too many for STRICT_SPREAD") {
  NodeIndex nodes;
  for (std::uint64_t id = 1; id <= 1000; ++id) nodes.set(view(id, {2, {}}));
  const std::vector<PlacedBundle> none(1000);
  const std::vector<BundleDemand> bundles(1000, cpus(2));
  for (const PlacementStrategy strategy :
       {PlacementStrategy::kPack, PlacementStrategy::kSpread, PlacementStrategy::kStrictSpread})
    CHECK(plan_group(spec_of(strategy, bundles), none, nodes).is_placed);
  nodes.remove(NodeId{5});
  for (const PlacementStrategy strategy : kStrategies)
    CHECK_FALSE(plan_group(spec_of(strategy, bundles), none, nodes).is_placed);
}

// Was: bundles that are alike were tried in every order, for two million looks.
// Every plan looked at every node several times: 8 bundles of CPUs on 10,000 nodes took milliseconds.
TEST_CASE("bundles of CPUs alone are placed without a look at every node") {
  NodeIndex nodes;
  for (std::uint64_t id = 1; id <= 1'000; ++id) {
    NodeView one = view(id, {16, {}});
    one.cpu_used_e4 = static_cast<std::int64_t>(id % 8) * kCpu;
    nodes.set(one);
  }
  NodeView silent = view(2'000, {64, {}});
  silent.suspect = true;
  nodes.set(silent);
  const std::vector<PlacedBundle> none(4);
  const auto placed = [&](PlacementStrategy strategy, const std::vector<BundleDemand>& bundles) {
    const auto plan = plan_group(spec_of(strategy, bundles), none, nodes);
    REQUIRE(plan.is_placed);
    CHECK(plan.looks <= 4);
    std::vector<std::uint64_t> on;
    for (const PlacedBundle& bundle : plan.placed) on.push_back(bundle.node.value);
    return on;
  };
  using On = std::vector<std::uint64_t>;
  // As the search had it: the node that has least free; the emptiest for the largest; the lower id of two.
  CHECK(placed(PlacementStrategy::kPack, std::vector(4, cpus(2.5))) == On{6, 6, 6, 6});
  CHECK(placed(PlacementStrategy::kStrictPack, std::vector(4, cpus(2.25))) == On{7, 7, 7, 7});
  CHECK(placed(PlacementStrategy::kSpread, {cpus(1), cpus(2), cpus(2), cpus(1)}) == On{24, 8, 16, 32});
  CHECK(placed(PlacementStrategy::kStrictSpread, {cpus(1), cpus(16), cpus(2), cpus(3)}) == On{32, 8, 24, 16});
}

TEST_CASE("bundles that are alike and do not fit are no long search") {
  NodeIndex nodes;
  const auto add = [&](std::uint64_t id, double cpus) {
    nodes.set({NodeId{id}, "n", static_cast<std::int64_t>(cpus * kCpu), 0, 0, false, {}});
  };
  for (std::uint64_t id = 1; id <= 20; ++id) add(id, id <= 10 ? 3 : 3.5);
  const std::vector<PlacedBundle> none(30);
  for (const PlacementStrategy strategy : {PlacementStrategy::kPack, PlacementStrategy::kSpread}) {
    const auto plan = plan_group(spec_of(strategy, std::vector(30, cpus(2))), none, nodes);
    CHECK_FALSE(plan.is_placed);
    CHECK_FALSE(plan.cut_off);
  }
  // Two kinds, of each of which alone there is room for all: 4 + 2 x 2.5 CPUs a node are too many.
  nodes = NodeIndex();
  for (std::uint64_t id = 1; id <= 4; ++id) add(id, 9 + static_cast<double>(id) / 100);
  std::vector<BundleDemand> two_kinds(4, cpus(4));
  two_kinds.resize(12, cpus(2.5));
  const auto plan =
      plan_group(spec_of(PlacementStrategy::kPack, two_kinds), std::vector<PlacedBundle>(12), nodes);
  CHECK(plan.is_placed);
  nodes = NodeIndex();
  for (std::uint64_t id = 1; id <= 4; ++id) add(id, 8.9 + static_cast<double>(id) / 100);
  const auto too_many =
      plan_group(spec_of(PlacementStrategy::kPack, two_kinds), std::vector<PlacedBundle>(12), nodes);
  CHECK_FALSE(too_many.is_placed);
  CHECK_FALSE(too_many.cut_off);
}

// Was: all nodes had one budget of looks, which the first took up.
TEST_CASE("a search on one node that is cut off leaves the next node its own, and says so") {
  // On 8 GPUs of which 0.95 is free each: 7.5 GPUs in tenths, where 0.9 of each can be used.
  std::vector<BundleDemand> parts;
  for (int i = 0; i < 9; ++i) parts.push_back({0, kGpu / 10 * 4});
  for (int i = 0; i < 7; ++i) parts.push_back({0, kGpu / 10 * 3});
  for (int i = 0; i < 9; ++i) parts.push_back({0, kGpu / 10 * 2});
  std::vector<NodeView> nodes{view(1, {1, GpuUse(8, kGpu / 20)}), view(2, {2, GpuUse(8, kGpu / 20)})};
  const std::vector<PlacedBundle> none(parts.size());
  const auto on = [&](PlacementStrategy strategy) {
    return plan_group(spec_of(strategy, parts), none, index(nodes));
  };
  const auto cut = on(PlacementStrategy::kStrictPack);
  CHECK_FALSE(cut.is_placed);
  CHECK(cut.cut_off);
  CHECK(cut.reason.find("before the search was cut off (STRICT_PACK; it is tried again)") !=
        std::string::npos);
  nodes.push_back(view(3, {3, GpuUse(9, 0)}));
  for (const PlacementStrategy strategy : {PlacementStrategy::kStrictPack, PlacementStrategy::kPack}) {
    const auto plan = on(strategy);
    CHECK(plan.is_placed);
    CHECK_FALSE(plan.cut_off);
    CHECK(plan.reason == std::string(name_of(strategy)) + " on 1 node: n3");
  }
}

// Was: a node for each of 1,000 bundles was looked for in 10,000 nodes as long as it took, at every event.
TEST_CASE("a long search for STRICT_SPREAD is cut off, and says so") {
  NodeIndex nodes;
  const auto add = [&](std::uint64_t id, int cpus_of, const GpuUse& gpus) {
    nodes.set(view(id, {cpus_of, gpus}));
  };
  for (std::uint64_t id = 1; id <= 10'000; ++id) add(id, 1 + static_cast<int>(id % 4), {0});
  std::vector<BundleDemand> alike(1000, BundleDemand{4 * kCpu, kGpu});
  const auto plan = [&](const std::vector<BundleDemand>& bundles) {
    return plan_group(spec_of(PlacementStrategy::kStrictSpread, bundles),
                      std::vector<PlacedBundle>(bundles.size()), nodes);
  };
  CHECK(plan(alike).is_placed);
  CHECK(plan(alike).looks < 100'000);
  for (std::uint64_t id = 3; id <= 10'000; id += 4) nodes.remove(NodeId{id});  // those of 4 CPUs
  for (std::uint64_t id = 3; id <= 999 * 4; id += 4) add(id, 4, {0});
  const auto too_many = plan(alike);
  CHECK_FALSE(too_many.is_placed);
  CHECK_FALSE(too_many.cut_off);
  CHECK(too_many.looks < 100'000);

  // More of a resource or more of a GPU, never both: each bundle has one node that it fits.
  nodes = NodeIndex();
  for (int id = 1; id <= 3000; ++id)
    nodes.set({NodeId{std::uint64_t(id)}, "n", kCpu, 0, 0, false, {id}, {{{"tpu", 10'000 + id}}, {}}});
  std::vector<BundleDemand> different;
  for (int i = 1; i <= 2000; ++i) different.push_back({0, kGpu - 3000 + i, {{{"tpu", 13'000 - i}}, {}}});
  const auto cut = plan(different);
  CHECK_FALSE(cut.is_placed);
  CHECK(cut.cut_off);
  CHECK(cut.looks < 10'000'000);
  CHECK(cut.reason.find("before the search was cut off (STRICT_SPREAD; it is tried again)") !=
        std::string::npos);
  different.resize(200);
  CHECK(plan(different).is_placed);
}
