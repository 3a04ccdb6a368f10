/// init_process_group on the NCCL backend, over the double: how ranks of one machine and of several come
/// together, hear of aborts, and go on.

#include <barrier>
#include <catch2/catch.hpp>

#include "collectives/nccl/api.hpp"
#include "collectives/rendezvous/backends.hpp"
#include "tests/collectives/nccl_ranks.hpp"
#include "tests/collectives/rendezvous_ranks.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/threads.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

namespace {

struct InitRank {
  NcclRank device;  ///< its memory and its stream
  std::shared_ptr<ProcessGroup> group;

  float sum(float mine) {
    const Buffer buffer = device.put(std::vector<float>(1000, mine));
    const auto work = group->all_reduce(buffer, {});
    work->wait();
    while (!work->wait_for(1s)) {
    }
    if (auto thrown = work->exception()) std::rethrow_exception(thrown);
    return device.get<float>(buffer)[999];
  }
};

/// A port of this machine, at which ranks of this process meet, and a thread for each. What each threw.
std::vector<std::string> run_meeting(int size,
                                     const std::function<void(int rank, const std::string& url)>& body) {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  return test::run_on_threads(static_cast<std::size_t>(size), [&](int rank) { body(rank, url); });
}

/// Ranks as threads, which call init_process_group. `machines`: how many they are on. What each threw.
std::vector<std::string> init_nccl(NcclCluster& cluster, int size, int machines,
                                   const std::function<void(InitRank&)>& body,
                                   InitOptions options = {.operation_timeout = 60s}) {
  register_backend("nccl double", [&](const BackendContext& context) {
    return join_nccl_group(context, cluster.library.api(context.options.device));
  });
  return run_meeting(size, [&](int r, const std::string& url) {
    InitRank rank{{cluster, r}, nullptr};
    InitOptions mine = options;
    mine.rank = mine.device = r;
    mine.size = size;
    mine.timeout = 60s;
    mine.host = "machine " + std::to_string(r % machines);
    rank.group = init_process_group("nccl double", url, mine);
    body(rank);
  });
}

/// A rank's part in meetings of the ranks' threads: what is complete on one may be about to be on another,
/// which an abort would fail. One that throws is waited for no more.
class Meets {
 public:
  explicit Meets(std::barrier<>& all) : all_(all) {}
  ~Meets() { all_.arrive_and_drop(); }
  void wait() const { all_.arrive_and_wait(); }

 private:
  std::barrier<>& all_;
};

}  // namespace

TEST_CASE(
    "nccl by name: ranks come together, on one machine or several, make groups and go on after an abort") {
  const int machines = GENERATE(1, 2, 3);
  NcclCluster cluster;
  const auto thrown = init_nccl(cluster, 3, machines, [](InitRank& rank) {
    const int world_rank = rank.group->rank();
    expect(rank.group->backend() == "nccl", "it is the backend's");
    expect(rank.sum(static_cast<float>(world_rank)) == 3, "the sum of all");
    {
      InitRank pair{{rank.device.cluster, rank.device.p}, rank.group->new_group({0, 2})};
      expect((pair.group == nullptr) == (world_rank == 1), "who is in it has it");
      if (pair.group) expect(pair.sum(static_cast<float>(world_rank)) == 2, "the sum of two");
    }
    try {
      rank.group->barrier()->wait();  // everybody is through with the groups above
      if (world_rank == 1) rank.group->abort("rank 1 has had enough");
      while (true) rank.sum(1);
    } catch (const CollectiveAborted& e) {
      expect(std::string(e.what()).find("rank 1 has had enough") != std::string::npos, e.what());
    }
    rank.group = rank.group->rebuild();
    expect(rank.sum(1) == 3, "the next generation");
  });
  CAPTURE(machines);
  check_none(thrown);
  check_double(cluster.library);
}

TEST_CASE("nccl by name: a group for the host's memory comes beside it, and both end together") {
  const int machines = GENERATE(1, 2);
  NcclCluster cluster;
  const auto thrown = init_nccl(cluster, 3, machines, [](InitRank& rank) {
    const auto sum_on_host = [](ProcessGroup& group) {
      std::vector<int> one{1};
      group.host_group().all_reduce(one)->wait();
      return one[0];
    };
    const auto throws = [](const std::string& reason, const std::function<void()>& calls) {
      try {
        while (true) calls();
      } catch (const CollectiveAborted& e) {
        expect(std::string(e.what()).find(reason) != std::string::npos, e.what());
      }
    };
    ProcessGroup& host = rank.group->host_group();
    expect(host.backend() == "native" && host.rank() == rank.group->rank() && host.size() == 3, "its ranks");
    expect(&host.host_group() == &host, "a group for the host's memory is its own");
    expect(sum_on_host(*rank.group) == 3, "the sum of all");
    if (const auto pair = rank.group->new_group({0, 2})) expect(sum_on_host(*pair) == 2, "the sum of two");
    try {
      (void)host.new_group({0});
      expect(false, "it makes no groups");
    } catch (const BadConfig&) {
    }
    const int world_rank = rank.group->rank();
    throws("the host has had enough", [&] {
      rank.sum(1);
      if (world_rank == 1) host.abort("the host has had enough");
    });
    rank.group = rank.group->rebuild();
    throws("the GPU has had enough", [&] {
      expect(sum_on_host(*rank.group) == 3, "the sum in the next generation");
      if (world_rank == 2) rank.group->abort("the GPU has had enough");
    });
  });
  CAPTURE(machines);
  check_none(thrown);
  check_double(cluster.library);
}

