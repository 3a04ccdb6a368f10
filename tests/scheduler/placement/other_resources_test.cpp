// Memory, custom resources and labels: what is refused, and where actors and groups go.
#include <catch2/catch.hpp>
#include <limits>

#include "runtime/core/random.hpp"
#include "scheduler/placement/group_plan.hpp"

using namespace troupe;
using namespace troupe::cluster;
using scheduler::NodeIndex;
using scheduler::plan_group;

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

NodeView node_with(std::uint64_t id, int cpus, OtherResources other) {
  NodeView view{NodeId{id}, "n" + std::to_string(id), cpus * kCpu};
  view.other = std::move(other);
  return view;
}
ActorDemand demand_for(int cpus, OtherResources other, bool isolated = true) {
  return {cpus * kCpu, isolated, {}, 0, {}, -1, std::move(other)};
}
OtherResources tpus(double count) {
  return other_resources(0, {{"tpu", count}}, {});
}

/// Whether there is a placement: every node is tried for every bundle.
bool can_be_placed(const GroupSpec& spec, std::size_t at, std::vector<NodeView>& nodes,
                   std::vector<int>& bundles) {
  if (at == spec.bundles.size()) return true;
  const BundleDemand& bundle = spec.bundles[at];
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const bool others = std::any_of(bundles.begin(), bundles.end(), [](int count) { return count > 0; });
    if (spec.strategy == PlacementStrategy::kStrictSpread && bundles[i] > 0) continue;
    if (spec.strategy == PlacementStrategy::kStrictPack && others && bundles[i] == 0) continue;
    NodeView& node = nodes[i];
    if (node.cpu_e4 - node.cpu_used_e4 < bundle.cpu_e4 ||
        !has_amounts(node.other.amounts, node.other_used, bundle.other.amounts) ||
        !has_labels(node.other.labels, bundle.other.labels))
      continue;
    const NodeView before = node;
    node.cpu_used_e4 += bundle.cpu_e4;
    add_amounts(node.other_used, bundle.other.amounts, 1);
    ++bundles[i];
    const bool found = can_be_placed(spec, at + 1, nodes, bundles);
    node = before;
    --bundles[i];
    if (found) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("amounts and labels that make no sense are refused with what is wrong") {
  const auto wrong = [](std::int64_t memory, std::map<std::string, double> resources,
                        std::map<std::string, std::string> labels = {}) {
    return wrong_about(other_resources(memory, resources, labels));
  };
  CHECK(wrong(512 * kMiB, {{"tpu", 1.5}, {"a.b/c", 0}}, {{"zone", "eu-1"}}).empty());
  CHECK(wrong(-1, {}) == "memory is not 1 byte to 256 TiB");
  CHECK(wrong(0, {{"tpu", -1}}) == "the amount of tpu, -1, is not 0.0001 to 1,000,000,000");
  CHECK(wrong(0, {{"tpu", std::numeric_limits<double>::quiet_NaN()}}) ==
        "the amount of tpu is not 0.0001 to 1,000,000,000");
  CHECK(wrong(0, {{"tpu", 0.00001}}) == "the amount of tpu, 0, is not 0.0001 to 1,000,000,000");
  CHECK(wrong(0, {{"tpu", 1e10}}) == "the amount of tpu is not 0.0001 to 1,000,000,000");
  CHECK(wrong(0, {{"GPU", 1}}) == "GPU is no custom resource: it has an option of its own");
  CHECK(wrong(0, {{"memory", 1}}) == "memory is no custom resource: it has an option of its own");
  CHECK(wrong(kMiB, {{"memory", 1}}) == "memory is no custom resource: it has an option of its own");
  CHECK_FALSE(wrong(0, {{"a b", 1}}).empty());
  CHECK_FALSE(wrong(0, {{"", 1}}).empty());
  CHECK_FALSE(wrong(0, {}, {{"zone", ""}}).empty());
  CHECK_FALSE(wrong(0, {}, {{"zone", std::string(65, 'a')}}).empty());
  CHECK_FALSE(wrong_about({{{"b", 1}, {"a", 1}}, {}}).empty());  // of a peer: not in order
  std::map<std::string, double> many;
  for (int i = 0; i < 65; ++i) many["r" + std::to_string(i)] = 1;
  CHECK(wrong(0, many) == "65 custom resources are more than 64");
  many.erase("r0");
  CHECK(wrong(kMiB, many).empty());  // was: memory made them 65
}

TEST_CASE("an actor goes where its memory, resources and labels are, and hears why it does not") {
  NodeIndex index;
  index.set(node_with(1, 4, other_resources(256 * kMiB, {{"tpu", 2}}, {{"zone", "a"}})));
  index.set(node_with(2, 8, other_resources(1024 * kMiB, {}, {{"zone", "b"}})));
  const auto tpu = index.place(demand_for(1, tpus(2)));
  CHECK(tpu.node == NodeId{1});
  CHECK(tpu.reason == "least used node that has 1 CPU, 2 tpu: n1 has 4 of 4 CPU, 2 of 2 tpu");
  CHECK(index.place(demand_for(0, other_resources(512 * kMiB, {}, {}))).node == NodeId{2});
  for (const bool isolated : {true, false}) {
    CHECK(index.place(demand_for(0, other_resources(0, {}, {{"zone", "b"}}), isolated)).node == NodeId{2});
    CHECK(index.place(demand_for(1, tpus(1), isolated)).node == NodeId{1});
  }
  const auto never = [&](const OtherResources& other, int cpus = 0) {
    const auto placement = index.place(demand_for(cpus, other));
    CHECK(placement.verdict == PlacementVerdict::kNever);
    return placement.reason;
  };
  CHECK(never(other_resources(0, {{"fpga", 1}}, {})) == "no node has resource fpga");
  CHECK(never(tpus(3)) == "no node has 3 tpu at all: the most of one is 2 tpu");
  CHECK(never(other_resources(2048 * kMiB, {}, {})) ==
        "no node has 2 GiB of memory at all: the most of one is 1 GiB of memory");
  CHECK(never(other_resources(0, {}, {{"zone", "c"}})) == "no node has the label zone=c");
  CHECK(never(other_resources(0, {{"tpu", 1}}, {{"zone", "b"}})) ==
        "no node has 1 tpu, label zone=b at all together");
  CHECK(never(tpus(1), 8) == "no node has 8 CPU, 1 tpu at all");

  NodeView busy = index.nodes().at(NodeId{1});
  busy.other_used = tpus(1.5).amounts;
  index.set(busy);
  CHECK(index.place(demand_for(1, tpus(1))).verdict == PlacementVerdict::kWait);
  CHECK(index.why_waits(demand_for(1, tpus(1))) ==
        "no node has 1 CPU, 1 tpu free: n1 has 4 of 4 CPU, 0.5 of 2 tpu");
  CHECK(index.place(demand_for(1, tpus(0.5))).node == NodeId{1});
  ActorDemand bound = demand_for(0, tpus(1));
  bound.affinity = NodeId{2};
  CHECK(index.place(bound).verdict == PlacementVerdict::kNever);
}

TEST_CASE("isolated actors that ask for a resource are spread, others are packed, as all are") {
  NodeIndex index;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    NodeView view = node_with(id, 4, tpus(4));
    view.cpu_used_e4 = static_cast<std::int64_t>(id) * kCpu;
    index.set(view);
  }
  CHECK(index.place(demand_for(1, tpus(1))).node == NodeId{1});
  CHECK(index.place(demand_for(1, tpus(1), false)).node == NodeId{3});
  CHECK(index.place(demand_for(2, tpus(1), false)).node == NodeId{2});
}

