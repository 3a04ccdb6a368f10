/// What c10d has beyond equal parts, on the native group: counts that differ, receives from any rank,
/// timeouts of a call, batches that go as one, and what is done then.

#include <atomic>
#include <catch2/catch.hpp>
#include <complex>
#include <cstring>
#include <thread>

#include "runtime/core/error.hpp"
#include "tests/collectives/library_checks.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using troupe::test::contains;

namespace {

using Nodes = std::vector<std::vector<int>>;
constexpr auto kShort = std::chrono::milliseconds(200);

}  // namespace

TEST_CASE("two ranks whose counts of an all_to_all differ are both named") {
  for (const Nodes& nodes : {Nodes{{0, 1}}, Nodes{{0}, {1}}}) {
    const auto thrown = run_threads(options_of(2, {.nodes = nodes}), [](ProcessGroup& group) {
      std::vector<float> values(10), got(10);
      const std::vector<std::size_t> out =
          group.rank() == 0 ? std::vector<std::size_t>{5, 5} : std::vector<std::size_t>{4, 6};
      std::vector<std::size_t> in = out;
      if (group.rank() == 1) {
        values.resize(10);
        in = {4, 6};
      }
      group.all_to_all(values, out, got, in)->wait();
    });
    for (const auto& what : thrown) {
      CAPTURE(what);
      CHECK(contains(what, "all_to_all_v #1 with 5 x f32"));
      CHECK(contains(what, "all_to_all_v #1 with 4 x f32"));
      CHECK_FALSE((contains(what, "send(") || contains(what, "recv(")));
    }
  }
}

TEST_CASE("counts that differ between ranks are a mismatch that names both calls") {
  const auto thrown = run_threads(options_of(2), [](ProcessGroup& group) {
    std::vector<float> mine(group.rank() == 0 ? 3 : 4), all(7);
    if (group.rank() == 1) all.resize(6);
    const std::vector<std::size_t> counts =
        group.rank() == 0 ? std::vector<std::size_t>{3, 4} : std::vector<std::size_t>{2, 4};
    group.all_gather(mine, all, counts)->wait();
  });
  for (const auto& what : thrown) CHECK((contains(what, "7 x f32") && contains(what, "6 x f32")));
}

TEST_CASE("a receive from any rank waits for whoever comes, and ends with its group") {
  for (const Nodes& nodes : {Nodes{{0, 1, 2}}, Nodes{{0}, {1, 2}}}) {
    std::atomic<bool> posted{false};
    run(3, {.nodes = nodes}, [&](ProcessGroup& group) {
      std::vector<int> first(1), second(1), own(1);
      if (group.rank() == 0) {
        const auto one = group.recv(first, kAnyRank), two = group.recv(second, kAnyRank);
        const auto from_two = group.recv(own, 2, 5);  // another tag
        CHECK(one->source() == -1);
        posted = true;
        two->wait();
        one->wait();
        from_two->wait();
        CHECK(first[0] + second[0] == 3);
        CHECK(one->source() == first[0]);
        CHECK(two->source() == second[0]);
        CHECK(own[0] == 7);
      } else {
        test::yield_until([&] { return posted.load(); });
        std::vector<int> me{group.rank()}, seven{7};
        if (group.rank() == 2) group.send(seven, 0, 5)->wait();
        group.send(me, 0)->wait();
      }
      group.barrier()->wait();
    });
    const auto thrown = run_threads(options_of(3, {.nodes = nodes}), [](ProcessGroup& group) {
      std::vector<int> value(1);
      if (group.rank() == 2) return group.abort("enough");
      group.recv(value, kAnyRank)->wait();
    });
    CHECK(contains(thrown[0], "enough"));
    CHECK(contains(thrown[1], "enough"));
  }
}

TEST_CASE("a call may have a timeout of its own; a monitored barrier names who is missing") {
  for (const Nodes& nodes : {Nodes{{0, 1, 2, 3}}, Nodes{{0, 1}, {2, 3}}}) {
    std::atomic<int> out{0};
    const auto thrown = run_threads(options_of(4, {.nodes = nodes}), [&](ProcessGroup& group) {
      group.monitored_barrier(std::chrono::seconds(60));
      if (group.rank() % 2 == 1) {
        test::yield_until([&] { return out == 2; });
        return;
      }
      const auto counts = std::shared_ptr<void>(nullptr, [&](void*) { ++out; });
      group.monitored_barrier(kShort);
    });
    CHECK(contains(thrown[0] + thrown[2], "waiting for rank 1, 3"));
    CHECK(contains(thrown[0] + thrown[2], "no rank made progress for 0.2 s"));
    CHECK((thrown[1] + thrown[3]).empty());
  }
  const auto thrown = run_threads(options_of(2), [](ProcessGroup& group) {
    std::vector<float> value(1);
    if (group.rank() == 0) group.batch({Op::recv(buffer_of(std::span(value)), 1).within(kShort)})->wait();
    test::yield_until([&] { return !group.abort_reason().empty(); });
  });
  CHECK(contains(thrown[0], "recv(1 x f32, from 1, tag 0)"));
  CHECK(contains(thrown[0], "0.2 s"));
}

