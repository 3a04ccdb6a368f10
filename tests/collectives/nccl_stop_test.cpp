/// How communicators end: stopped, aborted and closed, over the double.

#include <barrier>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "tests/collectives/nccl_ranks.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

constexpr int kAbortOnly = 22605, kRevokeCall = 23003, kDestroyWaits = 23102;

/// A message from rank 0 to rank 1 and back: connects them.
void connect(NcclRank& rank) {
  const Buffer mine = rank.put(std::vector<float>{1}), theirs = rank.put(std::vector<float>{0});
  const auto work = rank.group->batch({Op::send(mine, 1 - rank.p), Op::recv(theirs, 1 - rank.p)});
  finish(*work);
}

}  // namespace

/// ncclCommAbort blocks until the kernels have left their streams. A lock that was held meanwhile kept the
/// watching thread, and with it the other communicators, from going on.
TEST_CASE("nccl: a communicator answers while its abort blocks") {
  NcclDouble library;
  const auto& api = library.api(0);
  std::promise<void> go;
  auto gate = go.get_future().share();
  {
    const auto made = lone_communicator(library);
    nccl::Communicator& communicator = *made;
    library.on_stream(0, communicator.stream(), [gate] { gate.wait(); });
    std::byte one{};
    communicator.issue([&](nccl::Comm comm) {
      api.nccl.ncclAllReduce(&one, &one, 1, nccl::NcclType::kUint8, nccl::NcclOp::kSum, comm,
                             communicator.stream());
    });
    std::thread aborts([&] { nccl::abort_all({made}); });
    test::yield_until([&] { return library.calls(0, "ncclCommAbort") != 0; });
    auto asks = std::async(std::launch::async, [&] { return communicator.healthy(); });
    const bool answers = asks.wait_for(5s) == std::future_status::ready;
    CHECK(answers);
    go.set_value();
    CHECK_FALSE(asks.get());
    aborts.join();
  }
  check_double(library);
}

/// Whoever is on the way to a call of the library when another thread aborts gets there: what the call uses
/// has to be there until it is back.
TEST_CASE("nccl: a communicator is there for a thread that makes its call after the abort was raised") {
  NcclDouble library;
  const auto& api = library.api(0);
  {
    const auto made = lone_communicator(library);
    std::thread aborts;
    std::byte one{};
    CHECK_THROWS(made->issue([&](nccl::Comm comm) {
      aborts = std::thread([&] { nccl::abort_all({made}); });
      test::yield_until([&] { return library.calls(0, "ncclCommAbort") != 0; });
      std::this_thread::sleep_for(20ms);
      api.nccl.ncclAllReduce(&one, &one, 1, nccl::NcclType::kUint8, nccl::NcclOp::kSum, comm, made->stream());
    }));
    aborts.join();
  }
  check_double(library);
}

/// The flush looked for the communicator only when its thread ran, and an abort had taken it meanwhile.
TEST_CASE("nccl: a communicator that is aborted while it is about to be flushed") {
  NcclDouble library;
  for (int i = 0; i < 200; ++i) {
    int asked = 0;
    nccl::close_all({lone_communicator(library)}, 60s, [&] { return asked++ > 0; });
  }
  check_double(library);
}

/// The collective's kernel waits, by the user's stream, for a receive that never ends. Communicator by
/// communicator, the end of the first would wait for a kernel of the second.
TEST_CASE("nccl: an abort ends communicators whose streams wait for each other") {
  const int version = GENERATE(kAbortOnly, kRevokeCall);
  NcclCluster cluster(version);
  std::barrier both(2);
  const auto thrown = run_two(cluster, [&](NcclRank& rank) {
    reduce(rank);
    connect(rank);
    both.arrive_and_wait();
    if (rank.p == 1) {
      both.arrive_and_wait();
      return rank.group->abort("enough");
    }
    const Buffer buffer = rank.put(std::vector<float>(5));
    rank.group->recv(buffer, 1)->wait();
    const auto work = rank.group->all_reduce(buffer, ReduceOp::kSum);
    work->wait();
    both.arrive_and_wait();
    const MonotonicClock clock;
    const Instant start = clock.now();
    rank.synchronize();
    require(clock.now() - start < 1s, "it took as long as to give up on one communicator");
    work->wait();
  });
  CHECK_THAT(thrown[0], Contains("enough"));
  CHECK(thrown[1] == "");
}

