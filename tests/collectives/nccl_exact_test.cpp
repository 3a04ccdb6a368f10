/// How exact reductions go over the double: bits over several hosts, bytes between them, memory, and streams.

#include <catch2/catch.hpp>

#include "collectives/nccl/exact_plan.hpp"
#include "tests/collectives/nccl_ranks.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

using Hosts = std::vector<int>;

std::size_t per_rank(std::size_t bytes, const Hosts& hosts) {
  return bytes / hosts.size();
}

}  // namespace

TEST_CASE("nccl exact: the bits are those of the tree of ranks, however ranks are dealt to hosts") {
  const Hosts hosts =
      GENERATE(Hosts{0, 0}, Hosts{0, 1}, Hosts{0, 0, 1}, Hosts{0, 1, 1, 1}, Hosts{0, 0, 1, 1},
               Hosts{0, 1, 0, 1}, Hosts{0, 0, 1, 0}, Hosts{0, 0, 0, 1, 1, 2}, Hosts{4, 4, 3, 3, 4, 4});
  const std::size_t piece = GENERATE(std::size_t{256}, std::size_t{1} << 20);
  const int ranks = static_cast<int>(hosts.size());
  run_nccl(
      ranks,
      [&](NcclRank& rank) {
        for (const OpSpec& spec : every_spec(ranks, 40)) {
          const bool is_some = spec.dtype == DType::kFloat32 || spec.dtype == DType::kBFloat16 ||
                               spec.how.op == ReduceOp::kPremulSum;
          if (reduces(spec.kind) && is_some) run_specs(rank, {spec});
        }
        for (const std::size_t count : {333, 1024}) run_specs(rank, specs_of(ranks, count));
      },
      [&](NcclGroupOptions& options) {
        options.hosts = hosts;
        options.exact_piece_bytes = piece;
      });
}

TEST_CASE("nccl exact: all_reduce_tree over hosts has the bits of the tree, for every deal of the leaves") {
  const int leaves = GENERATE(6, 7, 13);
  const Hosts hosts = GENERATE(Hosts{0, 0, 1, 1, 1}, Hosts{0, 1, 1, 0, 0}, Hosts{0, 0, 0, 0, 1});
  run_nccl(
      5, [&](NcclRank& rank) { run_specs(rank, tree_specs(leaves, 2000, 9)); },
      [&](NcclGroupOptions& options) {
        options.leaves = deal_leaves(leaves, 5);
        options.hosts = hosts;
        options.exact_piece_bytes = 4096;
      });
}

/// Ranks sent their partials to owners on other hosts themselves: host to host went as often as there are
/// ranks on the host.
TEST_CASE("nccl exact: the bytes between hosts do not grow with the ranks of a host") {
  constexpr std::size_t kBytes = std::size_t{48} << 10;
  for (const Hosts& hosts :
       {Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 0, 1, 1, 1, 1}, Hosts{0, 0, 0, 0, 1, 1}}) {
    const int ranks = static_cast<int>(hosts.size());
    NcclCluster cluster;
    const auto thrown = run_nccl_threads(
        cluster, ranks,
        [&](NcclRank& rank) {
          const Buffer buffer = rank.put(std::vector<float>(kBytes / sizeof(float), 1));
          rank.group->barrier()->wait();
          if (rank.p == 0) cluster.library.set_hosts(hosts);
          rank.group->barrier()->wait();
          rank.group->all_reduce(buffer, ReduceOp::kSum)->wait();
          rank.group->barrier()->wait();
        },
        [&](NcclGroupOptions& options) { options.hosts = hosts; });
    check_none(thrown);
    check_double(cluster.library);
    for (const int from : {0, 1}) {
      const auto there = std::count(hosts.begin(), hosts.end(), 1 - from);
      // One sum of every slice that is owned there; and once around the ring, all but one slice.
      const std::size_t sums = per_rank(kBytes, hosts) * static_cast<std::size_t>(there);
      const std::size_t ring = per_rank(kBytes, hosts) * (hosts.size() - 1);
      CHECK(cluster.library.sent_bytes(from, 1 - from) == sums + ring);
    }
  }
}

