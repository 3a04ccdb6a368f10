/// What the NCCL backend's operations compute, over the double: the matrix of every_op.hpp, which calls go to
/// NCCL, and streams.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <future>
#include <thread>

#include "collectives/flight/flight_recorder.hpp"
#include "tests/collectives/nccl_ranks.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

/// How many of NCCL's reductions this rank has called.
int reductions(const NcclRank& rank) {
  int calls = 0;
  for (const char* name : {"ncclAllReduce", "ncclReduce", "ncclReduceScatter"})
    calls += rank.cluster.library.calls(rank.p, name);
  return calls;
}

}  // namespace

TEST_CASE("nccl: the matrix of operations, whole and in pieces") {
  for (const int ranks : {1, 2, 3}) {
    run_nccl(ranks, [&](NcclRank& rank) { run_specs(rank, every_spec(ranks, 50), ranks == 3); });
    run_nccl(
        ranks, [&](NcclRank& rank) { run_specs(rank, specs_of(ranks, 3000), ranks == 2); },
        [](NcclGroupOptions& options) { options.exact_piece_bytes = 1000; });
  }
  run_nccl(5, [&](NcclRank& rank) { run_specs(rank, specs_of(5, 1003)); });
}

TEST_CASE("nccl: trees of every dtype and reduction, however leaves are dealt") {
  constexpr int kLeaves = 7;
  for (const int ranks : {1, 2, 3, 5}) {
    run_nccl(
        ranks, [&](NcclRank& rank) { run_specs(rank, tree_specs(kLeaves, 200, 3)); },
        [&](NcclGroupOptions& options) { options.leaves = deal_leaves(kLeaves, ranks); });
  }
}

TEST_CASE("nccl: without exact, NCCL reduces what it can, and the rest goes the exact way") {
  constexpr int kRanks = 3;
  run_nccl(kRanks, [&](NcclRank& rank) {
    std::vector<OpSpec> specs = any_order_specs(kRanks);
    for (const auto& [dtype, op] : {std::pair{DType::kBFloat16, ReduceOp::kSum},
                                    {DType::kBool, ReduceOp::kMax},
                                    {DType::kInt32, ReduceOp::kBand},
                                    {DType::kInt64, ReduceOp::kBor},
                                    {DType::kUInt8, ReduceOp::kBxor}})
      specs.push_back({OpKind::kAllReduce, dtype, Reduction(op, false), 64, 0, specs.size()});
    for (const OpSpec& spec : specs) {
      const int before = reductions(rank);
      run_specs(rank, {spec});
      const ReduceOp op = spec.how.op;
      const bool lacks = spec.dtype == DType::kInt16 || spec.dtype == DType::kBool || op == ReduceOp::kBand ||
                         op == ReduceOp::kBor || op == ReduceOp::kBxor ||
                         spec.kind == OpKind::kReduceScatterV;
      require((reductions(rank) > before) == !lacks, to_string(spec) + " goes another way");
    }
    // f64 sums of small integers round nowhere: any order gives the same.
    const Buffer sums = rank.put(std::vector<double>(6, rank.p + 1));
    const Buffer part = rank.put(std::vector<double>(2));
    rank.group->reduce_scatter(sums, part, Reduction(ReduceOp::kSum, false))->wait();
    require(rank.get<double>(part) == std::vector<double>(2, 6), "reduce_scatter");
    rank.group->reduce(sums, Reduction::premul_sum(0.5, false), 2)->wait();
    require(rank.get<double>(sums) == std::vector<double>(6, rank.p == 2 ? 3 : rank.p + 1), "reduce");
    rank.group->all_reduce(part, Reduction(ReduceOp::kAvg, false))->wait();
    require(rank.get<double>(part) == std::vector<double>(2, 6), "avg");
  });
}

/// A group of calls on a non-blocking communicator starts a thread in NCCL, which takes longer than a small
/// operation.
TEST_CASE("nccl: no operation lets the library start a thread") {
  run_nccl(2, [](NcclRank& rank) {
    const Buffer buffer = rank.put(std::vector<float>(4, 1)), other = rank.put(std::vector<float>(4));
    for (int i = 0; i < 3; ++i) {
      rank.group->all_reduce(buffer, ReduceOp::kSum)->wait();
      rank.group->all_reduce(buffer, Reduction(ReduceOp::kSum, false))->wait();
      rank.group->batch({Op::send(buffer, 1 - rank.p), Op::recv(other, 1 - rank.p)})->wait();
      rank.group->barrier()->wait();
    }
    const int threads = rank.cluster.library.threads(rank.p);
    require(threads == 0, std::to_string(threads) + " threads");
  });
}