TEST_CASE("a group is placed whenever it can be: against a search that tries all") {
  SeededRandom random(7);
  const auto below = [&](std::uint64_t n) { return random.next() % n; };
  int placed = 0, not_placed = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<NodeView> nodes;
    for (std::uint64_t id = 1; id <= 1 + below(4); ++id) {
      const char* zones[] = {"a", "b"};
      nodes.push_back(
          node_with(id, static_cast<int>(below(4)),
                    other_resources(static_cast<std::int64_t>(below(3)) * kMiB,
                                    {{"tpu", static_cast<double>(below(3))}}, {{"zone", zones[below(2)]}})));
    }
    GroupSpec spec;
    spec.strategy = static_cast<PlacementStrategy>(below(4));
    for (std::uint64_t i = 0; i < 1 + below(4); ++i) {
      std::map<std::string, std::string> labels;
      if (below(3) == 0) labels["zone"] = below(2) == 0 ? "a" : "b";
      spec.bundles.push_back({static_cast<std::int64_t>(below(3)) * kCpu, 0,
                              other_resources(static_cast<std::int64_t>(below(2)) * kMiB,
                                              {{"tpu", static_cast<double>(below(3)) / 2}}, labels)});
    }
    NodeIndex index;
    for (const NodeView& node : nodes) index.set(node);
    const std::vector<PlacedBundle> none(spec.bundles.size());
    const auto plan = plan_group(spec, none, index);
    std::vector<int> bundles(nodes.size());
    INFO("round " << round << ": " << plan.reason);
    REQUIRE(plan.is_placed == can_be_placed(spec, 0, nodes, bundles));
    ++(plan.is_placed ? placed : not_placed);
    std::set<NodeId> on;
    for (std::size_t i = 0; i < plan.placed.size(); ++i) {
      NodeView& node = nodes[plan.placed[i].node.value - 1];
      on.insert(node.id);
      REQUIRE(has_labels(node.other.labels, spec.bundles[i].other.labels));
      node.cpu_used_e4 += spec.bundles[i].cpu_e4;
      add_amounts(node.other_used, spec.bundles[i].other.amounts, 1);
      REQUIRE((node.cpu_used_e4 <= node.cpu_e4 && has_amounts(node.other.amounts, node.other_used, {})));
      for (const ResourceAmount& used : node.other_used)
        REQUIRE(used.amount <= amount_of(node.other.amounts, used.name));
    }
    if (plan.is_placed && spec.strategy == PlacementStrategy::kStrictPack) REQUIRE(on.size() == 1);
    if (plan.is_placed && spec.strategy == PlacementStrategy::kStrictSpread)
      REQUIRE(on.size() == plan.placed.size());
  }
  CHECK(placed > 500);
  CHECK(not_placed > 500);
}

