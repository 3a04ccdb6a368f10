/// Every operation of the native group when things go wrong: aborts, ranks that call something else, that
/// never come, that leave.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/collectives/every_op.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using troupe::test::contains;

namespace {

const std::vector<std::vector<std::vector<int>>> kFaultLayouts = {
    {{0, 1, 2}}, {{0, 1}, {2}}, {{0}, {1}, {2}}};

/// The buffers of one call of three ranks.
struct Buffers {
  OpSpec spec;
  Bytes input = Bytes(3 * spec.count * sizeof(float)), output = Bytes(one_buffer(spec) ? 0 : input.size());
  std::shared_ptr<Work> call(ProcessGroup& group) {
    return testing::call(group, spec, input.data(), one_buffer(spec) ? input.data() : output.data());
  }
};

}  // namespace

TEST_CASE("an abort lets every rank out of every operation, small and large, with the first reason") {
  for (const auto& nodes : kFaultLayouts) {
    for (OpKind kind : kCollectives) {
      for (const std::size_t count : {std::size_t{4}, std::size_t{300000}}) {
        std::atomic<int> waiting{0};
        const OpSpec spec{.kind = kind, .count = count, .root = 2};
        const auto thrown = run_threads(options_of(3, {.nodes = nodes}), [&](ProcessGroup& group) {
          Buffers buffers{spec};
          if (group.rank() == 1) {
            test::yield_until([&] { return waiting >= 2; });
            group.abort("the test says so");
            group.abort("again");
            buffers.call(group);  // throws: the group stays aborted
            return;
          }
          auto work = buffers.call(group);
          work->is_completed();
          ++waiting;
          work->wait();
          group.barrier()->wait();  // who only gives other hosts something has then given it
        });
        CAPTURE(nodes.size(), to_string(spec));
        for (const auto& what : thrown) CHECK(contains(what, "aborted: the test says so"));
      }
    }
  }
}

TEST_CASE("calls that differ in anything are an error on every rank that names both") {
  using enum OpKind;
  constexpr DType kF32 = DType::kFloat32;
  constexpr std::size_t kMany = 100'000;  // so large that nothing goes out unasked
  const std::vector<OpSpec> calls{{kAllReduce, kF32, {}, 4},
                                  {kAllReduce, kF32, Reduction(ReduceOp::kSum, false), 4},
                                  {kAllReduce, DType::kInt32, {}, 4},
                                  {kAllReduce, kF32, {}, 3},
                                  {kAllReduce, kF32, ReduceOp::kMax, 4},
                                  {kReduce, kF32, {}, 4, 0},
                                  {kReduce, kF32, {}, 4, 1},
                                  {kGather, kF32, {}, 4, 0},
                                  {kScatter, kF32, {}, 4, 1},
                                  {kAllGather, kF32, {}, 4},
                                  {kReduceScatter, kF32, ReduceOp::kMax, 4},
                                  {kAllToAll, kF32, {}, 4},
                                  {kBarrier},
                                  {kBroadcast, kF32, {}, kMany, 0},
                                  {kBroadcast, kF32, {}, kMany, 1},
                                  {kScatter, kF32, {}, kMany, 0},
                                  {kAllToAll, kF32, {}, kMany}};
  for (const auto& nodes : {std::vector<std::vector<int>>{{0, 1}}, {{0}, {1}}}) {
    for (const OpSpec& a : calls) {
      for (const OpSpec& b : calls) {
        if (&a == &b) continue;
        const auto thrown = run_threads(options_of(2, {.nodes = nodes}), [&](ProcessGroup& group) {
          Buffers buffers{group.rank() == 0 ? a : b};
          group.barrier()->wait();
          buffers.call(group)->wait();
          group.barrier()->wait();  // at the latest: who only gives something has then given it
        });
        CAPTURE(nodes.size(), to_string(a), to_string(b), thrown[0], thrown[1]);
        for (const auto& what : thrown)
          CHECK((contains(what, to_string(a)) && contains(what, to_string(b)) && contains(what, "#2")));
      }
    }
  }
}

TEST_CASE("trees that ranks have at different places are an error, and no wrong sum") {
  const auto thrown = run_threads(options_of(2), [](ProcessGroup& group) {
    (void)group.allocate_tree(group.rank() == 0 ? 10000 : 100, DType::kFloat32);
    const TreeBuffer second = group.allocate_tree(500, DType::kFloat32);
    group.all_reduce_tree(second, ReduceOp::kSum)->wait();
  });
  for (const auto& what : thrown) CHECK(contains(what, "they allocated with different counts"));
}

