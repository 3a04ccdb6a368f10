/// Every operation of the native group against its definition, over random counts, dtypes, roots, places of
/// buffers and layouts over machines.

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "collectives/native/region.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/every_op.hpp"
#include "tests/collectives/ranks.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

/// All on one machine, by turns on two, the first and the second half on two, each on its own.
std::vector<std::vector<std::vector<int>>> layouts_of(int size) {
  std::vector<std::vector<int>> one(1), two(2), halves(2), alone;
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

constexpr DType kReduced[] = {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64};

OpSpec random_spec(Random& random, int size, std::size_t most) {
  OpSpec spec;
  spec.kind = kCollectives[random.below(std::size(kCollectives))];
  const bool sums =
      spec.kind == OpKind::kAllReduce || spec.kind == OpKind::kReduce || spec.kind == OpKind::kReduceScatter;
  spec.dtype = sums ? kReduced[random.below(4)] : static_cast<DType>(random.below(10));
  spec.op = static_cast<ReduceOp>(random.below(5));
  const bool integer = spec.dtype == DType::kInt32 || spec.dtype == DType::kInt64;
  if (spec.op == ReduceOp::kAvg && integer) spec.op = ReduceOp::kMax;
  const std::size_t choices[] = {0, 1, 1 + random.below(9), 1 + random.below(2000), random.below(most + 1)};
  spec.count = choices[random.below(5)];
  spec.root = static_cast<int>(random.below(static_cast<std::uint64_t>(size)));
  spec.seed = random.next();
  return spec;
}

void run_specs(ProcessGroup& group, const std::vector<OpSpec>& specs, std::uint64_t seed) {
  // Where buffers lie, how many are launched at once and in which order they are waited for is each rank's
  // own affair.
  SeededRandom random(mix(seed, 1000 + static_cast<std::uint64_t>(group.rank())));
  const Buffer arena = group.allocate(6 << 20, DType::kUInt8);
  for (std::size_t at = 0; at < specs.size();) {
    std::span<std::byte> left(static_cast<std::byte*>(arena.data), arena.count);
    const std::size_t batch = std::min<std::size_t>(specs.size() - at, 1 + random.below(6));
    std::vector<std::unique_ptr<Running>> running;
    for (std::size_t i = 0; i < batch; ++i) {
      const auto where = static_cast<Running::Where>(random.below(3));
      running.push_back(std::make_unique<Running>(group, specs[at + i], where, left));
      running.back()->launch();
    }
    std::vector<std::size_t> order(batch);
    for (std::size_t i = 0; i < batch; ++i) order[i] = i;
    for (std::size_t i = batch; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (std::size_t i : order) {
      running[i]->work().wait();
      running[i]->check();
    }
    at += batch;
  }
  group.barrier()->wait();
}

}  // namespace

TEST_CASE("every operation does what it says, whatever its counts, buffers, roots and machines") {
  const std::uint64_t seed = 20261121;
  CAPTURE(seed);
  for (int size = 1; size <= 5; ++size) {
    const auto layouts = layouts_of(size);
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      SeededRandom random(mix(mix(seed, static_cast<std::uint64_t>(size)), l));
      std::vector<OpSpec> specs;
      for (int i = 0; i < 120; ++i) specs.push_back(random_spec(random, size, 20000));
      const std::uint64_t own_seed = random.next();
      CAPTURE(size, l);
      run(size, {.nodes = layouts[l], .data_bytes = 8 << 20},
          [&](ProcessGroup& group) { run_specs(group, specs, own_seed); });
    }
  }
}

TEST_CASE("twenty hosts pass small operations on, and large ones go from each to each") {
  std::vector<std::vector<int>> nodes;
  for (int rank = 0; rank < 24; ++rank) {
    if (rank == 3 || rank == 7 || rank == 8 || rank == 20) {
      nodes.back().push_back(rank);
    } else {
      nodes.push_back({rank});
    }
  }
  run(24, {.nodes = nodes, .data_bytes = 4 << 20}, [&](ProcessGroup& group) {
    for (const OpKind kind : kCollectives) {
      for (const std::size_t count : {std::size_t{5}, std::size_t{3000}}) {
        for (const int root : {0, 7, 23}) {
          if (root != 0 && !has_root(kind)) continue;
          const OpSpec spec{.kind = kind,
                            .op = ReduceOp::kSum,
                            .count = kind == OpKind::kBarrier ? 0 : count,
                            .root = root,
                            .seed = count + static_cast<std::uint64_t>(root)};
          std::span<std::byte> none;
          Running running(group, spec, Running::Where::kPrivate, none);
          running.launch();
          running.work().wait();
          running.check();
        }
      }
    }
  });
}

