/// Every operation of the native group against its definition: the matrix of every_op.hpp over layouts of
/// ranks on hosts and leaves on ranks, and what only this backend has.

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "collectives/native/leaf_sums.hpp"
#include "collectives/native/region.hpp"
#include "tests/collectives/library_checks.hpp"
#include "tests/collectives/ranks.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

using Nodes = std::vector<std::vector<int>>;

/// All on one machine, by turns on two, the first and the second half on two, each on its own.
std::vector<Nodes> layouts_of(int size) {
  Nodes one(1), two(2), halves(2), alone;
  for (int r = 0; r < size; ++r) {
    one[0].push_back(r);
    two[static_cast<std::size_t>(r % 2)].push_back(r);
    halves[2 * r < size ? 0 : 1].push_back(r);
    alone.push_back({r});
  }
  if (size == 1) return {one};
  if (size == 2) return {one, alone};
  return {one, two, halves, alone};
}

/// Each rank on a host of its own, but for those of `beside`, which are on that of the rank before.
Nodes alone_but(int size, const std::vector<int>& beside) {
  Nodes nodes;
  for (int rank = 0; rank < size; ++rank) {
    const bool joins = std::find(beside.begin(), beside.end(), rank) != beside.end();
    joins ? nodes.back().push_back(rank) : nodes.push_back({rank});
  }
  return nodes;
}

/// With an arena in the group's memory, of `megabytes` less one.
void run_all(int size, const Nodes& nodes, const std::vector<OpSpec>& specs, std::size_t megabytes = 8) {
  CAPTURE(size, nodes);
  run(size, {.nodes = nodes, .data_bytes = megabytes << 20}, [&](ProcessGroup& group) {
    const Buffer arena = group.allocate((megabytes - 1) << 20, DType::kUInt8);
    run_specs(group, specs, specs.size(), {static_cast<std::byte*>(arena.data), arena.count});
  });
}

void run_trees(int size, int leaves, const Nodes& nodes, const std::vector<OpSpec>& specs) {
  CAPTURE(size, leaves, nodes);
  run(size, {.leaves = deal_leaves(leaves, size), .nodes = nodes, .data_bytes = 64 << 20},
      [&](ProcessGroup& group) { run_specs(group, specs, specs.size()); });
}

}  // namespace

TEST_CASE("the matrix of operations, over numbers of ranks and layouts on hosts") {
  for (int size = 1; size <= 4; ++size) {
    for (const auto& nodes : layouts_of(size)) {
      run_all(size, nodes, every_spec(size, 100));
      for (const std::size_t count : {2000, 20000}) run_all(size, nodes, specs_of(size, count));
    }
  }
  run_all(8, {}, specs_of(8, 700));
  run_all(6, {{0, 3}, {1, 4}, {2, 5}}, specs_of(6, 700));
}

TEST_CASE("every operation over several chunks, in every place of its buffers") {
  for (const int size : {2, 3}) {
    for (const auto& nodes : layouts_of(size)) {
      const auto specs = specs_of(size, 2 * kChunkBytes / sizeof(float) + 1009);
      for (int lap = 0; lap < 3; ++lap) run_all(size, nodes, specs, 16);
    }
  }
}

TEST_CASE("a host passes on what others read, however many hosts, ranks of one and roots there are") {
  run_all(24, alone_but(24, {3, 7, 8, 20}), specs_of(24, 5), 2);
  run_all(24, alone_but(24, {3, 7, 8, 20}), specs_of(24, 3000), 2);
  for (const int size : {7, 8, 12}) run_all(size, alone_but(size, {}), specs_of(size, 17), 2);
  Nodes crowd(3);  // 2 x 4 connections, and 13 ranks on one host without one of their own
  for (int rank = 0; rank < 16; ++rank) crowd[rank == 3 ? 1 : rank == 11 ? 2 : 0].push_back(rank);
  const auto options = options_of(16, {.nodes = crowd});
  CHECK(std::count_if(options.begin(), options.end(), [](const auto& o) { return o.remote.empty(); }) == 12);
  for (const std::size_t count : {1, 30000}) run_all(16, crowd, specs_of(16, count), 2);
}

TEST_CASE("trees of every dtype and reduction, for every number of ranks and leaves") {
  for (int size = 1; size <= 6; ++size) {
    for (int leaves = size; leaves <= 9; ++leaves)
      run_trees(size, leaves, {}, tree_specs(leaves, 150, static_cast<std::uint64_t>(leaves)));
  }
}

