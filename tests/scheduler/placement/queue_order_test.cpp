// Whose turn it is among queues, and what they may hold.
#include "scheduler/placement/queue_order.hpp"

#include <catch2/catch.hpp>

#include "runtime/core/random.hpp"
#include "scheduler/placement/placement.hpp"

using namespace troupe;
using namespace troupe::scheduler;
using troupe::cluster::kCpu;
using troupe::cluster::kGpu;

namespace {

QueueLoad queue(const char* name, int cpus, int gpus, int weight = 1, int cpu_quota = -1,
                int gpu_quota = -1) {
  const auto limit = [](int quota) { return quota < 0 ? -1 : std::int64_t{quota} * kCpu; };
  return {{name, limit(cpu_quota), limit(gpu_quota), weight * 10'000LL}, {cpus * kCpu, gpus * kGpu}};
}

const Room kCluster{9 * kCpu, 18 * kGpu};

}  // namespace

TEST_CASE("a quota is a limit to what a queue holds, said with what there is") {
  const QueueLoad a = queue("a", 3, 1, 1, 4, 1);
  CHECK(over_quota(a, {kCpu, 0}).empty());
  CHECK(over_quota(a, {2 * kCpu, 0}) == "queue a holds 3 CPU of its quota of 4, and 2 more are too many");
  CHECK(over_quota(a, {5 * kCpu, 0}) ==
        "queue a holds 3 CPU of its quota of 4, and 5 more never fit: ask for less, or raise the quota "
        "(troupe queue set a)");
  CHECK(over_quota(a, {0, kGpu / 2}) == "queue a holds 1 GPU of its quota of 1, and 0.5 more are too many");
  CHECK(over_quota(queue("b", 100, 100), {kCpu, kGpu}).empty());
  // A quota that was lowered: what asks for nothing of it goes on.
  CHECK(over_quota(queue("c", 4, 0, 1, 2), {0, kGpu}).empty());
}

TEST_CASE("a quota of memory and of custom resources is as one of CPUs, and what has none is without limit") {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  QueueLoad a{{"a", -1, -1, 10'000, {{"memory", 1024 * kMiB}, {"none", 0}, {"tpu", 20'000}}},
              {0, 0, {{"fpga", 90'000}, {"memory", 512 * kMiB}, {"tpu", 10'000}}},
              {0, 0, {{"memory", 256 * kMiB}}}};
  const auto asks = [](const char* name, std::int64_t amount) { return Room{0, 0, {{name, amount}}}; };
  CHECK(over_quota(a, asks("memory", 512 * kMiB)).empty());
  CHECK(over_quota(a, asks("memory", 768 * kMiB)) ==
        "queue a holds 512 MiB of memory of its quota of 1 GiB, and 768 MiB more are too many");
  CHECK(over_quota(a, asks("memory", 2048 * kMiB)) ==
        "queue a holds 512 MiB of memory of its quota of 1 GiB, and 2 GiB more never fit: ask for less, or "
        "raise the quota (troupe queue set a)");
  CHECK(over_quota(a, asks("tpu", 10'000)).empty());
  CHECK(over_quota(a, asks("tpu", 15'000)) ==
        "queue a holds 1 tpu of its quota of 2, and 1.5 more are too many");
  CHECK(over_quota(a, asks("none", 1)) ==
        "queue a holds 0 none of its quota of 0, and 0.0001 more never fit: ask for less, or raise the quota "
        "(troupe queue set a)");
  CHECK(over_quota(a, asks("fpga", 10'000'000)).empty());
  CHECK(over_quota(a, {kCpu, kGpu}).empty());
  CHECK(stuck_beside_programs(a, asks("memory", 768 * kMiB)).empty());
  CHECK(
      stuck_beside_programs(a, asks("memory", 800 * kMiB)) ==
      "; programs of its jobs hold 256 MiB of memory of that themselves, beside which these never fit: stop "
      "a job of it, or raise the quota");
  // And a part of the cluster as theirs.
  const Room cluster{10 * kCpu, 0, {{"fpga", 100'000}, {"memory", 2048 * kMiB}, {"tpu", 40'000}}};
  CHECK(dominant_share_e4(a, cluster) == 9'000);
  a.used.add(asks("fpga", 90'000), -1);
  CHECK(dominant_share_e4(a, cluster) == 2'500);
  a.used.add(asks("memory", 512 * kMiB));
  CHECK(dominant_share_e4(a, cluster) == 5'000);
  CHECK(dominant_share_e4(a, {}) == 10'000);
}

// The example of the paper: 9 CPUs and 18 GB, tasks of <1, 4> and <3, 1>; three and two of them run in the
// end.
TEST_CASE("turns are dominant-resource fair") {
  QueueLoad a = queue("a", 0, 0), b = queue("b", 0, 0);
  int tasks_a = 0, tasks_b = 0;
  for (;;) {
    const std::vector<QueueTurn> turns{{&a, 0, 1}, {&b, 0, 2}};
    const bool first = next_turn(turns, kCluster) == 0;
    const Room more = first ? Room{kCpu, 4 * kGpu} : Room{3 * kCpu, kGpu};
    if (a.used.cpu_e4 + b.used.cpu_e4 + more.cpu_e4 > kCluster.cpu_e4 ||
        a.used.gpu_e4 + b.used.gpu_e4 + more.gpu_e4 > kCluster.gpu_e4)
      break;
    Room& used = first ? a.used : b.used;
    used.cpu_e4 += more.cpu_e4;
    used.gpu_e4 += more.gpu_e4;
    ++(first ? tasks_a : tasks_b);
  }
  CHECK(tasks_a == 3);
  CHECK(tasks_b == 2);
  CHECK(dominant_share_e4(a, kCluster) == dominant_share_e4(b, kCluster));
}

TEST_CASE("weights count, then priority, then who came first; nothing is divided by nothing") {
  const QueueLoad heavy = queue("heavy", 4, 0, 3), light = queue("light", 2, 0);
  CHECK(next_turn({{&light, 9, 1}, {&heavy, 0, 2}}, kCluster) == 1);
  const QueueLoad none = queue("none", 0, 0), empty = queue("empty", 0, 0, 5);
  CHECK(next_turn({{&none, 0, 1}, {&empty, 1, 2}}, kCluster) == 1);
  CHECK(next_turn({{&none, 0, 2}, {&empty, 0, 1}}, kCluster) == 1);
  CHECK(dominant_share_e4(queue("x", 1, 0), {}) == 10'000);
  CHECK(next_turn({{&heavy, 0, 1}, {&none, 0, 2}}, {}) == 1);
}

TEST_CASE("whoever goes first has the least share, by exact arithmetic") {
  SeededRandom random(7);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random.next() % n); };
  for (int i = 0; i < 20'000; ++i) {
    std::vector<QueueLoad> loads;
    for (int q = 0; q < 4; ++q) loads.push_back(queue("q", below(10), below(19), 1 + below(4)));
    std::vector<QueueTurn> turns;
    for (const QueueLoad& load : loads)
      turns.push_back({&load, below(2), static_cast<std::uint64_t>(turns.size())});
    const QueueLoad& first = *turns[next_turn(turns, kCluster)].load;
    // In 1/18 of the cluster: 9 CPUs and 18 GPUs.
    const auto share = [](const QueueLoad& load) {
      return std::pair(std::max(2 * load.used.cpu_e4, load.used.gpu_e4), load.queue.weight_e4);
    };
    for (const QueueLoad& other : loads) {
      const auto [mine, my_weight] = share(first);
      const auto [its, its_weight] = share(other);
      REQUIRE(mine * its_weight <= its * my_weight);
    }
  }
}