/// A pair connects inside the library, which another rank's abort has to end: without it the call waits for
/// good. What the call uses is freed behind it.
TEST_CASE("nccl: an abort ends a call that waits inside the library") {
  const int version = GENERATE(kAbortOnly, kRevokeCall);
  NcclCluster cluster(version);
  const auto thrown = run_two(cluster, [&](NcclRank& rank) {
    if (rank.p == 1) {
      test::yield_until([&] { return cluster.library.calls(0, "ncclGroupEnd") != 0; });
      return rank.group->abort("enough");
    }
    rank.group->all_reduce(rank.put(std::vector<float>(5)), ReduceOp::kSum);  // rank 1 never calls it
  });
  CHECK_THAT(thrown[0], Contains("enough"));
  CHECK(thrown[1] == "");
}

/// NCCL refuses to revoke then, and a group's job that is left behind keeps the communicator from ever being
/// quiet.
TEST_CASE("nccl: a communicator that a call is in is aborted, the others are revoked") {
  NcclCluster cluster(kRevokeCall);
  std::barrier both(2);
  const auto thrown = run_two(cluster, [&](NcclRank& rank) {
    reduce(rank);
    both.arrive_and_wait();
    if (rank.p == 1) {
      both.arrive_and_wait();
      return;
    }
    const int groups = cluster.library.calls(0, "ncclGroupEnd");
    const auto sent = rank.group->send(rank.put(std::vector<float>{1}), 1);  // connects with nobody
    require(!sent->is_completed(), "complete");
    test::yield_until([&] { return cluster.library.calls(0, "ncclGroupEnd") != groups; });
    rank.group->abort("enough");
    require(rank.group->abort_reason() == "enough", "the reason");
    both.arrive_and_wait();
    sent->wait();
  });
  CHECK_THAT(thrown[0], Contains("enough"));
  CHECK(cluster.library.calls(0, "ncclCommRevoke") == 2);
}

TEST_CASE("nccl: groups that are good are destroyed, which waits for all ranks") {
  NcclCluster cluster(kDestroyWaits);
  check_none(run_two(cluster, [&](NcclRank& rank) { reduce(rank); }));
  for (int p : {0, 1}) CHECK(cluster.library.calls(p, "ncclCommDestroy") == 3);
  CHECK(cluster.library.calls(0, "ncclCommAbort") == 0);
}

/// pytorch/pytorch#194775: ncclCommDestroy waited without a limit for the ranks that aborted instead.
TEST_CASE("nccl: once a rank has aborted, every rank releases by abort") {
  NcclCluster cluster(kDestroyWaits);
  std::barrier both(2);
  const auto thrown = run_two(cluster, [&](NcclRank& rank) {
    reduce(rank);
    both.arrive_and_wait();
    if (rank.p == 1) rank.group->abort("enough");
    both.arrive_and_wait();
    rank.group.reset();  // before anybody has heard of it, perhaps
  });
  check_none(thrown);
  for (int p : {0, 1}) CHECK(cluster.library.calls(p, "ncclCommDestroy") == 0);
}

TEST_CASE("nccl: a rank that left releases by abort, as those do that shrank without it") {
  NcclCluster cluster(kDestroyWaits);
  std::promise<void> made;
  auto is_made = made.get_future().share();
  std::barrier all(3);
  const auto thrown = run_nccl_threads(cluster, 3, [&](NcclRank& rank) {
    reduce(rank);
    all.arrive_and_wait();
    if (rank.p == 2) return is_made.wait();
    auto old = std::move(rank.group);
    rank.group = succeed_nccl_group(*old, {2}, cluster.options(rank.p, rank.p, 2, 2));
    old.reset();
    reduce(rank);
    rank.group->barrier()->wait();
    if (rank.p == 0) made.set_value();
  });
  check_none(thrown);
  check_double(cluster.library);
  CHECK(cluster.library.calls(0, "ncclCommShrink") == 3);
  CHECK(cluster.library.calls(2, "ncclCommDestroy") == 0);
  CHECK(cluster.library.calls(0, "ncclCommDestroy") == 3);  // of the second generation
}
