/// What the NCCL backend does when something goes wrong, over the double.

#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "collectives/nccl/core.hpp"
#include "collectives/nccl/errors.hpp"
#include "collectives/nccl/work.hpp"
#include "tests/collectives/nccl_ranks.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;
using Catch::Contains;
using Catch::Equals;

namespace {

template <class Exception, class Call>
void require_throws(Call call) {
  try {
    call();
  } catch (const Exception&) {
    return;
  }
  throw std::runtime_error("it does not throw");
}

/// Of all that a rank waits for, and so none of it may take as long, on a busy machine either.
void soon(NcclGroupOptions& options) {
  options.timeout = 2s;
}

}  // namespace

TEST_CASE("nccl errors name the call, the code and the rank") {
  CHECK(nccl::call_name("caller_.api->nccl.ncclAllReduce(in, out)") == "ncclAllReduce");
  CHECK(nccl::call_name("core_->api().cuda.load_kernels()") == "load_kernels");
  CHECK(nccl::call_name("api.ncclSend(part(a, b), (c), d)") == "ncclSend");
  CHECK(nccl::call_name("revoke(comm)") == "revoke");
  CHECK(nccl::call_name("ncclCommGetAsyncError") == "ncclCommGetAsyncError");
  NcclCluster cluster;
  cluster.library.fail_call(1, "ncclSend", 2);
  const auto thrown = run_two(cluster, reduce);
  for (const auto& what : thrown) {
    CHECK_THAT(what, Contains("ncclSend failed on rank 1") && Contains("code 2"));
    CHECK_THAT(what, Contains("the last error of the double"));
  }
}

/// The others waited for their deadline, and for the streams of their buffers as long: that ended the
/// program, without a word of what had failed.
TEST_CASE("nccl ranks of a test: what fails on one ends the others, and all say it") {
  NcclCluster cluster;
  const auto thrown = run_two(cluster, [](NcclRank& rank) {
    reduce(rank);
    if (rank.p == 1) throw std::runtime_error("a check that failed");
    const Buffer buffer = rank.put(std::vector<float>(5, 1));
    const auto work = rank.group->all_reduce(buffer, ReduceOp::kSum);
    work->wait();
    rank.get<float>(buffer);
    finish(*work);
  });
  for (const auto& what : thrown) CHECK_THAT(what, Contains("a check that failed"));
}

TEST_CASE("nccl: the failure of any call fails the group on all ranks, and nothing leaks") {
  for (const char* call : {"ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv", "cudaEventRecord",
                           "cudaStreamWaitEvent", "launch_tree_fold", "ncclCommGetAsyncError"}) {
    DYNAMIC_SECTION(call) {
      NcclCluster cluster;
      const auto thrown = run_two(cluster, [&](NcclRank& rank) {
        reduce(rank);
        if (rank.p == 0) rank.cluster.library.fail_call(0, call, 3);
        for (;;) reduce(rank);
      });
      for (const auto& what : thrown) {
        CHECK_THAT(what, Contains("rank 0") && Contains("code 3") && Contains(call));
      }
    }
  }
}

TEST_CASE("nccl: a call that fails while the group is made") {
  for (const char* call : {"cudaStreamCreate", "ncclCommInitRankConfig", "load_kernels", "cudaMallocAsync",
                           "cudaMallocHost", "cudaMemcpyAsync", "ncclGetUniqueId"}) {
    DYNAMIC_SECTION(call) {
      NcclCluster cluster;
      // The stream of a test's rank is made first.
      cluster.library.fail_call(0, call, 3, std::string(call) == "cudaStreamCreate" ? 1 : 0);
      const auto thrown = run_two(cluster, reduce);
      CHECK_THAT(thrown[0], Contains(call) && Contains("rank 0") && Contains("code 3"));
      CHECK_FALSE(thrown[1].empty());
    }
  }
}

TEST_CASE("nccl: an asynchronous error of NCCL reaches both ranks as what it is") {
  NcclCluster cluster;
  const auto thrown = run_two(cluster, [&](NcclRank& rank) {
    reduce(rank);
    if (rank.p == 1) rank.cluster.library.async_error(1, 6);
    for (;;) reduce(rank);
  });
  for (const auto& what : thrown) {
    CHECK_THAT(what, Contains("rank 1") && Contains("code 6"));
  }
}