TEST_CASE("different calls whose ranks wait for none of each other are found at the next call") {
  // Was: each gives the other what it does not take, so nobody compared until a stage was used again, four
  // calls later.
  for (const bool gathers : {true, false}) {
    std::atomic<bool> called{false}, past{false};
    const auto thrown = run_threads(options_of(2), [&](ProcessGroup& group) {
      std::vector<float> one(4), all(8);
      group.barrier()->wait();
      group.broadcast(one, 0)->wait();
      const auto call = [&] {
        const auto work =
            gathers ? group.gather(one, all, 1 - group.rank()) : group.broadcast(one, group.rank());
        work->wait();
      };
      if (group.rank() == 1) {
        try {
          call();
        } catch (...) {
          called = true;
          throw;
        }
        called = true;
      } else {
        call();
        test::yield_until([&] { return called.load(); });
        call();
        past = true;
      }
      group.barrier()->wait();
    });
    CHECK(!past);
    CAPTURE(gathers, thrown[0], thrown[1]);
    for (const auto& what : thrown) {
      const std::string name = gathers ? "gather" : "broadcast";
      CHECK(contains(what, "at #3 rank"));
      CHECK(contains(what, name + "(4 x f32, root 0)"));
      CHECK(contains(what, name + "(4 x f32, root 1)"));
    }
  }
}

TEST_CASE("a call of several rounds in place of a small one gives nobody data of another call") {
  // Its rounds have no calls of their own: a reader finds there those of 64 calls before, which are alike.
  for (const int at : {9, 153}) {
    std::atomic<int> wrong{0};
    const auto thrown = run_threads(options_of(3), [&](ProcessGroup& group) {
      std::vector<int> word(16), all(48, 7), much(200000, 77777), rows(group.rank() == 0 ? 600000 : 0);
      for (int i = 1; i < at + 20; ++i) {
        if (i == at && group.rank() == 2) {
          group.gather(much, rows, 0)->wait();
        } else if (i % 4 == 3) {
          group.scatter(all, word, 2)->wait();
          wrong += word == std::vector<int>(16, 7) ? 0 : 1;
        } else {
          if (i == at) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          group.broadcast(word, 0)->wait();
        }
      }
    });
    CAPTURE(at, thrown[0], thrown[1], thrown[2]);
    CHECK(wrong == 0);
    for (const auto& what : thrown) {
      CHECK(contains(what, "at #" + std::to_string(at) + " rank"));
      CHECK(contains(what, "gather(200000 x i32, root 0)"));
      CHECK(contains(what, "broadcast(16 x i32, root 0)"));
    }
  }
}

TEST_CASE("every operation times out with its name and who is missing, under wait and under polling") {
  for (const auto& nodes : kFaultLayouts) {
    for (OpKind kind : kCollectives) {
      const OpSpec spec{.kind = kind, .count = 1000, .root = 1};
      const int how = static_cast<int>(kind) % 3;
      std::atomic<int> launched{0}, failed{0};
      const Layout layout{.nodes = nodes, .timeout = std::chrono::milliseconds(40)};
      // Who only gives other hosts something has then given it, and waits for the barrier.
      const bool may_give = nodes.size() > 1 && has_root(kind);
      const auto thrown = run_threads(options_of(3, layout), [&](ProcessGroup& group) {
        Buffers buffers{spec};
        if (group.rank() == 2) {
          test::yield_until([&] { return failed >= 2; });
          buffers.call(group)->wait();
        }
        try {
          auto work = buffers.call(group);
          ++launched;
          test::yield_until([&] { return launched == 2; });
          if (how == 0) work->wait();
          if (how == 1) test::yield_until([&] { return work->is_completed(); });
          while (how == 2 && !work->wait_for(std::chrono::microseconds(100))) {
          }
          work->wait();
          group.barrier()->wait();
        } catch (...) {
          ++failed;
          throw;
        }
      });
      const bool zero = contains(thrown[0], "a collective timed out");
      CAPTURE(nodes.size(), how, thrown);
      CHECK(contains(thrown[zero ? 0 : 1], "a collective timed out: rank "));
      const std::string& what = thrown[zero ? 0 : 1];
      const std::string late = ": no rank made progress for 0.04 s; waiting for rank 2";
      CHECK((contains(what, ": " + to_string(spec) + " #1" + late) ||
             (may_give &&
              contains(what, ": barrier() #2: no rank made progress for 0.04 s; waiting for rank"))));
      for (const auto& reason : thrown) CHECK(contains(reason, "no rank made progress"));
    }
  }
}

TEST_CASE("a rank that leaves in or before any operation lets the others out") {
  for (const auto& nodes : kFaultLayouts) {
    for (OpKind kind : kCollectives) {
      for (const bool busy : {false, true}) {
        const OpSpec spec{.kind = kind, .count = 200000, .root = 1};
        std::vector<Buffers> kept(3, Buffers{spec});  // a thread of the group may be at them until it is gone
        const auto thrown = run_threads(options_of(3, {.nodes = nodes}), [&](ProcessGroup& group) {
          Buffers& buffers = kept[static_cast<std::size_t>(group.rank())];
          group.barrier()->wait();
          if (group.rank() == 1) {
            if (busy) buffers.call(group);
            return;  // and the group is gone, with the operation in flight or without
          }
          buffers.call(group)->wait();
          group.barrier()->wait();
        });
        CAPTURE(nodes.size(), to_string(spec), busy, thrown);
        // A reason that waits behind half a frame may not get out in time: then a rank knows only who went.
        for (int r : {0, 2}) {
          const std::string& what = thrown[static_cast<std::size_t>(r)];
          CHECK((contains(what, "rank 1 left the group before ") ||
                 contains(what, "rank 1 destroyed its group") || contains(what, "lost rank ")));
        }
        CHECK(thrown[1].empty());
      }
    }
  }
}
