/// Calls as values, the typed front and batches.

#include "collectives/op.hpp"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "collectives/flight/flight_recorder.hpp"
#include "runtime/core/error.hpp"
#include "tests/collectives/every_op.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

/// Whether the front takes these.
template <class T>
concept Reduces = requires(ProcessGroup& group, T& buffer) {
  group.all_reduce(buffer);
};
template <class From, class To>
concept Gathers = requires(ProcessGroup& group, From& input, To& output) {
  group.all_gather(input, output);
};
template <class T>
concept Sends = requires(ProcessGroup& group, T& buffer) {
  group.send(buffer, 0);
};
template <class T>
concept Receives = requires(ProcessGroup& group, T& buffer) {
  group.recv(buffer, 0);
};

using Floats = std::vector<float>;
static_assert(Reduces<Floats> && Reduces<std::span<double>> && Reduces<std::array<long long, 3>>);
static_assert(Reduces<std::span<float, 4>> && Reduces<int[5]> && Reduces<std::vector<char>>);
// What was changed in a const vector once, and crashed in read-only memory.
static_assert(!Reduces<const Floats> && !Reduces<std::span<const float>> && !Receives<const Floats>);
static_assert(Sends<const Floats> && Sends<std::span<const bool>> && Receives<Floats>);
static_assert(Gathers<Floats, Floats> && Gathers<const Floats, std::span<float>>);
static_assert(!Gathers<Floats, const Floats> && !Gathers<Floats, std::vector<double>>);
static_assert(!Reduces<std::vector<std::string>> && !Reduces<std::vector<long double>> && !Reduces<float>);
static_assert(dtype_of<long long>() == DType::kInt64 && dtype_of<unsigned char>() == DType::kUInt8);

}  // namespace

TEST_CASE("vectors, arrays and spans go in as they are") {
  run(3, {}, [](ProcessGroup& group) {
    const Floats mine{static_cast<float>(group.rank()), 1};
    Floats all(6);
    group.all_gather(mine, all)->wait();
    require(all == Floats{0, 1, 1, 1, 2, 1}, "all_gather");
    std::array<long long, 2> sum{group.rank(), 5};
    group.all_reduce(sum)->wait();
    require(sum == std::array<long long, 2>{3, 15}, "all_reduce");
    Floats part(2), back(6), own(2);
    group.reduce_scatter(all, part, ReduceOp::kMax)->wait();
    require(part == Floats{static_cast<float>(group.rank()), 1}, "reduce_scatter");
    group.all_to_all(all, back)->wait();
    require(back[0] == static_cast<float>(group.rank()), "all_to_all");
    group.gather(mine, all, 1)->wait();
    group.scatter(all, own, 1)->wait();
    require(own == mine, "scatter");
    double word[] = {static_cast<double>(group.rank())};
    group.broadcast(word, 2)->wait();
    group.reduce(word, 0)->wait();
    require(word[0] == (group.rank() == 0 ? 6 : 2), "reduce");
  });
}

TEST_CASE("a call as three words comes back, and noise does not") {
  const Op op{.kind = OpKind::kReduce,
              .dtype = DType::kBFloat16,
              .how = Reduction::premul_sum(0.3, false),
              .peer = 7,
              .count = 1ULL << 39};
  REQUIRE(is_call(encode(op)));
  const Op back = decode_op(encode(op));
  CHECK(same_call(op, back));
  CHECK(to_string(back) ==
        "reduce(premul_sum by 0.29999999999999999 in any order, 549755813888 x bf16, root 7)");
  for (int at : {0, 8, 16, 24}) {
    OpWords broken = encode(op);
    broken[0] |= std::uint64_t{0x40} << at;
    CHECK_FALSE(is_call(broken));
  }
  Op other = op;
  other.sequence = 9;
  CHECK(same_call(op, other));
  other.how.factor = 0.5;
  CHECK_FALSE(same_call(op, other));
}

TEST_CASE("what one rank calls as a batch others may call one by one") {
  for (const auto& nodes : {std::vector<std::vector<int>>{{0, 1, 2}}, {{0, 1}, {2}}}) {
    run(3, {.nodes = nodes}, [](ProcessGroup& group) {
      Floats sum(50, 1);
      if (group.rank() == 0) {
        group.batch({Op::all_reduce(buffer_of(std::span(sum)), ReduceOp::kSum), Op::barrier()})->wait();
      } else {
        group.all_reduce(sum)->wait();
        group.barrier()->wait();
      }
      require(sum == Floats(50, 3), "one by one");
      group.batch(std::span<const Op>())->wait();
    });
  }
}

TEST_CASE("of a batch that is refused nothing is launched, and the numbers are given again") {
  run(2, {}, [](ProcessGroup& group) {
    const auto recorder = flight::record(group, {.folder = ""});
    Floats sum(4, 1);
    const Buffer good = buffer_of(std::span(sum));
    try {
      group.batch({Op::all_reduce(good, ReduceOp::kSum), Op::broadcast(good, 2)});
      require(false, "it was not refused");
    } catch (const BadInput& e) {
      require(std::string(e.what()).find("cannot broadcast: root is rank 2") == 0, e.what());
    }
    group.batch({Op::all_reduce(good, ReduceOp::kSum), Op::barrier()})->wait();
    require(sum == Floats(4, 2), "sum");
    const auto operations = recorder->snapshot("asked").operations;
    require(operations.size() == 4, "four are remembered");
    for (std::size_t i = 0; i < 4; ++i) {
      require(operations[i].call.sequence == 1 + i % 2, "numbers");
      require(operations[i].state == (i < 2 ? flight::State::kRefused : flight::State::kCompleted), "states");
    }
  });
}