TEST_CASE("nccl: an operation that is done on the device has failed if NCCL reports an error by then") {
  const bool reported = GENERATE(false, true);
  NcclDouble library;
  const nccl::Caller caller{&library.api(0), 0};
  {
    const auto core = std::make_shared<nccl::Core>(nccl::Core::Facts{
        caller, 0, "one", {1, 1}, 30s, std::make_shared<WordGroup>(Generation{1, 1})});  // nobody watches
    const auto communicator = lone_communicator(library);
    core->adopt(communicator);
    const auto pending = std::make_shared<nccl::PendingOp>(core, nullptr, nccl::kCollectives);
    nccl::launch(*core, *communicator, pending, [] {});
    if (reported) library.async_error(0, 6);
    CHECK(core->settle_within(*pending, 30s));
    if (reported) {
      CHECK_THROWS_WITH(pending->wait(), Contains("ncclCommGetAsyncError on rank 0") && Contains("code 6"));
    } else {
      CHECK_NOTHROW(pending->wait());
    }
    nccl::abort_all({communicator});
  }
  check_double(library);
}

TEST_CASE("nccl: the reason of an abort is what NCCL reports by then") {
  NcclCluster cluster;
  const auto thrown = run_two(cluster, [](NcclRank& rank) {
    reduce(rank);
    if (rank.p == 0) return;
    rank.cluster.library.async_error(1, 6);
    throw std::runtime_error(rank.group->abort_reason());
  });
  CHECK_THAT(thrown[1], Contains("ncclCommGetAsyncError on rank 1") && Contains("code 6"));
}

TEST_CASE("nccl: a rank that never comes ends by the timeout, which names the call and the rank") {
  NcclCluster cluster;
  std::promise<void> over;
  const auto thrown = run_two(
      cluster,
      [&](NcclRank& rank) {
        reduce(rank);  // connects them: before, the launch would wait
        if (rank.p == 1) {
          over.get_future().wait();
          rank.group->barrier()->wait();
        }
        const auto work = rank.group->all_reduce(rank.put(std::vector<float>(7)), ReduceOp::kSum);
        work->wait();  // of the stream: this one cannot know
        try {
          finish(*work);
        } catch (const Timeout&) {
          require_throws<Timeout>([&] { work->wait(); });  // again the same
          require(work->is_completed(), "it has an end");
          require_throws<Timeout>([&] { rank.group->barrier(); });
          rank.synchronize();  // the stream goes on: the kernel was ended
          over.set_value();
          throw;
        }
      },
      soon);
  CHECK_THAT(thrown[0], Contains("rank 0 waited 2 s for all_reduce(sum, 7 x f32) #2"));
  CHECK_THAT(thrown[1], Contains("rank 0 waited 2 s"));
}

TEST_CASE("nccl: a kernel that hangs ends by the timeout") {
  for (const int version : {22605, 23003}) {  // by abort, and by revoke
    NcclCluster cluster(version);
    const auto thrown = run_two(
        cluster,
        [&](NcclRank& rank) {
          if (rank.p == 1) rank.cluster.library.hang(1);
          reduce(rank);
        },
        soon);
    for (const auto& what : thrown) CHECK_THAT(what, Contains("waited 2 s"));
    CHECK((cluster.library.calls(1, "ncclCommRevoke") > 0) == (version > 22807));
  }
}