TEST_CASE("nccl by name: whose deadline it was throws Timeout, and the others hear why") {
  NcclCluster cluster;
  const auto thrown = init_nccl(cluster, 2, 1,
                                [](InitRank& rank) {
                                  rank.sum(1);
                                  if (rank.group->rank() == 1) rank.device.cluster.library.hang(1);
                                  rank.sum(1);
                                },
                                {.operation_timeout = 500ms});
  const bool first_late = thrown[0].find("timed out") != std::string::npos;
  CHECK((first_late || thrown[1].find("timed out") != std::string::npos));
  for (const std::string& what : thrown) CHECK_THAT(what, Catch::Contains("waited 0.5 s for"));
  check_double(cluster.library);
}

TEST_CASE("nccl by name: a GPU that does not exist is an error on all ranks, with how many there are") {
  const int chosen = GENERATE(64, -2);
  NcclCluster cluster;
  register_backend("nccl misled", [&](const BackendContext& given) {
    BackendContext context = given;
    if (given.rank == 1) context.options.device = chosen;
    return join_nccl_group(context, cluster.library.api(given.options.device));
  });
  const auto thrown = run_meeting(3, [](int r, const std::string& url) {
    init_process_group("nccl misled", url, {.rank = r, .size = 3, .timeout = 60s, .device = r});
  });
  for (const std::string& what : thrown) {
    CHECK_THAT(what, Catch::Contains("rank 1 is to use GPU " + std::to_string(chosen)) &&
                         Catch::Contains("sees 64"));
  }
  check_double(cluster.library);
}

TEST_CASE("nccl by name: the survivors of a rank shrink; without a loss all start from scratch") {
  NcclCluster cluster;
  std::barrier all(4);
  const auto thrown = init_nccl(cluster, 4, 1, [&](InitRank& rank) {
    const Meets meets(all);
    expect(rank.sum(static_cast<float>(rank.group->rank())) == 6, "the sum of four");
    meets.wait();
    if (rank.device.p == 1) return;  // leaves
    rank.group = rank.group->rebuild();
    expect(rank.group->size() == 3 && rank.sum(1) == 3, "the sum of three");
    meets.wait();
    rank.group = rank.group->rebuild();
    expect(rank.group->size() == 3 && rank.sum(1) == 3, "the sum of the same three");
    meets.wait();
    if (rank.device.p == 0) return;
    rank.group = rank.group->rebuild();
    expect(rank.group->size() == 2 && rank.sum(1) == 2, "the sum of two");
  });
  check_none(thrown);
  check_double(cluster.library);
  // A group with messages has three communicators.
  CHECK(cluster.library.calls(0, "ncclCommShrink") == 3);
  for (const int p : {2, 3}) CHECK(cluster.library.calls(p, "ncclCommShrink") == 6);
  for (const int p : {2, 3}) CHECK(cluster.library.calls(p, "ncclCommInitRankConfig") == 6);
}

/// A rank's place on its host chose its GPU anew in every group, so that those of a part of the ranks were on
/// another one than the buffers.
TEST_CASE("nccl by name: a rank that was given no GPU keeps the first one, in new groups and rebuilt ones") {
  NcclCluster cluster;
  static thread_local int process = 0;
  register_backend("nccl unchosen", [&](const BackendContext& context) {
    return join_nccl_group(context, cluster.library.api(process));
  });
  std::barrier all(3);
  const auto thrown = run_meeting(3, [&](int r, const std::string& url) {
    process = r;
    const Meets meets(all);
    auto group = init_process_group("nccl unchosen", url, {.rank = r, .size = 3, .timeout = 60s});
    const auto last_two = group->new_group({1, 2});
    meets.wait();
    if (r == 0) return;
    group = group->rebuild();
    for (ProcessGroup* of : {last_two.get(), group.get()})
      expect(of->facts().device.index == r, "the GPU of rank " + std::to_string(r));
  });
  check_none(thrown);
  check_double(cluster.library);
}

