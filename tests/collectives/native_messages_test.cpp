/// Sends and receives of the native group: through rings on one machine and sockets between machines.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <numeric>
#include <thread>

#include "collectives/native/mailbox.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/every_op.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using troupe::test::contains;

namespace {

using Nodes = std::vector<std::vector<int>>;
const Nodes kTwo[] = {{{0, 1}}, {{0}, {1}}};
const Nodes kThree[] = {{{0, 1, 2}}, {{0, 1}, {2}}, {{0}, {1}, {2}}};

Bytes message(int from, int to, std::uint32_t tag, std::size_t bytes) {
  SeededRandom random(mix(mix(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to)), tag));
  Bytes made(bytes);
  random.fill(made);
  return made;
}

Buffer buffer_of(Bytes& bytes) {
  return {bytes.data(), bytes.size(), DType::kUInt8, {}, nullptr};
}

}  // namespace

TEST_CASE("small sends on one host are done before anybody receives, however many ranks share the rings") {
  // Was: a rank left a ring alone in which it had nothing open, and a ring has 8 KiB among 16 ranks. Ranks
  // that waited for a send before they posted a receive waited for each other until the timeout.
  struct Case {
    int ranks, sends;
    std::size_t bytes;
  };
  for (const Case c : {Case{16, 1, 8 << 10}, {8, 3, 16 << 10}, {4, 60, 16 << 10}, {3, 64, kEagerBytes}}) {
    CAPTURE(c.ranks, c.sends, c.bytes);
    run(c.ranks, {.timeout = std::chrono::seconds(20)}, [&](ProcessGroup& group) {
      const int right = (group.rank() + 1) % c.ranks, left = (group.rank() + c.ranks - 1) % c.ranks;
      for (int i = 0; i < c.sends; ++i) {
        Bytes out = message(group.rank(), right, static_cast<std::uint32_t>(i), c.bytes);
        group.send(buffer_of(out), right)->wait();
      }
      for (int i = 0; i < c.sends; ++i) {
        Bytes in(c.bytes);
        group.recv(buffer_of(in), left)->wait();
        require(in == message(left, group.rank(), static_cast<std::uint32_t>(i), c.bytes), "wrong message");
      }
    });
  }
}

TEST_CASE("large messages both ways at once, from and to the group's memory and the caller's") {
  for (const auto& nodes : kTwo) {
    for (int where = 0; where < 4; ++where) {
      run(2, {.nodes = nodes, .data_bytes = 17 << 20}, [&](ProcessGroup& group) {
        constexpr std::size_t kSize = (8 << 20) + 77;
        const int peer = 1 - group.rank();
        const Buffer lent_out = group.allocate(kSize, DType::kUInt8),
                     lent_in = group.allocate(kSize, DType::kUInt8);
        Bytes own_out(kSize), own_in(kSize);
        const Buffer out = where % 2 == 0 ? buffer_of(own_out) : lent_out;
        const Buffer in = where < 2 ? buffer_of(own_in) : lent_in;
        std::memcpy(out.data, message(group.rank(), peer, 0, kSize).data(), kSize);
        const auto send = group.send(out, peer, 3);
        const auto recv = group.recv(in, peer, 3);
        recv->wait();
        send->wait();
        require(std::memcmp(in.data, message(peer, group.rank(), 0, kSize).data(), kSize) == 0,
                "wrong message");
      });
    }
  }
}

