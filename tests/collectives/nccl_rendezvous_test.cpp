/// init_process_group on the NCCL backend, over the double: how ranks of one machine and of several come
/// together, hear of aborts, and go on.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "collectives/nccl/api.hpp"
#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/store_board.hpp"
#include "tests/collectives/nccl_ranks.hpp"
#include "tests/collectives/rendezvous_ranks.hpp"

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

/// Ranks as threads, which call init_process_group. `machines`: how many they are on. What each threw.
std::vector<std::string> init_nccl(NcclCluster& cluster, int size, int machines,
                                   const std::function<void(InitRank&)>& body, bool share_gpu = false) {
  register_backend("nccl double", [&](const BackendContext& context) {
    return join_nccl_group(context, cluster.library.api(context.options.device));
  });
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  std::vector<std::string> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        InitRank rank{{cluster, r}, nullptr};
        rank.group = init_process_group("nccl double", url,
                                        {.rank = r,
                                         .size = size,
                                         .timeout = 60s,
                                         .operation_timeout = 60s,
                                         .device = r,
                                         .share_gpu = share_gpu,
                                         .host = "machine " + std::to_string(r % machines)});
        body(rank);
      } catch (const std::exception& e) {
        thrown[static_cast<std::size_t>(r)] = e.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

/// A store in this process.
class LocalStore final : public Store {
 public:
  void set(const std::string& key, std::string_view value) override { map_[key] = value; }
  std::string set_once(const std::string& key, std::string_view value) override {
    return map_.try_emplace(key, value).first->second;
  }
  std::optional<std::string> find(const std::string& key, Duration) override {
    if (gone) throw Unavailable({ErrorCode::kUnavailable, "the store is gone", "", ""});
    const auto found = map_.find(key);
    return found == map_.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t add(const std::string&, std::int64_t) override { return 0; }
  std::int64_t erase(const std::string&) override { return 0; }
  bool gone = false;

 private:
  std::map<std::string, std::string> map_;
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
  for (const std::string& what : thrown) CHECK(what == "");
  check_double(cluster.library);
}

TEST_CASE("nccl by name: ranks share a GPU when asked") {
  for (const bool asked : {false, true}) {
    NcclCluster cluster;
    cluster.library.one_gpu();
    const auto thrown = init_nccl(
        cluster, 2, 1, [](InitRank& rank) { expect(rank.sum(1) == 2, "the sum"); }, asked);
    for (const std::string& what : thrown) {
      if (asked) CHECK(what == "");
      if (!asked) CHECK_THAT(what, Catch::Contains("NCCL_MULTI_RANK_GPU_ENABLE"));
    }
    check_double(cluster.library);
  }
}

TEST_CASE("nccl by name: a rank without a GPU is an error on all, which names it") {
  NcclCluster cluster;
  cluster.library.fail_call(1, "cudaGetDeviceCount", 100);
  register_backend("nccl unchosen", [&](const BackendContext& given) {
    BackendContext context = given;
    context.options.device = -1;
    return join_nccl_group(context, cluster.library.api(given.options.device));
  });
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  std::vector<std::string> thrown(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      try {
        init_process_group("nccl unchosen", url, {.rank = r, .size = 2, .timeout = 60s, .device = r});
      } catch (const std::exception& e) {
        thrown[static_cast<std::size_t>(r)] = e.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const std::string& what : thrown) CHECK_THAT(what, Catch::Contains("rank 1 has no GPU"));
  check_double(cluster.library);
}

TEST_CASE("a board in a store: the first reason stays, on every rank") {
  const auto store = std::make_shared<LocalStore>();
  StoreBoard first(store), second(store), third(store);
  CHECK_FALSE(first.read());
  first.post(AbortKind::kTimeout, "too late");
  second.post(AbortKind::kRequested, "I, too");
  for (StoreBoard* board : {&first, &second, &third}) {
    const auto reason = board->read();
    REQUIRE(reason);
    CHECK(reason->kind == AbortKind::kTimeout);
    CHECK(reason->text == "too late");
  }

  const auto other = std::make_shared<LocalStore>();
  StoreBoard asks(other);
  other->gone = true;
  CHECK_FALSE(asks.read());  // who watches the store says more

  const auto odd = std::make_shared<LocalStore>();
  odd->set("abort", "99 what is this");
  const auto reason = StoreBoard(odd).read();
  REQUIRE(reason);
  CHECK(reason->kind == AbortKind::kUnknown);
}