namespace {

/// Ranks as threads that rebuild a group of three, of which process 2 makes its part by `part`, and then is
/// no more. Process 1 gives the first group up.
void rebuild_while_one_dies(NcclCluster& cluster, const BackendFactory& part) {
  static thread_local int process = 0;
  static thread_local bool again = false;
  register_backend("nccl dies", [&](const BackendContext& context) {
    if (process == 2 && std::exchange(again, true)) return part(context);
    return join_nccl_group(context, cluster.library.api(process));
  });
  std::barrier all(3);
  const auto thrown = run_meeting(3, [&](int r, const std::string& url) {
    process = r;
    again = false;
    const Meets meets(all);
    InitRank rank{{cluster, r}, nullptr};
    rank.group = init_process_group("nccl dies", url,
                                    {.rank = r,
                                     .size = 3,
                                     .timeout = 120s,
                                     .operation_timeout = 60s,
                                     .device = r,
                                     .host = "machine " + std::to_string(r)});
    expect(rank.sum(1) == 3, "the sum of three");
    meets.wait();
    try {
      rank.group = rank.group->rebuild();
    } catch (const Timeout&) {
      throw;                           // they hear of it, and do not wait for the deadline
    } catch (const std::exception&) {  // what process 2 threw
      if (r == 2) return;
      rank.group = rank.group->rebuild();
    }
    expect(rank.group->size() == 2 && rank.sum(1) == 2, "the sum of two");
  });
  check_none(thrown);
}

}  // namespace

/// The others ended theirs as if all were well, which from 2.31.2 on waits for a rank that never comes.
TEST_CASE("nccl by name: a rank dies with its part of a group, before the others know that it has it") {
  NcclCluster cluster(23102);
  std::shared_ptr<ProcessGroup> left;
  rebuild_while_one_dies(cluster, [&](const BackendContext& context) -> std::shared_ptr<ProcessGroup> {
    left = join_nccl_group(context, cluster.library.api(2));
    throw std::runtime_error("the end");
  });
  left->abort("it is dead");
  left.reset();
  check_double(cluster.library);
}

/// The others waited for it in NCCL, until the timeout of an operation.
TEST_CASE("nccl by name: a rank dies on its way into a group") {
  NcclCluster cluster;
  rebuild_while_one_dies(cluster, [&](const BackendContext& context) -> std::shared_ptr<ProcessGroup> {
    const auto host = join_native_group(context);
    context.store.set("says/2", "troupe-nccl-3 23003 none");
    (void)context.store.get("invitation", 60s);
    test::yield_until([&] { return cluster.library.calls(0, "ncclCommInitRankConfig") != 3; });
    throw std::runtime_error("the end");
  });
  check_double(cluster.library);
}

TEST_CASE("nccl by name: ranks share a GPU when asked") {
  for (const bool asked : {false, true}) {
    NcclCluster cluster;
    cluster.library.one_gpu();
    const auto thrown = init_nccl(cluster, 2, 1, [](InitRank& rank) { expect(rank.sum(1) == 2, "the sum"); },
                                  {.operation_timeout = 60s, .share_gpu = asked});
    for (const std::string& what : thrown) {
      if (asked) CHECK(what == "");
      if (!asked) CHECK_THAT(what, Catch::Contains("NCCL_MULTI_RANK_GPU_ENABLE"));
    }
    check_double(cluster.library);
  }
}

TEST_CASE("nccl by name: different calls are named when they are to be compared") {
  NcclCluster cluster;
  const auto thrown = init_nccl(cluster, 2, 1,
                                [](InitRank& rank) {
                                  if (rank.group->rank() == 1)
                                    rank.group->broadcast(rank.device.put(std::vector<float>(5)), 0)->wait();
                                  rank.sum(1);
                                },
                                {.operation_timeout = 60s, .compare_calls = true});
  for (const std::string& what : thrown) {
    CHECK_THAT(what, Catch::Contains("rank 0 all_reduce(sum, 1000 x f32) #1") &&
                         Catch::Contains("rank 1 broadcast(5 x f32, root 0) #1"));
  }
  check_double(cluster.library);
}

TEST_CASE("nccl by name: a rank without a GPU is an error on all, which names it") {
  NcclCluster cluster;
  cluster.library.fail_call(1, "cudaGetDeviceCount", 100);
  register_backend("nccl unchosen", [&](const BackendContext& given) {
    BackendContext context = given;
    context.options.device = -1;
    return join_nccl_group(context, cluster.library.api(given.options.device));
  });
  const auto thrown = run_meeting(2, [](int r, const std::string& url) {
    init_process_group("nccl unchosen", url, {.rank = r, .size = 2, .timeout = 60s, .device = r});
  });
  for (const std::string& what : thrown) CHECK_THAT(what, Catch::Contains("rank 1 has no GPU"));
  check_double(cluster.library);
}