TEST_CASE("messages pass collectives that have not come about") {
  // Rank 0 has launched collectives, small and large, that rank 1 launches only after it has received what
  // rank 0 sends behind them, over the same connection: rank 1 must not stop reading at the first. Rank 2 is
  // later still: rank 1 has launched them too, cannot go on with them, and has to get the second message.
  for (const auto& nodes : kThree) {
    run(3, {.nodes = nodes}, [](ProcessGroup& group) {
      const std::size_t count = 400001;
      std::vector<float> scattered(3 * count, 1.0F), part(count), large(count, 1.0F), small(7, 1.0F);
      std::vector<std::shared_ptr<Work>> works;
      std::vector<float> few(9, 1.0F), few_sums(3), more_sums(3);
      const auto launch = [&] {
        works.push_back(group.reduce_scatter(std::span<const float>(few), std::span(few_sums)));
        works.push_back(group.reduce_scatter(std::span<const float>(few), std::span(more_sums)));
        works.push_back(group.reduce_scatter(std::span<const float>(scattered), std::span(part)));
        works.push_back(group.broadcast(std::span(large), 0));
        works.push_back(group.all_reduce(std::span(small)));
        works.push_back(group.all_reduce(std::span(large)));
      };
      Bytes word = message(0, 1, 0, 50), much = message(0, 1, 1, 600000);
      if (group.rank() == 0) {
        launch();
        const auto a = group.send(buffer_of(word), 1, 4);
        const auto b = group.send(buffer_of(much), 1, 5);
        a->wait();
        b->wait();
      } else if (group.rank() == 1) {
        Bytes in(50), into(600000);
        group.recv(buffer_of(in), 0, 4)->wait();
        launch();
        group.recv(buffer_of(into), 0, 5)->wait();
        require(in == word && into == much, "wrong message");
        group.send(buffer_of(in), 2)->wait();
      } else {
        Bytes in(50);
        group.recv(buffer_of(in), 1)->wait();
        launch();
      }
      for (auto& work : works) work->wait();
      require(part[count - 1] == 3 && small[6] == 3 && large[count - 1] == 3, "wrong sums");
    });
  }
}

TEST_CASE("random messages among all ranks, with collectives in between") {
  const std::uint64_t seed = 99;
  CAPTURE(seed);
  for (const auto& nodes : kThree) {
    // The same script on every rank: who sends what to whom, and when there is a collective.
    struct Step {
      int from, to;
      std::uint32_t tag;
      std::size_t size;
    };
    SeededRandom random(seed);
    std::vector<Step> steps;
    for (int i = 0; i < 300; ++i) {
      const std::size_t sizes[] = {random.below(40), random.below(5000), random.below(200000)};
      steps.push_back({static_cast<int>(random.below(3)), static_cast<int>(random.below(3)),
                       static_cast<std::uint32_t>(random.below(4)), sizes[random.below(3)]});
    }
    run(3, {.nodes = nodes, .data_bytes = 4 << 20}, [&](ProcessGroup& group) {
      SeededRandom own(mix(seed, static_cast<std::uint64_t>(group.rank())));
      std::deque<Bytes> buffers;
      std::vector<std::shared_ptr<Work>> works;
      std::vector<std::pair<std::size_t, std::uint32_t>> received;  // place in buffers, step
      std::vector<std::vector<double>> sums;
      sums.reserve(steps.size());
      for (std::uint32_t i = 0; i < steps.size(); ++i) {
        const Step& step = steps[i];
        if (group.rank() == step.from) {
          buffers.push_back(message(step.from, step.to, i, step.size));
          works.push_back(group.send(buffer_of(buffers.back()), step.to, step.tag));
        }
        if (group.rank() == step.to) {
          received.emplace_back(buffers.size(), i);
          buffers.emplace_back(step.size);
          works.push_back(group.recv(buffer_of(buffers.back()), step.from, step.tag));
        }
        if (i % 7 == 0) works.push_back(group.all_reduce(std::span(sums.emplace_back(3000, 1.0))));
        if (own.below(10) == 0) {
          for (auto& work : works) work->is_completed();
        }
      }
      while (!works.empty()) {
        std::swap(works[own.below(works.size())], works.back());
        works.back()->wait();
        works.pop_back();
      }
      for (const auto& [at, i] : received) {
        require(buffers[at] == message(steps[i].from, steps[i].to, i, steps[i].size), "wrong message");
      }
      for (const auto& sum : sums) require(sum[2999] == 3, "wrong sum");
    });
  }
}