/// A reduce_scatter took as many pieces as there are ranks.
TEST_CASE("nccl exact: the memory of every reduction is some pieces, whatever the count and the ranks") {
  constexpr std::size_t kPiece = 48 << 10, kPart = std::size_t{1} << 18, kSlack = 16 << 10;
  const Hosts hosts = GENERATE(Hosts{0, 0, 0, 0, 0, 0}, Hosts{0, 0, 0, 1, 1, 1}, Hosts{0, 1, 2, 3, 4, 5});
  const bool several = hosts.back() != 0;
  NcclCluster cluster;
  const int ranks = static_cast<int>(hosts.size());
  const auto thrown = run_nccl_threads(
      cluster, ranks,
      [&](NcclRank& rank) {
        const Buffer whole = rank.put(std::vector<std::int8_t>(kPart * hosts.size(), 1));
        const Buffer part = rank.put(std::vector<std::int8_t>(kPart));
        rank.group->reduce_scatter(whole, part, ReduceOp::kSum)->wait();
        rank.group->reduce(whole, ReduceOp::kSum, 1)->wait();
        rank.group->all_reduce(whole, ReduceOp::kMax)->wait();
        rank.group->barrier()->wait();
        require(
            rank.get<std::int8_t>(part) == std::vector<std::int8_t>(kPart, static_cast<std::int8_t>(ranks)),
            "sum");
      },
      [&](NcclGroupOptions& options) {
        options.hosts = hosts;
        options.exact_piece_bytes = kPiece;
      });
  check_none(thrown);
  check_double(cluster.library);
  for (int p = 0; p < ranks; ++p)
    CHECK(cluster.library.most_bytes(p) <= (several ? 10 : 4) * kPiece + kSlack);
}

/// The double notes memory that is used on two streams without a wait: check_double has that.
TEST_CASE("nccl exact: a piece is moved while the one before is added up") {
  const Hosts hosts = GENERATE(Hosts{0, 0, 0}, Hosts{0, 0, 1});
  constexpr int kPieces = 12;
  constexpr std::size_t kPiece = 3 * 64 * sizeof(float);
  run_nccl(
      3,
      [&](NcclRank& rank) {
        const auto beside = [&] { return rank.cluster.library.moves_beside_folds(rank.p); };
        const std::size_t count = kPieces * kPiece / sizeof(float);
        const Buffer whole = rank.put(std::vector<float>(count, 1));
        const Buffer part = rank.put(std::vector<float>(count / 3));
        std::string wrong;  // said at the end, since the other ranks wait for this one
        const auto look = [&](int before, const char* what) {
          const int moves = beside() - before;
          if (moves < kPieces - 2)
            wrong += std::string(what) + ": " + std::to_string(moves) + " moves beside folds; ";
        };
        for (int i = 0; i < 2; ++i) {
          int before = beside();
          rank.group->all_reduce(whole, ReduceOp::kMax)->wait();
          look(before, "all_reduce");
          before = beside();
          rank.group->reduce_scatter(whole, part, ReduceOp::kSum)->wait();
          look(before, "reduce_scatter");
        }
        require(rank.get<float>(part) == std::vector<float>(count / 3, 3), "sum");
        rank.group->barrier()->wait();
        require(wrong.empty(), wrong);
      },
      [&](NcclGroupOptions& options) {
        options.hosts = hosts;
        options.exact_piece_bytes = kPiece;
      });
}

TEST_CASE("nccl exact: leaders of all groups are named by the plans of all ranks alike") {
  const Hosts hosts{0, 0, 0, 1, 1, 2, 0};
  const HostLayout layout(hosts);
  const int ranks = static_cast<int>(hosts.size());
  std::vector<nccl::ExactPlan> plans;
  std::vector<std::uint8_t> programs;
  for (int r = 0; r < ranks; ++r) plans.emplace_back(rank_leaves(ranks), layout, r, programs);
  for (int owner = 0; owner < ranks; ++owner) {
    for (const LeafInterval group : layout.host_groups()) {
      int leaders = 0;
      for (int r = group.begin; r < group.end; ++r) {
        const auto& led = plans[static_cast<std::size_t>(r)].led();
        leaders += static_cast<int>(std::count(led.begin(), led.end(), owner));
      }
      CHECK(leaders == (layout.together(owner, group.begin) ? 0 : 1));
    }
  }
}