/// pytorch/pytorch#112518: with a kernel stuck and the launch queue full any call of CUDA may block. It did
/// so under the lock that the deadline, the board and an abort need.
TEST_CASE("nccl: a device that does not answer holds up neither the deadline nor an abort") {
  const bool aborts = GENERATE(false, true);
  NcclCluster cluster;
  std::barrier both(2);
  std::promise<void> go;
  const auto gate = go.get_future().share();
  const auto thrown = run_two(
      cluster,
      [&](NcclRank& rank) {
        reduce(rank);
        both.arrive_and_wait();
        if (rank.p == 1) return both.arrive_and_wait();
        const Buffer buffer = rank.put(std::vector<float>(5));
        cluster.library.hold_queries(0, gate);
        const int asked = cluster.library.calls(0, "cudaEventQuery");
        const auto work = rank.group->all_reduce(buffer, ReduceOp::kSum);  // rank 1 never calls it
        test::yield_until([&] { return cluster.library.calls(0, "cudaEventQuery") != asked; });
        if (aborts) rank.group->abort("enough");
        test::yield_until([&] { return !rank.group->abort_reason().empty(); });
        go.set_value();
        both.arrive_and_wait();
        finish(*work);
      },
      soon);
  CHECK_THAT(thrown[0], Contains(aborts ? "enough" : "waited 2 s for all_reduce"));
  CHECK(thrown[1] == "");
}

/// An evaluation of 40 s that was enqueued before an all_reduce ended a group that was well.
TEST_CASE("nccl: what a stream has before an operation does not count against its deadline") {
  NcclCluster cluster;
  std::promise<void> go;
  const auto gate = go.get_future().share();
  std::barrier both(2);
  const auto thrown = run_two(
      cluster,
      [&](NcclRank& rank) {
        reduce(rank);
        const Buffer buffer = rank.put(std::vector<float>(5, 1));
        cluster.library.on_stream(rank.p, rank.stream, [gate] { gate.wait(); });
        const auto first = rank.group->all_reduce(buffer, ReduceOp::kSum),
                   second = rank.group->all_reduce(buffer, ReduceOp::kSum);
        const MonotonicClock clock;
        const Instant until = clock.now() + 5s;  // more than twice the timeout
        while (clock.now() < until && rank.group->abort_reason().empty()) std::this_thread::sleep_for(10ms);
        both.arrive_and_wait();
        if (rank.p == 0) go.set_value();
        finish(*first);
        finish(*second);
        require(rank.get<float>(buffer) == std::vector<float>(5, 4), "the sum");
      },
      soon);
  check_none(thrown);
}

TEST_CASE("nccl: a rank that never joins") {
  NcclCluster cluster;
  NcclRank rank(cluster, 0);
  auto options = cluster.options(0, 0, 2);
  options.timeout = 200ms;
  // Rank 1 says what it can do, and is never heard of again.
  options.exchange = [](const std::string& mine, const auto& answer) { return answer({mine, mine}); };
  CHECK_THROWS_AS(rank.make(options), Timeout);
  CHECK_THAT(options.host->abort_reason(), Contains("NCCL was not ready on rank 0"));
  CHECK(cluster.library.calls(0, "ncclCommRevoke") == 0);  // there is nothing yet that it could make quiet
}

TEST_CASE("nccl: abort in the middle reaches every rank, with the first reason") {
  NcclCluster cluster;
  std::promise<void> launched;
  const auto thrown = run_two(cluster, [&](NcclRank& rank) {
    reduce(rank);
    if (rank.p == 1) {
      launched.get_future().wait();
      rank.group->abort("enough");
      rank.group->abort("a second reason");
      require(rank.group->abort_reason() == "enough", "another reason");
      rank.group->barrier();
      return;
    }
    const auto work = rank.group->all_reduce(rank.put(std::vector<float>(7)), ReduceOp::kSum);
    work->wait();
    launched.set_value();
    try {
      finish(*work);
    } catch (const CollectiveAborted&) {
      require(rank.group->abort_reason() == "enough", "another reason");
      rank.synchronize();
      throw;
    }
  });
  CHECK_THAT(thrown[0], Contains("enough") && Contains("rank 0 was at all_reduce(sum, 7 x f32) #2"));
  CHECK_THAT(thrown[1], Contains("enough"));
}

TEST_CASE("nccl: another process sets the abort word, as a node does") {
  NcclCluster cluster;
  const auto thrown = run_two(cluster, [&](NcclRank& rank) {
    reduce(rank);
    if (rank.p == 0) abort_region(rank.cluster.region(1)->data(), "rank 9 died");
    for (;;) reduce(rank);
  });
  for (const auto& what : thrown) CHECK_THAT(what, Contains("rank 9 died"));
}