TEST_CASE("a group whose bundles no node has says which resource, and waits") {
  NodeIndex index;
  index.set(node_with(1, 4, tpus(2)));
  GroupSpec spec;
  spec.bundles = {{kCpu, 0, tpus(1)}, {kCpu, 0, other_resources(0, {{"fpga", 1}}, {})}};
  const auto never = plan_group(spec, std::vector<PlacedBundle>(2), index);
  CHECK(never.is_never);
  CHECK(never.reason == "bundle 1: no node has resource fpga");
  spec.bundles = {{kCpu, 0, tpus(2)}, {kCpu, 0, tpus(1)}};
  spec.strategy = PlacementStrategy::kStrictPack;
  const auto packed = plan_group(spec, std::vector<PlacedBundle>(2), index);
  CHECK(packed.is_never);
  CHECK(packed.reason ==
        "STRICT_PACK wants all 2 bundles on one node, and none has 2 CPU, 3 tpu: none has that in all; it "
        "waits "
        "for a node that has it");
}

// Was: bundles without labels went first, took the one node that has the label, and the search was cut off.
TEST_CASE("a bundle that wants a label gets its node before others take that") {
  NodeIndex index;
  for (std::uint64_t id = 1; id <= 30; ++id) {
    NodeView view = node_with(id, 1, other_resources(0, {}, {{"zone", id == 30 ? "a" : "b"}}));
    view.cpu_e4 += static_cast<std::int64_t>(id) * 100;  // no two are alike, and that one has most
    index.set(view);
  }
  GroupSpec spec;
  spec.strategy = PlacementStrategy::kSpread;
  spec.bundles = std::vector<BundleDemand>(15, BundleDemand{kCpu, 0});
  spec.bundles.push_back({kCpu, 0, other_resources(0, {}, {{"zone", "a"}})});
  const auto plan = plan_group(spec, std::vector<PlacedBundle>(16), index);
  INFO(plan.reason);
  REQUIRE(plan.is_placed);
  CHECK(plan.placed[15].node == NodeId{30});
}

