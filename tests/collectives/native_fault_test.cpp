/// The native group when things go wrong: aborts, deaths, ranks that are late, call something else or lie.

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "collectives/native/link.hpp"
#include "collectives/native/region.hpp"
#include "runtime/core/abort_word.hpp"
#include "runtime/core/connect/tcp.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;
using namespace std::chrono_literals;
using troupe::test::contains;

namespace {

void wait_for(const std::atomic<int>& word, int value) {
  test::yield_until([&] { return word.load() >= value; });
}

/// A counter that forked ranks share.
struct SharedCounter {
  SharedMemory memory = SharedMemory::create("counter", sizeof(std::atomic<int>), true).value();
  std::atomic<int>& value() const { return *reinterpret_cast<std::atomic<int>*>(memory.data()); }
};

const std::vector<std::vector<std::vector<int>>> kLayouts = {{{0, 1, 2}}, {{0, 1}, {2}}, {{0}, {1}, {2}}};

}  // namespace

TEST_CASE("the abort word keeps the first reason, cuts it, and outlives a writer that died") {
  alignas(8) std::array<std::byte, kAbortWordBytes> region{};
  CHECK_FALSE(region_aborted(region.data()));
  CHECK(abort_region(region.data(), "first", AbortKind::kTimeout));
  CHECK_FALSE(abort_region(region.data(), "second"));
  CHECK(region_aborted(region.data()));
  CHECK(region_abort_reason(region.data()).text == "first");
  CHECK(region_abort_reason(region.data()).kind == AbortKind::kTimeout);

  region.fill(std::byte{0});
  CHECK(abort_region(region.data(), std::string(1000, 'x')));
  CHECK(region_abort_reason(region.data()).text == std::string(kMaxAbortReasonBytes, 'x'));
  CHECK(region_abort_reason(region.data()).kind == AbortKind::kMemberDied);

  region.fill(std::byte{0});
  region[0] = std::byte{1};  // state 1: a writer is at it, and never ends
  CHECK(region_aborted(region.data()));
  CHECK_FALSE(abort_region(region.data(), "late"));
  CHECK(contains(region_abort_reason(region.data()).text, "died before it said why"));

  region.fill(std::byte{0xff});  // nonsense from a process gone mad does not lead out of the region
  CHECK(region_aborted(region.data()));
  CHECK(region_abort_reason(region.data()).kind == AbortKind::kUnknown);
}