TEST_CASE("hosts of one rank each pass on what the root alone reads, too") {
  for (const int size : {7, 8, 12}) {
    std::vector<std::vector<int>> nodes;
    for (int rank = 0; rank < size; ++rank) nodes.push_back({rank});
    run(size, {.nodes = nodes, .data_bytes = 1 << 20}, [&](ProcessGroup& group) {
      for (const OpKind kind : kCollectives) {
        for (int root = 0; root < (has_root(kind) ? size : 1); ++root) {
          const OpSpec spec{.kind = kind,
                            .op = ReduceOp::kSum,
                            .count = kind == OpKind::kBarrier ? std::size_t{0} : std::size_t{17},
                            .root = root,
                            .seed = static_cast<std::uint64_t>(root)};
          std::span<std::byte> none;
          Running running(group, spec, Running::Where::kPrivate, none);
          running.launch();
          running.work().wait();
          running.check();
        }
      }
    });
  }
}

TEST_CASE("every operation over several chunks, in every place of its buffers") {
  const std::uint64_t seed = 7;
  for (int size : {2, 3}) {
    for (const auto& nodes : layouts_of(size)) {
      std::vector<OpSpec> specs;
      for (OpKind kind : kCollectives) {
        const std::size_t count = 2 * kChunkBytes / 4 + 1009;  // of f32
        specs.push_back({.kind = kind, .count = count, .root = size - 1, .seed = mix(seed, specs.size())});
      }
      run(size, {.nodes = nodes, .data_bytes = 16 << 20}, [&](ProcessGroup& group) {
        const Buffer memory = group.allocate(15 << 20, DType::kUInt8);
        for (const OpSpec& spec : specs) {
          for (int where = 0; where < 3; ++where) {
            std::span<std::byte> arena(static_cast<std::byte*>(memory.data), memory.count);
            Running running(group, spec, static_cast<Running::Where>((where + group.rank()) % 3), arena);
            running.launch();
            running.work().wait();
            running.check();
          }
        }
      });
    }
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

TEST_CASE("the typed front calls what it says") {
  run(2, {}, [](ProcessGroup& group) {
    const int me = group.rank();
    std::vector<float> one{static_cast<float>(me + 1)}, two(2);
    const std::span<const float> input(one);
    group.all_gather(input, std::span(two))->wait();
    if (two != std::vector<float>{1, 2}) throw std::runtime_error("all_gather");
    group.reduce_scatter(std::span<const float>(two), std::span(one))->wait();
    if (one[0] != static_cast<float>(2 * (me + 1))) throw std::runtime_error("reduce_scatter");
    std::vector<float> exchanged(2);
    two = {static_cast<float>(10 * me), static_cast<float>(10 * me + 1)};
    group.all_to_all(std::span<const float>(two), std::span(exchanged))->wait();
    if (exchanged[0] != static_cast<float>(me) || exchanged[1] != static_cast<float>(10 + me)) {
      throw std::runtime_error("all_to_all");
    }
    const auto memory = group.allocate<std::int64_t>(5);
    memory[4] = me + 1;
    group.reduce(memory, 1, ReduceOp::kMax)->wait();
    group.broadcast(memory, 1)->wait();
    if (memory.size() != 5 || memory[4] != 2) throw std::runtime_error("reduce, broadcast");
    std::vector<std::int32_t> parts{5, 6}, part(1);
    group.scatter(std::span<const std::int32_t>(parts), std::span(part), 0)->wait();
    if (part[0] != 5 + me) throw std::runtime_error("scatter");
    parts = {0, 0};
    group.gather(std::span<const std::int32_t>(part), std::span(parts), 1)->wait();
    if (me == 1 && parts != std::vector<std::int32_t>{5, 6}) throw std::runtime_error("gather");
  });
}