TEST_CASE("trees over ranks that are scattered over hosts, small and of several rounds") {
  const std::uint64_t seed = 4711;
  SeededRandom random(seed);
  for (const auto& nodes : layouts_of(4)) run_trees(4, 7, nodes, tree_specs(7, 1000, 3));
  for (int i = 0; i < 30; ++i) {
    const int size = 2 + static_cast<int>(random.below(6));
    const int leaves = size + static_cast<int>(random.below(6));
    Nodes nodes(1 + random.below(4));
    std::size_t host = 0;
    for (int r = 0; r < size; ++r) {
      if (random.below(2) == 0) host = random.below(nodes.size());  // else beside the rank before
      nodes[host].push_back(r);
    }
    std::erase_if(nodes, [](const auto& ranks) { return ranks.empty(); });
    auto specs = tree_specs(leaves, 100, random.next());
    specs.resize(12);
    specs.back() = {
        OpKind::kAllReduceTree, DType::kFloat32, ReduceOp::kAvg, 100'000 + random.below(50'000), 0,
        random.next(),          leaves};
    CAPTURE(seed, i);
    run_trees(size, leaves, nodes, specs);
  }
}

TEST_CASE("messages, refusals, works, rounding, batches and complex numbers, on one host and on two") {
  for (const Nodes& nodes : {Nodes{{0, 1, 2}}, Nodes{{0, 1}, {2}}}) {
    run(3, {.nodes = nodes}, [](ProcessGroup& group) {
      check_messages(group);
      check_refusals(group);
      check_works(group);
      check_rounding(group);
      check_batch(group);
      check_complex(group);
    });
  }
}

TEST_CASE("a host adds up what its adjacent ranks have, as far as the tree allows") {
  const HostLayout layout({0, 0, 0, 1, 0, 1, 1});
  CHECK(layout.host_groups() == std::vector<LeafInterval>{{0, 3}, {3, 4}, {4, 5}, {5, 7}});
  CHECK(layout.ranks_with(4) == std::vector{0, 1, 2, 4});
  const LeafSums sums(deal_leaves(7, 7), layout, 1);
  CHECK(sums.of_rank == std::vector<std::size_t>(7, 1));
  CHECK(sums.of_group == std::vector<std::size_t>{2, 1, 1, 2});  // 0-1 and 2; 5 and 6 have no common node
  CHECK((sums.of_host == std::vector<std::size_t>{3, 3} && sums.apart == std::vector<std::size_t>{4, 3}));
  REQUIRE(sums.own_host.size() == 3);
  CHECK((sums.own_host[0].sources == 2 && sums.own_host[1].sources == 1 && sums.own_host[2].sources == 1));
}

TEST_CASE("operations launched ahead complete in any order of waiting") {
  for (const auto& nodes :
       {std::vector<std::vector<int>>{{0, 1, 2}}, std::vector<std::vector<int>>{{0}, {1, 2}}}) {
    run(3, {.nodes = nodes, .data_bytes = 4 << 20}, [](ProcessGroup& group) {
      constexpr std::size_t kCount = 5003;
      constexpr int kLaunches = 100;  // more than may be in flight
      std::vector<TreeBuffer> trees;
      std::vector<std::vector<float>> privates(kLaunches, std::vector<float>(70001, 1.0F));
      std::vector<std::shared_ptr<Work>> works;
      for (int i = 0; i < kLaunches; ++i) {
        trees.push_back(group.allocate_tree(kCount, DType::kFloat32));
        auto* values = reinterpret_cast<float*>(trees.back().partials[0]);
        for (std::size_t k = 0; k < kCount; ++k) values[k] = static_cast<float>(i + group.rank());
        works.push_back(group.all_reduce_tree(trees.back(), ReduceOp::kSum));
        auto& own = privates[static_cast<std::size_t>(i)];
        works.push_back(group.all_reduce({.data = own.data(), .count = own.size()}, ReduceOp::kSum));
        if (i % 10 == 0) works.push_back(group.barrier());
      }
      std::reverse(works.begin(), works.end());
      for (auto& work : works) work->wait();
      for (int i = 0; i < kLaunches; ++i) {
        const auto* values = reinterpret_cast<const float*>(trees[static_cast<std::size_t>(i)].partials[0]);
        for (std::size_t k = 0; k < kCount; ++k) {
          if (values[k] != static_cast<float>(3 * i + 3)) throw std::runtime_error("wrong tree sum");
        }
        for (float value : privates[static_cast<std::size_t>(i)]) {
          if (value != 3.0F) throw std::runtime_error("wrong sum");
        }
      }
    });
  }
}

TEST_CASE(
    "an input is its owner's again once the operation is complete, whoever read it for other machines") {
  for (const auto& nodes : layouts_of(4)) {
    run(4, {.nodes = nodes, .data_bytes = 8 << 20}, [](ProcessGroup& group) {
      for (const std::size_t part : {std::size_t{5000}, std::size_t{100000}}) {
        const auto input = group.allocate<float>(4 * part);
        std::vector<float> output(part);
        for (int i = 1; i <= 60; ++i) {
          std::fill(input.begin(), input.end(), static_cast<float>(i * (group.rank() + 1)));
          const auto work = group.reduce_scatter(std::span<const float>(input), std::span(output));
          if (i % 3 == group.rank()) std::this_thread::sleep_for(std::chrono::microseconds(500));
          work->wait();
          std::fill(input.begin(), input.end(), -1.0F);
          const auto wrong =
              std::count_if(output.begin(), output.end(), [&](float v) { return v != 10.0F * i; });
          if (wrong != 0) throw std::runtime_error("wrong sums in round " + std::to_string(i));
        }
      }
    });
  }
}

