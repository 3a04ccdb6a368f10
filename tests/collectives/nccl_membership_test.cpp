/// How an NCCL group loses ranks without a new process, over the double.

#include <barrier>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "tests/collectives/nccl_ranks.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kNoShrink = 22605, kRevoke = 22807, kNewest = 23003;

/// The sum of rank + 1 over the group, to its end on the host.
float sum_of_ranks(NcclRank& rank) {
  const Buffer buffer = rank.put(std::vector<float>(50, static_cast<float>(rank.group->rank() + 1)));
  const auto work = rank.group->all_reduce(buffer, ReduceOp::kSum);
  finish(*work);
  return rank.get<float>(buffer)[49];
}

/// Launches what never ends and waits for it; `launched` runs in between. A communicator whose call is still
/// in progress would be aborted, and not revoked.
void fail_in_flight(NcclRank& rank, const std::function<void()>& launched) {
  const Buffer buffer = rank.put(std::vector<float>(50, 1));
  const auto work = rank.group->all_reduce(buffer, ReduceOp::kSum);
  launched();
  try {
    finish(*work);
  } catch (const CollectiveAborted&) {
    return;
  }
  throw std::runtime_error("it does not throw");
}

}  // namespace

TEST_CASE("nccl: after a death the survivors shrink, and go on") {
  for (const int version : {kNoShrink, kRevoke, kNewest}) {
    DYNAMIC_SECTION(version) {
      NcclCluster cluster(version);
      std::barrier all(3);  // what is complete on one rank may be about to be on another
      const auto thrown = run_nccl_threads(cluster, 3, [&](NcclRank& rank) {
        require(sum_of_ranks(rank) == 6, "three ranks");
        if (rank.p == 1) {
          all.arrive_and_wait();
          rank.group->abort("rank 1 is going to die");
          return;  // takes no part in what follows
        }
        fail_in_flight(rank, [&] { all.arrive_and_wait(); });
        auto next = cluster.options(rank.p, rank.p == 0 ? 0 : 1, 2, 2);
        auto group = succeed_nccl_group(*rank.group, {1}, next);
        rank.group = std::move(group);
        require(sum_of_ranks(rank) == 3, "two ranks");
        const Buffer message = rank.put(std::vector<float>{5});
        auto work = rank.group->rank() == 0 ? rank.group->send(message, 1) : rank.group->recv(message, 0);
        finish(*work);
        rank.group->barrier()->wait();
      });
      check_none(thrown);
      check_double(cluster.library);
      // A library that can only abort has to start from scratch.
      const bool shrinks = version >= nccl::kVersionOfRevoke;
      CHECK((cluster.library.calls(0, "ncclCommShrink") > 0) == shrinks);
      CHECK((cluster.library.calls(0, "ncclCommInitRankConfig") == 3) == shrinks);
    }
  }
}

TEST_CASE("nccl: a healthy group shrinks, and the old one is over") {
  for (const int version : {kNoShrink, kRevoke, kNewest}) {
    NcclCluster cluster(version);
    std::promise<void> left;
    auto gone = left.get_future().share();
    std::barrier all(3);
    const auto thrown = run_nccl_threads(cluster, 3, [&](NcclRank& rank) {
      require(sum_of_ranks(rank) == 6, "three ranks");
      all.arrive_and_wait();
      if (rank.p == 0) return gone.wait();  // rank 0 leaves: the others move up
      auto old = std::move(rank.group);
      rank.group = succeed_nccl_group(*old, {0}, cluster.options(rank.p, rank.p - 1, 2, 2));
      require(sum_of_ranks(rank) == 3, "two ranks");
      try {
        old->barrier();
        require(false, "the old group goes on");
      } catch (const CollectiveAborted&) {
      }
      old.reset();
      require(sum_of_ranks(rank) == 3, "without the old group");
      rank.group->barrier()->wait();
      if (rank.p == 1) left.set_value();
    });
    check_none(thrown);
    check_double(cluster.library);
    CHECK((cluster.library.calls(1, "ncclCommShrink") > 0) == (version >= kRevoke));
  }
}

/// A generation may fail after some of its ranks have made theirs, and those count how often they shrank.
TEST_CASE("nccl: a group is shrunk once; the generation after the next starts from scratch") {
  NcclCluster cluster(kNewest);
  std::barrier all(3), both(2);
  const auto thrown = run_nccl_threads(cluster, 3, [&](NcclRank& rank) {
    sum_of_ranks(rank);
    all.arrive_and_wait();
    if (rank.p == 2) return rank.group->abort("the end");
    for (const std::uint32_t counter : {2, 3}) {
      const auto next = succeed_nccl_group(*rank.group, {2}, cluster.options(rank.p, rank.p, 2, counter));
      both.arrive_and_wait();
    }
  });
  check_none(thrown);
  check_double(cluster.library);
  for (const int p : {0, 1}) {
    CHECK(cluster.library.calls(p, "ncclCommShrink") == 3);
    CHECK(cluster.library.calls(p, "ncclCommInitRankConfig") == 6);
  }
}

