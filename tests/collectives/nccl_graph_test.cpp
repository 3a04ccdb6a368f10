/// Operations in CUDA graphs, over the double.

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "tests/collectives/nccl_ranks.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;

/// The watching thread asked for the event of an operation in flight, which ended the capture of its rank.
TEST_CASE("nccl: a capture outlives what is in flight and watched") {
  run_nccl(2, [&](NcclRank& rank) {
    auto& library = rank.cluster.library;
    std::promise<void> go;
    auto gate = go.get_future().share();
    library.on_stream(rank.p, rank.stream, [gate] { gate.wait(); });
    const auto before = rank.group->all_reduce(rank.put(std::vector<float>(3, 1)), ReduceOp::kSum);
    const auto& cuda = library.api(rank.p).cuda;
    nccl::Stream captured = nullptr;
    cuda.cudaSetDevice(rank.p);
    cuda.cudaStreamCreate(&captured);
    library.begin_capture(rank.p, captured);
    library.on_stream(rank.p, captured, [] {});
    const int asked = library.calls(rank.p, "cudaEventQuery");
    test::yield_until([&] { return library.calls(rank.p, "cudaEventQuery") >= asked + 3; });
    require(!before->is_completed(), "too early");  // and this thread may ask, too
    require(library.end_capture(rank.p, captured) != nullptr, "the capture was ended");
    go.set_value();
    finish(*before);
    cuda.cudaStreamDestroy(captured);
  });
}

TEST_CASE("nccl: operations in a graph run with each replay, and others beside it") {
  const bool compare = GENERATE(false, true);
  run_nccl(
      2,
      [&](NcclRank& rank) {
        auto& library = rank.cluster.library;
        const Buffer exact = rank.put(std::vector<std::int32_t>(300, 1)),
                     fast = rank.put(std::vector<std::int32_t>{1, 2});
        rank.synchronize();
        library.begin_capture(rank.p, rank.stream);
        const auto works = {rank.group->all_reduce(exact, ReduceOp::kSum),
                            rank.group->all_reduce(fast, Reduction(ReduceOp::kSum, false))};
        for (const auto& work : works) work->wait();
        const auto asked = rank.group->broadcast(fast, 0);
        require(asked->is_completed() && !asked->exception(), "the host has nothing to wait for");
        asked->wait();
        const auto replay = library.end_capture(rank.p, rank.stream);
        require(replay != nullptr, "it does not come together");
        require(rank.get<std::int32_t>(exact)[299] == 1, "it ran while it was captured");
        for (int i = 0; i < 3; ++i) replay();
        require(rank.get<std::int32_t>(exact)[299] == 8, "an exact sum a replay");
        require(rank.get<std::int32_t>(fast) == std::vector<std::int32_t>{8, 16}, "a sum a replay");
        const auto after = rank.group->all_reduce(exact, ReduceOp::kSum);
        finish(*after);
        require(rank.get<std::int32_t>(exact)[299] == 16, "the group goes on");
      },
      [&](NcclGroupOptions& options) { options.compare_calls = compare; });
}