TEST_CASE("nccl: ranks that send to each other do not lock up, and messages keep their order") {
  run_nccl(3, [&](NcclRank& rank) {
    ProcessGroup& group = *rank.group;
    const int right = (rank.p + 1) % 3, left = (rank.p + 2) % 3;
    const Buffer first = rank.put(std::vector{rank.p * 10 + 1.0F}),
                 second = rank.put(std::vector{rank.p * 10 + 2.0F});
    const Buffer in_first = rank.put(std::vector{0.0F}), in_second = rank.put(std::vector{0.0F});
    auto a = group.send(first, right);
    auto b = group.send(second, right);
    auto c = group.recv(in_first, left);
    auto d = group.recv(in_second, left);
    if (rank.p == 1) group.barrier()->wait();  // their order is apart from the collectives'
    d->wait();
    require(rank.get<float>(in_first) == std::vector{left * 10 + 1.0F}, "first");
    require(rank.get<float>(in_second) == std::vector{left * 10 + 2.0F}, "second");
    if (rank.p != 1) group.barrier()->wait();
    require(a->wait_for(std::chrono::seconds(60)) && b->is_completed() && c->is_completed(),
            "all have ended");
    a->wait();
  });
}

/// The double's sends wait to be taken, as NCCL's of large messages: on one communicator, each rank's send
/// would be before the receive that the other waits for.
TEST_CASE("nccl: sends that are issued before the receives do not lock up") {
  run_nccl(2, [&](NcclRank& rank) {
    const Buffer mine = rank.put(std::vector{rank.p + 1.0F}), theirs = rank.put(std::vector{0.0F});
    const auto sent = rank.group->send(mine, 1 - rank.p);
    rank.group->barrier()->wait();
    rank.group->recv(theirs, 1 - rank.p)->wait();
    require(rank.get<float>(theirs) == std::vector{2.0F - rank.p}, "received");
    finish(*sent);
  });
}

TEST_CASE("nccl: an operation waits for the stream that fills its buffer, and the stream for the operation") {
  run_nccl(2, [&](NcclRank& rank) {
    auto& library = rank.cluster.library;
    std::promise<void> go;
    auto gate = go.get_future().share();
    if (rank.p == 0) library.on_stream(0, rank.stream, [gate] { gate.wait(); });
    const Buffer buffer = rank.put(std::vector<std::int32_t>{1, 2, rank.p});
    const auto work = rank.group->all_reduce(buffer, ReduceOp::kSum);
    work->wait();  // of the stream: the host goes on
    std::atomic<bool> reached = false;
    library.on_stream(rank.p, rank.stream, [&] { reached = true; });
    if (rank.p == 0) {
      require(!work->is_completed() && !work->wait_for(std::chrono::milliseconds(20)), "complete too early");
      require(!work->exception(), "it has no end");
      require(!reached, "the stream does not wait");
      go.set_value();
    }
    require(rank.get<std::int32_t>(buffer) == std::vector<std::int32_t>{2, 4, 1}, "sum");
    require(work->wait_for(std::chrono::seconds(60)), "the end");
  });
}

TEST_CASE("nccl: what it does not have is refused before anything is sent") {
  run_nccl(2, [](NcclRank& rank) {
    ProcessGroup& group = *rank.group;
    const Buffer buffer = rank.put(std::vector<float>(4, 1));
    const auto refused = [&](const Op& op, const std::string& what) {
      try {
        group.batch({Op::all_reduce(buffer, ReduceOp::kSum), op});
      } catch (const BadConfig& e) {
        require(std::string(e.what()).find(what) != std::string::npos, e.what());
        return;
      }
      throw std::runtime_error("not refused");
    };
    refused(Op::recv(buffer, kAnyRank), "receive from any rank");
    refused(Op::barrier().within(std::chrono::seconds(1)), "a timeout of its own");
    group.all_reduce(buffer, ReduceOp::kSum)->wait_for(std::chrono::seconds(60));
    require(rank.get<float>(buffer)[0] == 2, "nothing of the batches was launched, and the group is good");
  });
}

TEST_CASE("nccl: a batch goes to the GPU as one group of calls, its exact sums and messages with it") {
  for (const bool compare : {false, true}) {
    run_nccl(
        2,
        [&](NcclRank& rank) {
          auto& library = rank.cluster.library;
          const Reduction fast(ReduceOp::kSum, false);
          const auto numbers = [&] { return rank.put(std::vector<std::int32_t>{1, rank.p}); };
          const Buffer a = numbers(), b = numbers(), c = numbers(), d = numbers(), e = numbers(),
                       f = numbers();
          const int groups = library.calls(rank.p, "ncclGroupStart");
          rank.group->batch({Op::all_reduce(a, fast), Op::broadcast(b, 1), Op::all_reduce(c, fast)})->wait();
          const int took = library.calls(rank.p, "ncclGroupStart") - groups;
          require(compare ? took > 3 : took == 1, std::to_string(took) + " groups of calls");
          const auto work = rank.group->batch({Op::send(d, 1 - rank.p), Op::all_reduce(f, ReduceOp::kSum),
                                               Op::recv(e, 1 - rank.p), Op::barrier()});
          work->wait();
          const std::vector<std::int32_t> sum{2, 1}, theirs{1, 1 - rank.p};
          require(rank.get<std::int32_t>(a) == sum && rank.get<std::int32_t>(c) == sum, "sums");
          require(rank.get<std::int32_t>(b) == std::vector<std::int32_t>{1, 1}, "broadcast");
          require(rank.get<std::int32_t>(f) == sum && rank.get<std::int32_t>(e) == theirs, "exact, message");
          require(work->wait_for(std::chrono::seconds(60)), "the end");
        },
        [&](NcclGroupOptions& options) { options.compare_calls = compare; });
  }
}