TEST_CASE("nccl: what was complete before an abort stays good") {
  std::barrier both(2);  // what is complete on one rank may be about to be on the other
  run_nccl(2, [&](NcclRank& rank) {
    const Buffer buffer = rank.put(std::vector<float>(7, 1));
    const auto work = rank.group->all_reduce(buffer, ReduceOp::kSum);
    finish(*work);
    both.arrive_and_wait();
    rank.group->abort("later");
    work->wait();
    if (work->exception() || rank.get<float>(buffer)[0] != 2) throw std::runtime_error("not good");
    try {
      rank.group->all_reduce(buffer, ReduceOp::kSum);
    } catch (const CollectiveAborted&) {
      return;
    }
    throw std::runtime_error("the group goes on");
  });
}

TEST_CASE("nccl: different calls, compared: an error that names both, long before the timeout") {
  NcclCluster cluster;
  const auto thrown = run_two(
      cluster,
      [&](NcclRank& rank) {
        for (int i = 0; i < 100; ++i) reduce(rank);  // more than there are slots
        if (rank.p == 0) reduce(rank);
        const auto work = rank.group->broadcast(rank.put(std::vector<float>(5)), 0);
        finish(*work);
      },
      [](NcclGroupOptions& options) { options.compare_calls = true; });
  for (const auto& what : thrown) {
    CHECK_THAT(what, Contains("rank 0 all_reduce(sum, 100 x f32) #101") &&
                         Contains("rank 1 broadcast(5 x f32, root 0) #101"));
  }
}

/// Each rank sends to the other, and neither receives: no pair connects, and both calls block.
TEST_CASE("nccl: different calls, compared: found while enqueueing blocks") {
  NcclCluster cluster;
  const auto thrown = run_two(
      cluster,
      [&](NcclRank& rank) {
        const Buffer mine = rank.put(std::vector<float>(5)), all = rank.put(std::vector<float>(10));
        rank.group->gather(mine, all, 1 - rank.p)->wait();
      },
      [](NcclGroupOptions& options) { options.compare_calls = true; });
  for (const auto& what : thrown) {
    CHECK_THAT(
        what, Contains("rank 0 gather(5 x f32, root 1) #1") && Contains("rank 1 gather(5 x f32, root 0) #1"));
  }
}

/// Each call is right by itself: rank 0 gives 3 where rank 1 takes 2.
TEST_CASE("nccl: counts of an all_to_all that do not fit, compared: an error, long before the timeout") {
  const bool fit = GENERATE(true, false);
  NcclCluster cluster;
  const auto thrown = run_two(
      cluster,
      [&](NcclRank& rank) {
        const std::size_t other = fit || rank.p == 0 ? 3 : 2;
        const std::vector<std::size_t> gives{rank.p == 0 ? 1U : 4U, rank.p == 0 ? 3U : 1U};
        const std::vector<std::size_t> takes{rank.p == 0 ? 1U : other, rank.p == 0 ? 4U : 1U};
        const Buffer in = rank.put(std::vector<float>(gives[0] + gives[1]));
        const Buffer out = rank.put(std::vector<float>(takes[0] + takes[1]));
        const auto work = rank.group->all_to_all(in, gives, out, takes);
        finish(*work);
      },
      [](NcclGroupOptions& options) { options.compare_calls = true; });
  for (const auto& what : thrown) {
    if (fit) CHECK_THAT(what, Equals(""));
    if (!fit) CHECK_THAT(what, Contains("other counts than they take") && Contains("all_to_all"));
  }
}

TEST_CASE("nccl: different calls, not compared, end by the timeout and name both on the other rank") {
  NcclCluster cluster;
  const auto thrown = run_two(
      cluster,
      [&](NcclRank& rank) {
        if (rank.p == 0) reduce(rank);
        const auto work = rank.group->broadcast(rank.put(std::vector<float>(5)), 0);
        finish(*work);
      },
      [](NcclGroupOptions& options) { options.timeout = options.rank == 0 ? 2s : 60s; });
  CHECK_THAT(thrown[0], Contains("waited 2 s for all_reduce(sum, 100 x f32) #1"));
  CHECK_THAT(thrown[1], Contains("waited 2 s for all_reduce") &&
                            Contains("rank 1 was at broadcast(5 x f32, root 0) #1"));
}

