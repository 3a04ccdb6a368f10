/// What hosts send each other: pure, so that groups of thousands of ranks are followed frame by frame.

#include "collectives/native/host_plan.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "collectives/native/region.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/every_op.hpp"
#include "tests/collectives/host_traffic.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

Op op_of(OpKind kind, std::size_t count, int root = 0, ReduceOp op = ReduceOp::kSum) {
  Op made{.kind = kind, .dtype = DType::kFloat32, .peer = root, .count = count};
  made.how.op = op;
  return made;
}

}  // namespace

TEST_CASE("two hosts are connected by ranks of theirs, and by few of them") {
  SeededRandom random(11);
  for (int i = 0; i < 300; ++i) {
    std::vector<int> hosts;
    const auto ranks = 1 + random.below(40);
    const auto most = 1 + random.below(12);
    for (std::size_t r = 0; r < ranks; ++r) hosts.push_back(static_cast<int>(random.below(most)));
    const HostLayout layout(hosts);
    std::set<std::pair<int, int>> pairs;
    for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
      for (const int peer : layout.peers(rank)) {
        CHECK(!layout.together(rank, peer));
        pairs.emplace(rank, peer);
      }
    }
    for (const auto& [a, b] : pairs) CHECK(pairs.count({b, a}) == 1);
    for (int a = 0; a < layout.hosts(); ++a) {
      std::size_t connections = 0, fewest = 0;
      for (int b = 0; b < layout.hosts(); ++b) {
        if (a == b) continue;
        std::set<std::pair<int, int>> lanes;
        for (std::uint32_t round = 0; round < 16; ++round) {
          const std::pair lane(layout.gateway_in(a, b, round), layout.gateway_in(b, a, round));
          CHECK(pairs.count(lane) == 1);
          lanes.insert(lane);
        }
        CHECK(lanes.size() == layout.lanes(a, b));
        connections += lanes.size();
        ++fewest;
      }
      CHECK(connections <= std::max<std::size_t>(8, fewest));
    }
  }
}

TEST_CASE("whatever is read of another host comes once, where it fits, in any layout and on every route") {
  SeededRandom random(12);
  std::set<Route> routes;
  for (int i = 0; i < 1500; ++i) {
    std::vector<int> hosts;
    const auto ranks = 2 + random.below(30);
    const auto most = 1 + random.below(20);
    int host = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (random.below(3) != 0) host = static_cast<int>(random.below(most));
      hosts.push_back(host);
    }
    if (HostLayout(hosts).hosts() == 1) continue;
    const OpKind kind = kCollectives[random.below(std::size(kCollectives))];
    const std::size_t count = kind == OpKind::kBarrier ? 0 : random.below(random.below(2) == 0 ? 20 : 90000);
    const int root = static_cast<int>(random.below(ranks));
    const bool scaled = random.below(5) == 0;
    const Op op = op_of(kind, count, root, scaled ? ReduceOp::kPremulSum : ReduceOp::kSum);
    HostTraffic found = follow(hosts, op);
    CAPTURE(i, to_string(op));
    REQUIRE(found.broken.empty());
    routes.insert(found.choice.route);
    if (found.choice.algorithm == Algorithm::kOneShot && kind != OpKind::kScatter &&
        kind != OpKind::kReduceScatter && kind != OpKind::kAllToAll) {
      found = follow(hosts, op, {}, Route::kDisseminate);
      REQUIRE(found.broken.empty());
      routes.insert(found.choice.route);
    }
    const auto size = static_cast<int>(ranks);
    const int leaves = size + static_cast<int>(random.below(20));
    Op tree = op_of(OpKind::kAllReduceTree, random.below(200000));
    CHECK(follow(hosts, tree, deal_leaves(leaves, size)).broken.empty());
  }
  CHECK(routes.size() == 3);
}

TEST_CASE(
    "512 hosts of 8 ranks: connections and frames grow with hosts, the steps of small operations do not") {
  for (const int hosts : {8, 64, 512}) {
    const int ranks = hosts == 8 ? 2 : 8, others = hosts - 1;
    const std::vector<int> all = even_hosts(hosts, ranks);
    const int steps = hosts == 8 ? 3 : hosts == 64 ? 6 : 9;
    CAPTURE(hosts);
    for (const Op& op :
         {op_of(OpKind::kBarrier, 0), op_of(OpKind::kAllReduce, 2), op_of(OpKind::kAllReduce, 64),
          op_of(OpKind::kBroadcast, 64, 3), op_of(OpKind::kAllGather, 2)}) {
      const HostTraffic found = follow(all, op);
      CAPTURE(to_string(op), to_string(found.choice));
      CHECK(found.broken.empty());
      CHECK(found.connections <= static_cast<std::size_t>((others + ranks - 1) / ranks));
      CHECK(found.rounds == 1);
      const bool passed_on = found.choice.route == Route::kDisseminate;
      CHECK(passed_on == (hosts == 512));
      CHECK(found.steps <= (passed_on ? steps : 1));
      CHECK(found.frames <= static_cast<std::size_t>(passed_on ? steps : others));
      CHECK(found.rank_frames <= static_cast<std::size_t>(passed_on ? steps : (others + ranks - 1) / ranks));
      // A host gets from each other one what that has, once.
      const std::size_t blob = op.kind == OpKind::kAllGather
                                   ? op.bytes() * all.size() / static_cast<std::size_t>(hosts)
                                   : op.bytes();
      const std::size_t origins = op.kind == OpKind::kBroadcast ? 1 : static_cast<std::size_t>(others);
      CHECK(found.received == blob * origins);
    }
    // 4 MiB: a host sends a sum of its ranks once, and the sums that it owns once to each.
    const std::size_t bytes = 4 << 20;
    const HostTraffic large = follow(all, op_of(OpKind::kAllReduce, bytes / 4));
    CHECK(large.broken.empty());
    CHECK(large.choice.algorithm == Algorithm::kExchange);
    CHECK(large.steps == 2);
    CHECK(large.frames == 2 * static_cast<std::size_t>(others) * large.rounds);
    const double bound = 2.0 * static_cast<double>(bytes) * others / hosts;
    CHECK(static_cast<double>(large.bytes) <= bound * 1.02);
  }
  // What a host needs of memory for it.
  CHECK(landing_bytes(8, 2) * 8 * kLandings == 8 << 20);
  CHECK(landing_bytes(64, 8) * 64 * kLandings == 32 << 20);
  CHECK(landing_bytes(512, 8) * 512 * kLandings == 64 << 20);
}