/// A stream-only wait() was recorded as completed once.
TEST_CASE("nccl: the flight recorder tells what a stream waits for from what is complete") {
  run_nccl(2, [&](NcclRank& rank) {
    using flight::State;
    auto& library = rank.cluster.library;
    const auto recorder = flight::record(*rank.group, {.folder = ""});
    const auto state = [&](std::size_t i) { return recorder->snapshot("asked").operations.at(i).state; };
    std::promise<void> go;
    auto gate = go.get_future().share();
    library.on_stream(rank.p, rank.stream, [gate] { gate.wait(); });
    const Buffer buffer = rank.put(std::vector<std::int32_t>{1, 2});
    const auto work = rank.group->all_reduce(buffer, ReduceOp::kSum);
    require(state(0) == State::kLaunched, "launched");
    work->wait();
    require(state(0) == State::kEnqueued, "the stream waits");
    go.set_value();
    // Nobody asks this Work again: the group's thread hears of the end by its event.
    rank.synchronize();
    test::yield_until([&] { return state(0) != State::kEnqueued; });
    require(state(0) == State::kCompleted, "completed");
    const Buffer mine = rank.put(std::vector<float>{1.5F}), theirs = rank.put(std::vector<float>{0});
    const auto sent = rank.group->send(mine, 1 - rank.p), received = rank.group->recv(theirs, 1 - rank.p);
    require(received->wait_for(std::chrono::seconds(60)) && sent->wait_for(std::chrono::seconds(60)),
            "messages");
    require(state(1) == State::kCompleted && state(2) == State::kCompleted, "messages are complete");
  });
}

TEST_CASE("nccl: memory of the group, and what it refuses") {
  run_nccl(2, [&](NcclRank& rank) {
    ProcessGroup& group = *rank.group;
    require(
        group.backend() == "nccl" && group.size() == 2 && group.leaves() == LeafInterval{rank.p, rank.p + 1},
        "facts");
    Buffer own = group.allocate(1000, DType::kBFloat16);
    require(reinterpret_cast<std::uintptr_t>(own.data) % 64 == 0 && own.count == 1000, "allocate");
    own.stream = rank.stream;
    std::memset(own.data, 0, 2000);
    group.all_reduce(own, ReduceOp::kSum)->wait();
    require(rank.cluster.library.calls(rank.p, "ncclCommRegister") == 1, "registered");
    Buffer brief = group.allocate(1000, DType::kBFloat16);
    brief.stream = rank.stream;
    std::memset(brief.data, 0, 2000);
    const auto work = group.all_reduce(brief, ReduceOp::kSum);
    group.deallocate(brief);  // waits for it
    require(work->is_settled() && work->exception() == nullptr, "memory was given back under an operation");
    require(rank.cluster.library.calls(rank.p, "ncclCommDeregister") == 1 &&
                rank.cluster.library.calls(rank.p, "ncclMemFree") == 1,
            "given back");

    const auto refused = [&](auto call, const std::string& with) {
      try {
        call();
      } catch (const Error& e) {
        return require(std::string(e.what()).find(with) != std::string::npos,
                       std::string("instead: ") + e.what());
      }
      require(false, "not refused: " + with);
    };
    const Buffer good = rank.put(std::vector<float>(4));
    float host[1] = {0};
    refused([&] { group.all_reduce(std::span<float>(host)); }, "not in the memory of a CUDA device");
    refused([&] { group.allocate(std::size_t{1} << 41, DType::kInt8); }, "2^40");
    refused([&] { group.deallocate(good); }, "its allocate() did not give it");
    refused([&] { group.send(good, 1 - rank.p, 5); }, "tags");
    refused([&] { group.send(good, rank.p); }, "this rank");
    group.barrier()->wait();  // and goes on
  });
  run_nccl(
      1,
      [](NcclRank& rank) {
        try {
          rank.group->recv(rank.put(std::vector<float>(1)), 0);
        } catch (const BadInput&) {  // to itself
          return;
        }
        require(false, "not refused");
      },
      [](NcclGroupOptions& options) { options.messages = false; });
  run_nccl(
      2,
      [](NcclRank& rank) {
        try {
          rank.group->recv(rank.put(std::vector<float>(1)), 1 - rank.p);
        } catch (const BadConfig&) {
          return;
        }
        require(false, "not refused");
      },
      [](NcclGroupOptions& options) { options.messages = false; });
}