// Was: the sum of CPUs and GPUs was looked at, and that of nothing else.
TEST_CASE("bundles that ask for more of a resource than all nodes have are no long search") {
  NodeIndex index;
  for (std::uint64_t id = 1; id <= 4; ++id)
    index.set(node_with(id, 1, tpus(8.9 + static_cast<double>(id) / 100)));
  GroupSpec spec;
  spec.bundles = std::vector<BundleDemand>(4, BundleDemand{0, 0, tpus(4)});
  spec.bundles.resize(12, BundleDemand{0, 0, tpus(2.5)});
  const auto plan = plan_group(spec, std::vector<PlacedBundle>(12), index);
  CHECK_FALSE(plan.is_placed);
  CHECK_FALSE(plan.cut_off);
  CHECK(plan.looks < 100);
}

// Was: "none has that in all", as if one node were to have it.
TEST_CASE("bundles that do not fit at a time are told what each node has of what they ask for together") {
  NodeIndex index;
  index.set(node_with(1, 4, other_resources(0, {{"tpu", 2}}, {{"zone", "a"}})));
  index.set(node_with(2, 4, other_resources(0, {{"tpu", 1}}, {{"zone", "b"}})));
  index.set(node_with(3, 4, {}));
  GroupSpec spec;
  spec.bundles = std::vector<BundleDemand>(3, BundleDemand{0, 0, tpus(1)});
  spec.bundles.push_back({0, 0, other_resources(0, {{"tpu", 1}}, {{"zone", "b"}})});
  const auto plan = plan_group(spec, std::vector<PlacedBundle>(4), index);
  CHECK_FALSE(plan.is_placed);
  CHECK(plan.reason ==
        "all 4 bundles do not fit at a time: they ask for 4 tpu: n1 has 2 of 2 tpu, n2 has 1 of 1 tpu");
}