TEST_CASE("nccl: an error that stays in one survivor's communicator makes all start from scratch together") {
  // After a peer's death NCCL may report it for good, on some of the survivors: before they are revoked, so
  // that they are aborted instead; or from then on, when a shrink of them fails. Rank 0 alone used to decide,
  // and the generation failed for all.
  enum class Fault { kStaysAfterRevoke, kBeforeTheEnd, kRevokeFails };
  for (const Fault fault : {Fault::kStaysAfterRevoke, Fault::kBeforeTheEnd, Fault::kRevokeFails}) {
    for (const int survivor : {0, 1}) {
      CAPTURE(static_cast<int>(fault), survivor);
      NcclCluster cluster(kNewest);
      std::barrier all(3);
      const auto thrown = run_nccl_threads(cluster, 3, [&](NcclRank& rank) {
        sum_of_ranks(rank);
        const bool mine = rank.p == survivor;
        if (mine && fault == Fault::kRevokeFails) cluster.library.fail_call(survivor, "ncclCommRevoke", 3);
        if (rank.p == 2) {
          all.arrive_and_wait();
          if (fault != Fault::kBeforeTheEnd) rank.group->abort("the end");
          return all.arrive_and_wait();
        }
        fail_in_flight(rank, [&] {
          all.arrive_and_wait();
          if (mine && fault == Fault::kBeforeTheEnd) cluster.library.async_error(survivor, 6);
        });
        if (mine && fault == Fault::kStaysAfterRevoke) cluster.library.async_error(survivor, 6);
        all.arrive_and_wait();
        rank.group = succeed_nccl_group(*rank.group, {2}, cluster.options(rank.p, rank.p, 2, 2));
        require(sum_of_ranks(rank) == 3, "two ranks");
        rank.group->barrier()->wait();
      });
      check_none(thrown);
      check_double(cluster.library);
      for (const int p : {0, 1}) {
        CHECK(cluster.library.calls(p, "ncclCommShrink") == 0);
        CHECK(cluster.library.calls(p, "ncclCommInitRankConfig") == 6);
      }
    }
  }
}

TEST_CASE("nccl: a shrink that fails on one rank fails the generation for all at once; the next is new") {
  NcclCluster cluster(kNewest);
  std::barrier all(3);
  cluster.library.fail_call(1, "ncclCommShrink", 3);
  const auto thrown = run_nccl_threads(cluster, 3, [&](NcclRank& rank) {
    sum_of_ranks(rank);
    if (rank.p == 2) {
      all.arrive_and_wait();
      return rank.group->abort("the end");
    }
    fail_in_flight(rank, [&] { all.arrive_and_wait(); });
    try {
      rank.group = succeed_nccl_group(*rank.group, {2}, cluster.options(rank.p, rank.p, 2, 2));
      require(false, "it is made");
    } catch (const Error& e) {
      require(std::string(e.what()).find("ncclCommShrink failed on rank 1") != std::string::npos, e.what());
      // The attempt on rank 0 ended with its parent: NCCL would fill in a communicator that is no more.
      // Or it had not begun: rank 0 heard of rank 1 first.
      const bool began = cluster.library.calls(0, "ncclCommShrink") > 0;
      require(rank.p == 1 || !began || cluster.library.calls(0, "ncclCommAbort") > 0, "the attempt goes on");
    }
    rank.group = succeed_nccl_group(*rank.group, {2}, cluster.options(rank.p, rank.p, 2, 3));
    require(sum_of_ranks(rank) == 3, "two ranks");
    rank.group->barrier()->wait();
  });
  check_none(thrown);
  check_double(cluster.library);
}

TEST_CASE("nccl: successions that make no sense") {
  run_nccl(2, [&](NcclRank& rank) {
    const auto refused = [&](std::vector<int> gone, int next_rank, int size, std::uint32_t counter) {
      auto options = rank.cluster.options(rank.p, next_rank, size, counter);
      options.exchange = [](const auto&, const auto&) -> std::string {
        throw std::runtime_error("was asked");
      };
      try {
        succeed_nccl_group(*rank.group, gone, options);
      } catch (const BadConfig&) {
        return;
      }
      throw std::runtime_error("not refused");
    };
    refused({rank.p}, 0, 1, 2);      // itself
    refused({2}, rank.p, 1, 2);      // nobody
    refused({1, 0}, 0, 1, 2);        // not ascending
    refused({}, rank.p, 2, 2);       // nobody is gone
    refused({1 - rank.p}, 1, 2, 2);  // another rank than its own
    refused({1 - rank.p}, 0, 1, 1);  // the same generation
    refused({1 - rank.p}, 0, 2, 2);  // loses one and gains one
    rank.group->barrier()->wait();   // and the group goes on
  });
}