TEST_CASE(
    "a rank that was stopped for longer than the timeout waits on, since the others may have been, too") {
  // Was: after a stop of the whole machine the rank that went on first saw no progress for as long, and ended
  // the group with a timeout before the others had had a chance.
  const SharedCounter counter;
  auto options = options_of(2, {.timeout = std::chrono::seconds(2)});
  std::vector<pid_t> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.push_back(fork_rank(std::move(options[static_cast<std::size_t>(r)]), [&](ProcessGroup& group) {
      if (group.rank() == 0) counter.value() = 1;
      if (group.rank() == 1) wait_for(counter.value(), 2);
      group.barrier()->wait();
    }));
  }
  wait_for(counter.value(), 1);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(100));  // or rank 0 has not looked yet: then it passes
  ::kill(ranks[0], SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  ::kill(ranks[0], SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // or it finds rank 1 there at its first look
  counter.value() = 2;
  for (const pid_t rank : ranks) CHECK(exit_of(rank) == 0);
}

TEST_CASE("of many aborts at once every reader sees the same one") {
  alignas(8) std::array<std::byte, kAbortWordBytes> region{};
  std::atomic<int> first{0};
  std::vector<std::string> seen(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      if (abort_region(region.data(), "thread " + std::to_string(t))) ++first;
      seen[t] = region_abort_reason(region.data()).text;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(first == 1);
  for (const auto& text : seen) CHECK(text == seen[0]);
}

TEST_CASE("a node aborts its region from outside, and the abort spreads to the other machines") {
  for (const auto& nodes : kLayouts) {
    auto options = options_of(3, {.nodes = nodes});
    const auto region = options[1].region;
    std::atomic<int> waiting{0};
    std::thread node([&] {
      wait_for(waiting, 3);
      abort_region(region->data(), "rank 1 was killed by signal 9");
    });
    const auto thrown = run_threads(std::move(options), [&](ProcessGroup& group) {
      auto work = group.barrier();
      work->wait();
      // Ranks 0 and 2 wait for rank 1, which computes: it sees the abort at its next call.
      ++waiting;
      if (group.rank() == 1) {
        test::yield_until([&] { return !group.abort_reason().empty(); });
      }
      group.barrier()->wait();
    });
    node.join();
    for (const auto& what : thrown) CHECK(contains(what, "rank 1 was killed by signal 9"));
  }
}

/// It was told at the next operation alone: a rank that only computes went on with a group that was over.
TEST_CASE("a rank that waits for nothing sees the abort of another machine") {
  std::atomic<int> through{0};
  const auto thrown = run_threads(options_of(2, {.nodes = {{0}, {1}}}), [&](ProcessGroup& group) {
    group.barrier()->wait();
    ++through;
    wait_for(through, 2);
    if (group.rank() == 1) return group.abort("the test says so");
    const MonotonicClock clock;
    const Instant until = clock.now() + std::chrono::seconds(20);
    while (group.abort_reason().empty() && clock.now() < until) std::this_thread::yield();
    CHECK(group.abort_reason() == "the test says so");
    CHECK_THROWS_AS(group.allocate(4, DType::kFloat32), CollectiveAborted);
  });
  for (const auto& what : thrown) CHECK(what.empty());
}

TEST_CASE("a rank of another machine that dies is named") {
  auto options = options_of(2, {.nodes = {{0}, {1}}});
  const SharedCounter steps;
  const pid_t pid = fork_rank(std::move(options[1]), [&](ProcessGroup& group) {
    while (true) {
      group.barrier()->wait();
      ++steps.value();
    }
  });
  options[1] = {};
  const int kept = options[0].remote.at(1).socket.get();
  CHECK(kept >= 0);
  std::vector<NativeGroupOptions> mine;
  mine.push_back(std::move(options[0]));
  const auto thrown = run_threads(std::move(mine), [&](ProcessGroup& group) {
    for (int i = 0; i < 20; ++i) group.barrier()->wait();
    ::kill(pid, SIGKILL);
    while (true) group.barrier()->wait();
  });
  CHECK(contains(thrown[0], "lost rank 1: "));
  CHECK(exit_of(pid) == -SIGKILL);
}

namespace {

/// A slow network: passes on what comes from one rank, and after `bytes` of it waits for a word of the other.
void pass_on(const UniqueFd& from, const UniqueFd& to, std::size_t bytes) {
  std::array<std::byte, 16 * 1024> some;
  std::size_t passed = 0;
  for (ssize_t n = 0; (n = ::recv(from.get(), some.data(), some.size(), 0)) > 0;) {
    if (::send(to.get(), some.data(), std::size_t(n), MSG_NOSIGNAL) != n) return;
    const bool before = passed < bytes;
    passed += std::size_t(n);
    if (!before || passed < bytes) continue;
    n = ::recv(to.get(), some.data(), some.size(), 0);
    if (n <= 0 || ::send(from.get(), some.data(), std::size_t(n), MSG_NOSIGNAL) != n) return;
  }
}

}  // namespace

TEST_CASE("what a rank sent before it left arrives, however much of it is still in its kernel") {
  // Was: an operation is through once the kernel has its bytes, and a rank that left closed the socket at
  // once. What the receiver said meanwhile, how many rounds it has read, met a closed socket: the answer to
  // that is a reset, which throws away what was not sent yet.
  constexpr std::size_t kRounds = 8, kRoundBytes = 128 * 1024;  // so many go before the receiver says a word
  auto options = options_of(2, {.nodes = {{0}, {1}}});
  const auto listener = DataListener::bind({"127.0.0.1", 0}).value();
  const int small = 64 * 1024;
  REQUIRE(::setsockopt(listener.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
  options[0].remote.at(1).socket = dial(listener.endpoint(), 10s).value();
  const UniqueFd from(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  options[1].remote.at(0).socket = UniqueFd(ends[1]);
  for (auto& rank : options) rank.progress_thread = false;
  std::atomic<int> sent{0};
  std::thread network([&, to = UniqueFd(ends[0])] {
    wait_for(sent, 1);
    pass_on(from, to, 5 * kRoundBytes);
  });
  const std::vector<float> values(kRounds * kRoundBytes / sizeof(float), 7);
  const auto thrown = run_threads(std::move(options), [&](ProcessGroup& group) {
    std::vector<float> mine = group.rank() == 0 ? values : std::vector<float>(values.size());
    group.broadcast(std::span(mine), 0)->wait();
    if (group.rank() == 0) ++sent;
    if (mine != values) throw std::runtime_error("other values came");
  });
  network.join();
  for (const auto& what : thrown) CHECK(what == "");
}

TEST_CASE(
    "a forked child that asks whether its parent's group was aborted reads nothing that is the parent's") {
  auto options = options_of(2, {.nodes = {{0}, {1}}, .timeout = 10s});
  for (auto& rank : options) rank.progress_thread = false;
  std::atomic<int> steps{0};
  const auto thrown = run_threads(std::move(options), [&](ProcessGroup& group) {
    float value = 0;
    for (const float said : {1.0F, 2.0F}) {                    // the first one connects the two
      if (group.rank() == 0 && said == 2) wait_for(steps, 1);  // or both are read at once
      if (group.rank() == 0) group.send(std::span<const float>(&said, 1), 1)->wait();
      if (group.rank() == 0 && said == 2) ++steps;
      if (group.rank() == 1 && said == 2) {
        ++steps;
        wait_for(steps, 2);
        const pid_t child = ::fork();
        if (child == 0) {
          ::alarm(20);
          ::_exit(group.abort_reason().empty() ? 0 : 1);
        }
        int how = -1;
        if (::waitpid(child, &how, 0) != child || how != 0) throw std::runtime_error("the child did not end");
      }
      if (group.rank() == 1) {
        group.recv(std::span(&value, 1), 0)->wait();
        if (value != said) throw std::runtime_error("another message came");
      }
    }
    ++steps;
    wait_for(steps, 4);
  });
  for (const auto& what : thrown) CHECK(what == "");
}

TEST_CASE("four ranks on two cores, many small operations") {
  run(4, {}, [](ProcessGroup& group) {
    const TreeBuffer tree = group.allocate_tree(64, DType::kInt64);
    auto* values = reinterpret_cast<std::int64_t*>(tree.partials[0]);
    for (int i = 0; i < 1000; ++i) {
      for (int k = 0; k < 64; ++k) values[k] = i + group.rank();
      group.all_reduce_tree(tree, ReduceOp::kSum)->wait();
      if (values[0] != 4 * i + 6 || values[63] != 4 * i + 6) throw std::runtime_error("wrong sum");
      if (i % 100 == 0 && group.rank() == i / 100 % 4)
        std::this_thread::sleep_for(std::chrono::milliseconds(4));
    }
  });
}

TEST_CASE("a region of another generation or cut otherwise is refused") {
  auto options = options_of(2, {.generation = {3, 4}});
  const auto region = options[0].region;
  const auto attach = [&](Generation generation, int size, std::size_t data_bytes) {
    NativeGroupOptions o;
    o.size = size;
    o.generation = generation;
    o.region = region;
    o.data_bytes = data_bytes;
    return make_native_group(std::move(o));
  };
  const auto group = make_native_group(std::move(options[0]));
  CHECK_THROWS_WITH(attach({3, 5}, 2, 1 << 20), Catch::Contains("belongs to generation 3.4 and not to 3.5"));
  CHECK_THROWS_WITH(attach({3, 4}, 2, 1 << 19), Catch::Contains("same data_bytes"));
  CHECK_THROWS_WITH(attach({3, 4}, 2, 1 << 28), Catch::Contains("native_region_bytes"));
  CHECK_THROWS_AS(attach({3, 4}, 0, 1), BadConfig);
  CHECK_NOTHROW(attach({3, 4}, 2, 1 << 20));
  CHECK_THROWS_WITH(group->allocate_tree(1 << 20, DType::kFloat64), Catch::Contains("raise data_bytes"));
  CHECK_THROWS_WITH(group->allocate(1, static_cast<DType>(99)), Catch::Contains("there is no dtype 99"));
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, (std::size_t{1} << 46) + 1}) {
    CHECK_THROWS_WITH(native_region_bytes({0, 0}, 0, bytes), Catch::Contains("2^46 is the most"));
  }
}

TEST_CASE("options that make no sense are refused") {
  const auto refused = [](const std::function<void(NativeGroupOptions&)>& spoil, const char* why) {
    auto options = options_of(2, {.nodes = {{0}, {1}}});
    spoil(options[0]);
    CHECK_THROWS_WITH(make_native_group(std::move(options[0])), Catch::Contains(why));
  };
  refused([](auto& o) { o.rank = 2; }, "does not exist");
  refused([](auto& o) { o.size = 0; }, "does not exist");
  refused([](auto& o) { o.remote.clear(); }, "is remote and has no socket");
  refused([](auto& o) { o.connector = nullptr; }, "nothing connects");
  refused([](auto& o) { o.machines = {0, 0, 0}; }, "3 machines for 2 ranks");
  refused([](auto& o) { o.machines = {3, 3}; }, "is local and has a socket");
  refused([](auto& o) { o.remote[7]; }, "does not exist");
  refused([](auto& o) { o.leaves = {{0, 1}}; }, "1 leaf intervals for 2 ranks");
  refused([](auto& o) { o.leaves = {{0, 1}, {2, 3}}; }, "not adjacent");
  refused([](auto& o) { o.leaves = {{0, 1}, {1, 1}}; }, "a rank has none");
  refused([](auto& o) { o.timeout = Duration::zero(); }, "timeout");
  refused([](auto& o) { o.region = nullptr; }, "0 bytes");
}

namespace {

/// What this process holds of the machine.
struct Held {
  std::size_t descriptors = open_descriptors(), threads = entries("/proc/self/task"), mappings = 0, pages = 0;
  Held() {
    std::ifstream maps("/proc/self/maps"), memory("/proc/self/statm");
    for (std::string line; std::getline(maps, line);) ++mappings;
    memory >> pages >> pages;  // the second is what is resident
  }
  static std::size_t entries(const char* folder) {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
  }
};

/// A generation after another on the same two threads: made, used, aborted with operations in flight, left.
void live_through(int generations) {
  std::vector<NativeGroupOptions> options;
  int made = 0;
  std::barrier next(2, [&]() noexcept {
    const Layout sockets{.nodes = {{0}, {1}}};  // every tenth with a connection between machines
    options = options_of(2, ++made % 10 == 0 ? sockets : Layout{});
  });
  std::atomic<int> wrong{0};
  const auto rank = [&](int r) {
    std::vector<float> values(5000);
    for (int i = 0; i < generations; ++i) {
      next.arrive_and_wait();
      auto group = make_native_group(std::move(options[static_cast<std::size_t>(r)]));
      std::fill(values.begin(), values.end(), 1.0F);
      try {
        group->all_reduce(std::span(values))->wait();
        if (values.front() != 2 || values.back() != 2) ++wrong;
        const auto in_flight = group->all_reduce(std::span(values));
        if (r == i % 2) group->abort("generation " + std::to_string(i));
        in_flight->wait();
        while (true) group->barrier()->wait();
      } catch (const CollectiveAborted& e) {
        if (std::string(e.what()).find("generation " + std::to_string(i)) == std::string::npos) ++wrong;
      }
    }
  };
  std::thread one(rank, 1);
  rank(0);
  one.join();
  CHECK(wrong == 0);
}

}  // namespace

/// What is too small to be seen in 300 generations, the address sanitizer's preset finds.
TEST_CASE("generations made, used and aborted in operations leave nothing behind") {
  live_through(100);  // what is made once, such as a thread's stack and an allocator's arena
  const Held before;
  live_through(300);
  const Held after;
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.threads == before.threads);
#if !defined(__SANITIZE_THREAD__)                // whose shadow memory grows
  CHECK(after.mappings <= before.mappings + 2);  // an allocator's arena may be cut in two
#if !defined(__SANITIZE_ADDRESS__)               // which keeps memory that was given back
  CHECK(after.pages <= before.pages + 75);       // a page in four generations: the region of one has 512
#endif
#endif
}

TEST_CASE("frame headers that are noise do not decode, and do not get past the connection") {
  SeededRandom random(9);
  FrameHeaderBytes bytes;
  const FrameHeader good{.kind = FrameKind::kResult,
                         .sequence = 7,
                         .round = 9,
                         .call = encode(Op{.kind = OpKind::kBroadcast,
                                           .dtype = DType::kInt64,
                                           .how = Reduction::premul_sum(0.3, false),
                                           .peer = 3,
                                           .count = 1ULL << 39}),
                         .payload_bytes = 123};
  const auto encoded = encode(good);
  const auto decoded = decode_header(encoded);
  REQUIRE(decoded.ok());
  CHECK(decoded->call == good.call);
  CHECK((decoded->kind == good.kind && decoded->sequence == 7 && decoded->round == 9 &&
         decoded->payload_bytes == 123));
  for (std::size_t at = 0; at < 8; ++at) {  // magic and kind
    auto broken = encoded;
    broken[at] ^= std::byte{0x40};
    CHECK_FALSE(decode_header(broken).ok());
  }
  // A peer that sends what this rank did not ask for: a length that lies, noise, half a header.
  const FrameHeader lie{.kind = FrameKind::kPartials,
                        .sequence = 1,
                        .round = 0,
                        .call = encode(Op{}),
                        .payload_bytes = 1ULL << 50};
  const auto lying = encode(lie);
  for (int which = 0; which < 3; ++which) {
    auto options = options_of(2, {.nodes = {{0}, {1}}});
    const UniqueFd peer = std::move(options[1].remote.at(0).socket);
    std::vector<NativeGroupOptions> mine;
    mine.push_back(std::move(options[0]));
    random.fill(bytes);
    if (which == 0) bytes = lying;
    const std::size_t length = which == 2 ? 13 : bytes.size();
    CHECK(::send(peer.get(), bytes.data(), length, MSG_NOSIGNAL) == static_cast<ssize_t>(length));
    if (which == 2) ::shutdown(peer.get(), SHUT_WR);
    const auto thrown = run_threads(std::move(mine), [](ProcessGroup& group) { group.barrier()->wait(); });
    CHECK(contains(thrown[0], which == 0   ? "out of turn"
                              : which == 1 ? "wrong magic"
                                           : "closed the connection"));
  }
}