// What is placed without a look at every node is placed where a look at every node would have put it.
TEST_CASE("a group is placed on the nodes that a search over all of them takes") {
  SeededRandom random(11);
  std::size_t placed = 0, quick = 0;
  for (int round = 0; round < 6'000; ++round) {
    NodeIndex index;
    const std::uint64_t count = 2 + random.below(14);
    for (std::uint64_t id = 1; id <= count; ++id) {
      OtherResources other;
      if (random.below(3) > 0)
        other.amounts.push_back({"memory", static_cast<std::int64_t>(random.below(5) + 1)});
      if (random.below(3) > 0)
        other.amounts.push_back({"tpu", static_cast<std::int64_t>(random.below(4) + 1)});
      if (random.below(2) > 0) other.labels.push_back({"zone", random.below(2) > 0 ? "a" : "b"});
      NodeView node = node_with(id, static_cast<int>(random.below(5)), other);
      for (const ResourceAmount& one : other.amounts) {
        const auto held = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(one.amount) + 1));
        if (held > 0) node.other_used.push_back({one.name, held});
      }
      for (std::uint64_t gpu = random.below(4); gpu > 0; --gpu)
        node.gpus.push_back(static_cast<std::int64_t>(random.below(3)) * kGpu / 2);
      node.cpu_used_e4 = static_cast<std::int64_t>(random.below(2)) * kCpu;
      node.suspect = random.below(10) == 0;
      index.set(node);
      if (random.below(8) > 0) continue;
      index.remove(node.id);
      if (random.below(2) > 0) index.set(node_with(id, 2, tpus(3)));
    }
    constexpr PlacementStrategy kAll[] = {PlacementStrategy::kPack, PlacementStrategy::kSpread,
                                          PlacementStrategy::kStrictPack, PlacementStrategy::kStrictSpread};
    GroupSpec spec{JobId{1}, "", kAll[random.below(4)], {}};
    for (std::uint64_t bundles = random.below(4) + 1; bundles > 0; --bundles) {
      BundleDemand bundle{static_cast<std::int64_t>(random.below(3)) * kCpu};
      const std::uint64_t gpus = random.below(4);
      if (gpus > 1) bundle.gpu_e4 = gpus == 2 ? kGpu / 2 : kGpu;
      if (random.below(3) == 0)
        bundle.other.amounts.push_back({"memory", static_cast<std::int64_t>(random.below(3) + 1)});
      if (random.below(3) == 0)
        bundle.other.amounts.push_back({"tpu", static_cast<std::int64_t>(random.below(2) + 1)});
      if (random.below(4) == 0) bundle.other.labels.push_back({"zone", "a"});
      if (bundle == BundleDemand{}) bundle.cpu_e4 = kCpu;
      spec.bundles.push_back(bundle);
      if (random.below(2) > 0) spec.bundles.push_back(bundle);
    }
    const std::vector<PlacedBundle> none(spec.bundles.size());
    const auto plan = plan_group(spec, none, index);
    const auto searched = scheduler::plan_group_by_search(spec, none, index);
    CAPTURE(round, plan.reason, searched.reason);
    REQUIRE(plan.is_placed == searched.is_placed);
    REQUIRE(plan.placed == searched.placed);
    REQUIRE(plan.reason == searched.reason);
    placed += plan.is_placed ? 1 : 0;
    quick += plan.is_placed && plan.looks != searched.looks ? 1 : 0;
  }
  CHECK(placed > 1'000);
  CHECK(quick > 800);
}

// Was: every group that asked for a GPU, memory or a resource looked at all nodes several times:
// milliseconds.
TEST_CASE("a group that asks for GPUs or resources is placed without a look at every node") {
  NodeIndex index;
  for (std::uint64_t id = 1; id <= 10'000; ++id) {
    NodeView node =
        node_with(id, 16, other_resources(64 * kMiB, {{"tpu", 4}}, {{"zone", id % 3 == 0 ? "a" : "b"}}));
    if (id % 100 == 0) node.other = other_resources(64 * kMiB, {{"tpu", 4}, {"fpga", 2}}, {{"zone", "a"}});
    if (id != 7'000) node.other_used = {{"tpu", 3 * kCpu}};  // one alone has more than one left
    node.gpus.assign(8, 0);
    index.set(node);
  }
  const auto looks = [&](PlacementStrategy strategy, const BundleDemand& bundle) {
    const auto plan =
        plan_group({JobId{1}, "", strategy, std::vector(4, bundle)}, std::vector<PlacedBundle>(4), index);
    REQUIRE(plan.is_placed);
    return plan.looks;
  };
  const auto of = [](std::int64_t gpus, const OtherResources& other) {
    return BundleDemand{kCpu, gpus * kGpu, other};
  };
  for (const PlacementStrategy strategy : {PlacementStrategy::kPack, PlacementStrategy::kStrictPack,
                                           PlacementStrategy::kSpread, PlacementStrategy::kStrictSpread}) {
    CHECK(looks(strategy, of(0, tpus(1))) <= 4);
    CHECK(looks(strategy, of(0, other_resources(kMiB, {}, {}))) <= 4);
    CHECK(looks(strategy, of(2, {})) <= 20);  // of which four for each bundle to find its GPUs
    CHECK(looks(strategy, of(0, other_resources(0, {}, {{"zone", "a"}}))) <= 20);
  }
  CHECK(looks(PlacementStrategy::kStrictSpread, of(0, other_resources(0, {{"fpga", 1}}, {}))) <= 4);
}