TEST_CASE("a send and a receive that differ abort the group, with both named") {
  for (const auto& nodes : kTwo) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{100000}}) {
      const auto thrown = run_threads(options_of(2, {.nodes = nodes}), [&](ProcessGroup& group) {
        std::vector<float> floats(count);
        std::vector<std::int32_t> ints(count);
        if (group.rank() == 0) group.send(std::span<const float>(floats), 1, 8)->wait();
        if (group.rank() == 1) group.recv(std::span(ints), 0, 8)->wait();
        group.barrier()->wait();
      });
      const std::string n = std::to_string(count);
      for (const auto& what : thrown) {
        CHECK(contains(what, "rank 1 called recv(" + n + " x i32, from 0, tag 8) and rank 0 send(" + n +
                                 " x f32, to 1, tag 8)"));
      }
      const auto of_counts = run_threads(options_of(2, {.nodes = nodes}), [&](ProcessGroup& group) {
        Bytes bytes(count), more(count + 1);
        if (group.rank() == 0) group.send(buffer_of(bytes), 1, 8)->wait();
        if (group.rank() == 1) group.recv(buffer_of(more), 0, 8)->wait();
        group.barrier()->wait();
      });
      for (const auto& what : of_counts) {
        CHECK(contains(what, "rank 1 called recv(" + std::to_string(count + 1) +
                                 " x u8, from 0, tag 8) and rank 0 send(" + n + " x u8, to 1, tag 8)"));
      }
    }
  }
}

TEST_CASE("a receive from a rank that left ends with an error, and what it sent before is received") {
  for (const auto& nodes : kTwo) {
    const auto thrown = run_threads(options_of(2, {.nodes = nodes}), [&](ProcessGroup& group) {
      Bytes word = message(1, 0, 0, 20), in(20);
      if (group.rank() == 1) {
        group.send(buffer_of(word), 0, 1)->wait();
        return;
      }
      group.recv(buffer_of(in), 1, 1)->wait();
      require(in == word, "wrong message");
      group.recv(buffer_of(in), 1, 2)->wait();
    });
    CAPTURE(thrown[0]);
    CHECK(contains(thrown[0], "rank 1 left the group before recv(20 x u8, from 1, tag 2) #2"));
    CHECK(thrown[1].empty());
  }
}

TEST_CASE(
    "a send or receive that does not come about times out with its name, under wait and under polling") {
  for (const auto& nodes : kTwo) {
    for (int how = 0; how < 3; ++how) {
      for (const bool sends : {false, true}) {
        const Layout layout{.nodes = nodes, .timeout = std::chrono::milliseconds(60)};
        std::atomic<bool> failed{false};
        const auto thrown = run_threads(options_of(2, layout), [&](ProcessGroup& group) {
          if (group.rank() == 1) {
            test::yield_until([&] { return failed.load(); });
            group.barrier()->wait();
          }
          Bytes bytes(100000);
          auto work = sends ? group.send(buffer_of(bytes), 1, 6) : group.recv(buffer_of(bytes), 1, 6);
          try {
            if (how == 0) work->wait();
            if (how == 1) test::yield_until([&] { return work->is_completed(); });
            while (how == 2 && !work->wait_for(std::chrono::milliseconds(1))) {
            }
            work->wait();
          } catch (...) {
            failed = true;
            throw;
          }
        });
        CAPTURE(nodes.size(), how, thrown[0]);
        const std::string name =
            sends ? "send(100000 x u8, to 1, tag 6)" : "recv(100000 x u8, from 1, tag 6)";
        CHECK(contains(thrown[0], "a collective timed out: rank 0: " + name +
                                      " #1: no rank made progress for 0.06 s; waiting for rank 1"));
        CHECK(contains(thrown[1], "aborted: rank 0: " + name));
      }
    }
  }
}

TEST_CASE("a group that is destroyed with a message in flight lets the others out") {
  for (const auto& nodes : kTwo) {
    const auto thrown = run_threads(options_of(2, {.nodes = nodes}), [](ProcessGroup& group) {
      Bytes bytes(100000);
      if (group.rank() == 1) {
        group.send(buffer_of(bytes), 0, 2);
        return;  // the work is dropped, and the group with it
      }
      group.recv(buffer_of(bytes), 1, 3)->wait();
    });
    CAPTURE(thrown[0]);
    CHECK((contains(thrown[0], "rank 1 destroyed its group during send(100000 x u8, to 0, tag 2) #1") ||
           contains(thrown[0], "lost rank 1")));
    CHECK(thrown[1].empty());
  }
}