TEST_CASE("a batch that is launched in part aborts the group") {
  const auto thrown = run_threads(options_of(2), [](ProcessGroup& group) {
    Floats sum(4, 1);
    std::vector<std::byte> large(40 << 20);
    const Buffer bytes{large.data(), large.size(), DType::kUInt8};
    if (group.rank() == 0) {
      // A rank keeps no more than 64 MiB that it sent itself.
      group.batch({Op::all_reduce(buffer_of(std::span(sum)), ReduceOp::kSum), Op::send(bytes, 0),
                   Op::send(bytes, 0)});
    } else {
      group.all_reduce(sum)->wait();
      group.barrier()->wait();
    }
  });
  CHECK_THAT(thrown[0], Catch::Contains("at most 64 MiB"));
  CHECK_THAT(thrown[1], Catch::Contains("a batch was launched in part"));
}

/// It succeeded once, and the next operation on it was the first to say that the group is over.
TEST_CASE("an abort without a reason is one, and says so") {
  const auto thrown = run_threads(options_of(1), [](ProcessGroup& group) {
    group.abort("");
    group.throw_if_aborted();
  });
  CHECK_THAT(thrown[0], Catch::Contains("no reason was given"));
}

TEST_CASE("a group that was aborted gives no memory") {
  const auto thrown = run_threads(options_of(1), [](ProcessGroup& group) {
    group.abort("enough");
    try {
      group.allocate(4, DType::kFloat32);
      require(false, "allocate");
    } catch (const CollectiveAborted& e) {
      require(std::string(e.what()).find("enough") != std::string::npos, e.what());
    }
    group.allocate_tree(4, DType::kFloat32);
  });
  CHECK_THAT(thrown[0], Catch::Contains("enough"));
}

TEST_CASE("messages in a batch are each rank's own, and its all_reduces go together all the same") {
  run(3, {}, [](ProcessGroup& group) {
    const int me = group.rank(), other = 1 - me;
    Floats first(22, 1), second(30, 2), mine(5, static_cast<float>(me)), theirs(5);
    std::vector<Op> ops{Op::all_reduce(buffer_of(std::span(first)), ReduceOp::kSum)};
    if (me != 2) {
      ops.push_back(Op::send(buffer_of(std::span(mine)), other));
      ops.push_back(Op::recv(buffer_of(std::span(theirs)), other));
    }
    ops.push_back(Op::all_reduce(buffer_of(std::span(second)), ReduceOp::kSum));
    group.batch(ops)->wait();
    require(first == Floats(22, 3) && second == Floats(30, 6), "sums");
    require(me == 2 || theirs == Floats(5, static_cast<float>(other)), "messages");
  });
}

TEST_CASE("small: who gives waits for nobody and who takes for those that give, four calls ahead at most") {
  std::atomic<int> given{0};
  run(3, {}, [&](ProcessGroup& group) {
    const int me = group.rank();
    const auto give = [&](int i) {  // rank 0 to all, and all but rank 2 to rank 2
      Floats word(3, me == 0 ? static_cast<float>(i) : -1), row(me == 2 ? 9 : 0), mine(3, 7);
      Floats all(me == 0 ? 9 : 0, static_cast<float>(i)), sum(3, 1);
      const std::string at = "call " + std::to_string(i);
      switch (i % 4) {
        case 0:
          group.broadcast(word, 0)->wait();
          return require(word == Floats(3, static_cast<float>(i)), at);
        case 1:
          group.scatter(all, mine, 0)->wait();
          return require(mine == Floats(3, static_cast<float>(i)), at);
        case 2:
          group.gather(mine, row, 2)->wait();
          return require(row == Floats(me == 2 ? 9 : 0, 7), at);
        default:
          group.reduce(sum, 2)->wait();
          return require(sum == Floats(3, me == 2 ? 3 : 1), at);
      }
    };
    group.barrier()->wait();  // a group's first round waits for all
    if (me == 2) {
      test::yield_until([&] { return given >= 2; });
    }
    for (int i = 0; i < 4; ++i) give(i);
    Floats word(3);
    const auto fifth = group.broadcast(word, 0);
    if (me != 2) {
      require(!fifth->wait_for(std::chrono::milliseconds(20)), "five ahead");
      ++given;
    }
    fifth->wait();
  });
}

TEST_CASE("a batch in one call of another rank is told without a factor that it does not have") {
  Op batch = Op::all_reduce({nullptr, 3, DType::kInt32, {}, nullptr}, ReduceOp::kSum);
  batch.count = 3;
  batch.counts = {1, 1, 1};
  batch.peer = 3;
  CHECK_THAT(to_string(encode(batch)),
             Catch::Contains("3 calls of a batch in one") && !Catch::Contains(" by "));
}