TEST_CASE("nccl: a message without its partner ends by the timeout") {
  NcclCluster cluster;
  std::promise<void> over;
  const auto thrown = run_two(
      cluster,
      [&](NcclRank& rank) {
        if (rank.p == 1) return over.get_future().wait();
        const auto work = rank.group->send(rank.put(std::vector<float>(1)), 1);
        try {
          finish(*work);
        } catch (const Timeout&) {
          over.set_value();
          throw;
        }
      },
      soon);
  CHECK_THAT(thrown[0], Contains("waited 2 s for send(1 x f32, to 1, tag 0)"));
}

TEST_CASE("nccl: works outlive their group") {
  std::shared_ptr<Work> good;
  run_nccl(1, [&](NcclRank& rank) {
    good = rank.group->all_reduce(rank.put(std::vector<float>(3, 1)), ReduceOp::kSum);
    rank.group.reset();  // waits for what is in flight
    require(good->is_completed(), "in flight without a group");
    good->wait();
    good.reset();
  });
}

TEST_CASE("nccl: options that make no sense, and invitations that do not decode") {
  NcclCluster cluster;
  const auto& api = cluster.library.api(0);
  const auto refused = [&](auto change) {
    auto options = cluster.options(0, 0, 2);
    change(options);
    CHECK_THROWS_AS(make_nccl_group(options, api), BadConfig);
  };
  refused([](NcclGroupOptions& o) { o.rank = 2; });
  refused([](NcclGroupOptions& o) { o.size = 0; });
  refused([](NcclGroupOptions& o) { o.timeout = 0s; });
  refused([](NcclGroupOptions& o) { o.device = -1; });
  refused([](NcclGroupOptions& o) { o.host = nullptr; });
  refused([](NcclGroupOptions& o) { o.host = std::make_shared<WordGroup>(Generation{1, 1}); });
  refused([](NcclGroupOptions& o) { o.leaves = {{0, 1}}; });
  refused([](NcclGroupOptions& o) { o.leaves = {{0, 1}, {2, 3}}; });

  const std::string id(256, 'a'), ids = id + " " + id + " " + id;
  for (const std::string& heard :
       {std::string(), std::string("hello"), "troupe-nccl-3 23003 none " + id,
        "troupe-nccl-3 23003 none " + ids + "a", "troupe-nccl-3 23003 1.1 " + ids,
        std::string("troupe-nccl-3 23003 1.1"), "troupe-nccl-3 x none " + ids,
        "troupe-nccl-2 23003 none " + ids, "troupe-nccl-3 23003 none " + ids + " " + id}) {
    NcclCluster of;
    auto options = of.options(1, 1, 2);
    options.exchange = [&](const std::string&, const auto&) { return heard; };
    CHECK_THROWS_AS(make_nccl_group(options, of.library.api(1)), BadInput);
    CHECK_FALSE(options.host->abort_reason().empty());  // and the others know
  }
  NcclCluster of;
  auto options = of.options(1, 1, 2);
  options.exchange = [&](const std::string&, const auto&) { return "troupe-nccl-3 22705 none " + ids; };
  CHECK_THROWS_WITH(make_nccl_group(options, of.library.api(1)), Contains("2.27.5") && Contains("2.30.3"));
}

TEST_CASE(
    "nccl: the real libraries, where this was built with them: a group of one rank, or why there is none") {
  NcclGroupOptions options;
  options.messages = false;
  options.host = std::make_shared<WordGroup>(Generation{1, 1});
  try {
    const auto group = make_nccl_group(options);
    CHECK(group->backend() == "nccl");
  } catch (const Unavailable& e) {
    CHECK_THAT(e.what(), Contains("built without NCCL") || Contains("cannot load NCCL") || Contains("cuda"));
    WARN(e.what());
  }
}