TEST_CASE("a receive from any rank takes what others sent before they left, and fails once all have") {
  // It named the ranks that had left as awaited, after the timeout. Ranks 0 and 4, and 0 and 5, of the last
  // layout have no connection: of these nobody tells rank 0 that they left.
  const Nodes layouts[] = {{{0, 1}},      {{0}, {1}},      {{0, 1, 2}},
                           {{0, 1}, {2}}, {{0}, {1}, {2}}, {{0, 1, 2}, {3, 4, 5}}};
  for (const auto& nodes : layouts) {
    for (const bool serves : {true, false}) {
      int size = 0;
      for (const auto& host : nodes) size += static_cast<int>(host.size());
      auto options = options_of(size, {.nodes = nodes, .timeout = std::chrono::seconds(20)});
      for (auto& o : options) o.progress_thread = serves;
      constexpr int kEach = 40;  // more than a quarter of the window
      const auto thrown = run_threads(std::move(options), [&](ProcessGroup& group) {
        Bytes word = message(1, 0, 0, 20), in(20);
        const bool sends = group.rank() == 1 || group.rank() == 2;
        if (group.rank() != 0) {
          for (int i = 0; sends && i < kEach; ++i) group.send(buffer_of(word), 0, 2)->wait();
          return;
        }
        for (int i = 0; i < kEach * std::min(2, size - 1); ++i) {
          group.recv(buffer_of(in), kAnyRank, 2)->wait();
          require(in == word, "wrong message");
        }
        group.recv(buffer_of(in), kAnyRank, 2)->wait();
      });
      CAPTURE(nodes.size(), size, serves, thrown[0]);
      const std::string who = size == 2 ? "rank 1" : size == 3 ? "ranks 1, 2" : "ranks 1-5";
      CHECK(contains(thrown[0], who + " left the group "));
      CHECK(contains(thrown[0], "before recv(20 x u8, from any rank, tag 2)"));
      for (std::size_t r = 1; r < thrown.size(); ++r) CHECK(thrown[r].empty());
    }
  }
}

TEST_CASE("a receive from any rank waits while one has not left, and names who may still send") {
  // Ranks 0 and 5 are connected for collectives. Nobody tells rank 0 that 3 and 4 left, and it does not ask
  // while it knows of one that lives.
  const Layout layout{.nodes = {{0, 1, 2}, {3, 4, 5}}, .timeout = std::chrono::milliseconds(400)};
  const std::pair<int, std::string> cases[] = {{2, "2, 3, 4 "}, {5, "3, 4, 5 "}, {3, "3, 4 "}};
  for (const auto& [stays, named] : cases) {
    std::atomic<bool> over{false};
    const auto thrown = run_threads(options_of(6, layout), [&, stays = stays](ProcessGroup& group) {
      Bytes in(20);
      if (group.rank() == stays) test::yield_until([&] { return over.load(); });
      if (group.rank() != 0) return;
      try {
        group.recv(buffer_of(in), kAnyRank)->wait();
      } catch (...) {
        over = true;
        throw;
      }
    });
    CAPTURE(stays, thrown[0]);
    CHECK(
        contains(thrown[0], "any rank, tag 0): no rank made progress for 0.4 s; waiting for rank " + named));
  }
}

TEST_CASE("too many receives are refused, from one rank or from any") {
  for (const auto& nodes : kTwo) {
    for (const int from : {1, kAnyRank}) {
      std::atomic<bool> refused{false};
      run(2, {.nodes = nodes}, [&](ProcessGroup& group) {
        std::vector<std::int32_t> values(kMaxMessages);
        if (group.rank() == 1) {
          test::yield_until([&] { return refused.load(); });
          std::iota(values.begin(), values.end(), 0);
          for (std::int32_t& value : values) group.send(std::span<const std::int32_t>(&value, 1), 0)->wait();
          return;
        }
        std::vector<std::shared_ptr<Work>> works;
        for (std::int32_t& value : values) works.push_back(group.recv(std::span(&value, 1), from));
        try {
          std::int32_t more = 0;
          group.recv(std::span(&more, 1), from);
        } catch (const LimitExceeded& e) {
          require(contains(e.what(),
                           from == kAnyRank ? "4096 receives from any rank" : "4096 sends and receives"),
                  e.what());
          require(contains(e.what(), "wait for some of them first"), e.what());
          refused = true;
        }
        require(refused.exchange(true), "one more is refused");
        for (const auto& work : works) work->wait();
        for (std::size_t i = 0; i < values.size(); ++i)
          require(values[i] == static_cast<std::int32_t>(i), "in the order of the receives");
      });
    }
  }
}
