#include "tests/actors/ddp/nccl_ranks.hpp"

#include <catch2/catch.hpp>
#include <mutex>
#include <thread>
#include <utility>

#include "collectives/nccl/api.hpp"
#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/connect/mesh.hpp"
#include "collectives/rendezvous/init.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train::testing {
namespace {

using namespace std::chrono_literals;
using namespace collectives;
using collectives::testing::NcclDouble;

}  // namespace

std::vector<std::string> run_by_name(const std::string& backend, int ranks, NcclDouble& library,
                                     const DdpBody& body) {
  torch::set_num_threads(1);
  static thread_local int device = 0;
  register_backend("nccl double", [&](BackendContext context) {
    context.options.device = device;  // on_host says that it has none
    if (context.predecessor != nullptr) context.predecessor = &gpus_of(*context.predecessor);
    return on_host(join_nccl_group(context, library.api(device)));
  });
  const auto port = DataListener::bind({"127.0.0.1", 0}).value().endpoint().port;
  const std::string url = "tcp://127.0.0.1:" + std::to_string(port);
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        device = rank;
        said[static_cast<std::size_t>(rank)] = body(init_process_group(
            backend == "nccl" ? "nccl double" : backend, url,
            {.rank = rank, .size = ranks, .timeout = 60s, .operation_timeout = 60s, .data_bytes = 32 << 20}));
      } catch (const std::exception& error) {
        said[static_cast<std::size_t>(rank)] = std::string("threw: ") + error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return said;
}

std::vector<std::string> run_by_name(const std::string& backend, int ranks, const DdpBody& body) {
  NcclDouble library;
  auto said = run_by_name(backend, ranks, library, body);
  CHECK(library.misuse() == std::vector<std::string>{});
  CHECK(library.leaked() == "");
  CHECK((library.calls(0, "ncclCommInitRankConfig") > 0) == (backend == "nccl"));
  return said;
}

Pair seeded_pair(int width) {
  static std::mutex generator;
  const std::lock_guard hold(generator);
  torch::manual_seed(1);
  return Pair(width);
}

}  // namespace troupe::train::testing