TEST_CASE("what is to be done then is done once, after the result, unless it failed") {
  run(2, {}, [](ProcessGroup& group) {
    std::vector<float> values(3, 1);
    int done = 0;
    auto first = then(group.all_reduce(values), [&] {
      CHECK(values[0] == 2);
      ++done;
      values[0] = 5;
    });
    auto second = then(first, [&] { done += 10; });
    test::yield_until([&] { return second->is_completed(); });
    second->wait();
    first->wait();
    CHECK(done == 11);
    CHECK(values[0] == 5);
    auto throws = then(group.barrier(), [] { throw BadInput({ErrorCode::kBadInput, "no", "", ""}); });
    CHECK_THROWS_AS(throws->wait(), BadInput);
    CHECK_THROWS_AS(throws->wait(), BadInput);
    group.barrier()->wait();
  });
  const auto thrown = run_threads(options_of(1), [](ProcessGroup& group) {
    std::vector<float> values(3, 1);
    auto work = then(group.recv(values, 0), [] { CHECK(false); });
    group.abort("enough");
    work->wait();
  });
  CHECK(contains(thrown[0], "enough"));
}

/// A batch took a meeting for each of its calls.
TEST_CASE("small all_reduces of a batch go as one, with the bits that they have alone") {
  for (const Nodes& nodes : {Nodes{{0, 1, 2}}, Nodes{{0, 1}, {2}}}) {
    run(3, {.nodes = nodes}, [](ProcessGroup& group) {
      std::vector<std::vector<float>> together, alone;
      for (std::size_t i = 0; i < 150; ++i) {
        together.emplace_back(i * 7 % 1000, 0.1F * static_cast<float>(group.rank() + 1));
        alone.push_back(together.back());
      }
      std::vector<float> other(10, 2), large(100'000, 1);
      std::vector<Op> ops;
      for (auto& values : together)
        ops.push_back(Op::all_reduce(buffer_of(std::span(values)), ReduceOp::kSum));
      ops.push_back(Op::all_reduce(buffer_of(std::span(other)), ReduceOp::kMax));
      ops.push_back(Op::all_reduce(buffer_of(std::span(large)), ReduceOp::kSum));
      group.batch(ops);  // nobody waits for this Work: what is behind it is enough
      for (auto& values : alone) group.all_reduce(values)->wait();
      CHECK(together == alone);
      CHECK(other[0] == 2);
      CHECK(large.back() == 3);
      for (int i = 0; i < 200; ++i) group.barrier()->wait();  // numbers go on
    });
  }
  const auto thrown = run_threads(options_of(2), [](ProcessGroup& group) {
    std::vector<float> a(1), b(2), both(3);
    if (group.rank() == 1) {
      group.all_reduce(both)->wait();
    } else {
      group
          .batch({Op::all_reduce(buffer_of(std::span(a)), ReduceOp::kSum),
                  Op::all_reduce(buffer_of(std::span(b)), ReduceOp::kSum)})
          ->wait();
    }
  });
  for (const auto& what : thrown) CHECK(contains(what, "2 calls of a batch in one"));
}

// They were summed into each other in silence.
TEST_CASE("a batch in another order, or with the same total in other parts, is a mismatch") {
  for (const std::size_t first : {std::size_t{20}, std::size_t{15}}) {
    const auto thrown = run_threads(options_of(2), [first](ProcessGroup& group) {
      const std::size_t own = group.rank() == 0 ? 10 : first;
      std::vector<float> a(own, 1), b(30 - own, 2);
      group
          .batch({Op::all_reduce(buffer_of(std::span(a)), ReduceOp::kSum),
                  Op::all_reduce(buffer_of(std::span(b)), ReduceOp::kSum)})
          ->wait();
    });
    for (const auto& what : thrown) CHECK(contains(what, "2 calls of a batch in one"));
  }
}

// GCC fused them in the middle of a long vector, and not at its end.
TEST_CASE("a complex product is the same wherever its element stands") {
  run(3, {.nodes = {{0, 1, 2}}}, [](ProcessGroup& group) {
    std::vector<std::complex<float>> whole(301);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const float x = 1.0F + 0.001F * static_cast<float>(i + 1) * static_cast<float>(group.rank() + 1);
      whole[i] = {x, 1.7F - x};
    }
    auto parts = whole;
    group.all_reduce(whole, ReduceOp::kProduct)->wait();
    for (std::size_t i = 0; i < parts.size(); i += 3) {
      const std::span some(parts.data() + i, std::min<std::size_t>(3, parts.size() - i));
      group.all_reduce(some, ReduceOp::kProduct)->wait();
    }
    CHECK(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof whole[0]) == 0);
  });
}