TEST_CASE("ranks that are ahead in small operations write over nothing that others still read") {
  for (const auto& nodes : layouts_of(3)) {
    run(3, {.nodes = nodes}, [](ProcessGroup& group) {
      SeededRandom random(mix(17, static_cast<std::uint64_t>(group.rank())));
      constexpr int kCalls = 3000;
      std::vector<std::int32_t> values(kCalls), sums(kCalls), gathered(3);
      std::vector<std::shared_ptr<Work>> works;
      for (int i = 0; i < kCalls; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (random.below(200) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        values[at] = group.rank() == 1 ? i : -1;
        sums[at] = i * (group.rank() + 1);
        works.push_back(group.broadcast(std::span(values).subspan(at, 1), 1));
        works.push_back(group.all_reduce(std::span(sums).subspan(at, 1)));
        if (i % 7 == 0) works.push_back(group.barrier());
        if (i % 100 == 0) {
          const std::int32_t own = i * (group.rank() + 1);
          group.all_gather(std::span(&own, 1), std::span(gathered))->wait();
          if (gathered != std::vector{i, 2 * i, 3 * i}) throw std::runtime_error("wrong all_gather");
        }
        if (random.below(20) != 0) continue;
        for (auto& work : works) work->wait();
        works.clear();
      }
      for (auto& work : works) work->wait();
      for (int i = 0; i < kCalls; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (values[at] != i || sums[at] != 6 * i) throw std::runtime_error("wrong at " + std::to_string(i));
      }
    });
  }
}

/// A program that allocated 200 MB, used and dropped them failed at the second time: memory came back with
/// the group's end alone, and nothing could give it back before.
TEST_CASE("memory of the group that is given back is given out again, with zeros in it") {
  constexpr std::size_t kCount = 200'000;  // 800 KB of 1 MiB
  for (const auto& nodes : layouts_of(4)) {
    run(4, {.nodes = nodes, .data_bytes = 1 << 20}, [](ProcessGroup& group) {
      for (int i = 1; i <= 20; ++i) {
        const auto values = group.allocate<float>(kCount);
        require(std::count(values.begin(), values.end(), 0.0F) == kCount, "not zeros");
        std::fill(values.begin(), values.end(), static_cast<float>(i * (group.rank() + 1)));
        group.all_reduce(values)->wait();
        require(std::count(values.begin(), values.end(), 10.0F * static_cast<float>(i)) == kCount, "a sum");
        group.deallocate(values);
      }
      // The tree is where the buffers were, and stays.
      const TreeBuffer tree = group.allocate_tree(1000, DType::kFloat32);
      require(*reinterpret_cast<float*>(tree.partials.front()) == 0, "not zeros in a tree");
      group.deallocate(group.allocate<float>(kCount));
      check_memory(group);
      group.all_reduce_tree(tree, {})->wait();
    });
  }
}

/// Each rank says where its buffer is, so that the orders need not be the same. A tree must be at the same
/// place on all ranks of a host, whose offsets each of them works out for itself.
TEST_CASE("ranks that give back in another order have sums, and an error for a tree") {
  const auto run_in_orders = [](const Nodes& nodes, auto body) {
    run(2, {.nodes = nodes, .data_bytes = 1 << 20}, [&](ProcessGroup& group) {
      const auto first = group.allocate<float>(1000), second = group.allocate<float>(2000);
      const auto third = group.allocate<float>(1000);
      group.rank() == 0 ? group.deallocate(first) : group.deallocate(third);
      const auto values = group.allocate<float>(500);  // where the first was, or behind the third
      std::fill(values.begin(), values.end(), static_cast<float>(group.rank() + 1));
      group.all_reduce(values)->wait();
      require(std::count(values.begin(), values.end(), 3.0F) == 500, "a sum of buffers at different places");
      group.deallocate(second);
      body(group);
    });
  };
  run_in_orders({{0, 1}}, [](ProcessGroup& group) {
    const TreeBuffer tree = group.allocate_tree(500, DType::kFloat32);
    const std::string why = thrown_by<CollectiveAborted>([&] { group.all_reduce_tree(tree, {})->wait(); });
    require(why.find("gave back in another order") != std::string::npos, why);
  });
  run_in_orders({{0}, {1}}, [](ProcessGroup& group) {
    const TreeBuffer tree = group.allocate_tree(500, DType::kFloat32);
    *reinterpret_cast<float*>(tree.partials.front()) = 1;
    group.all_reduce_tree(tree, {})->wait();
    require(*reinterpret_cast<float*>(tree.partials.front()) == 2, "a tree on hosts of their own");
  });
}
