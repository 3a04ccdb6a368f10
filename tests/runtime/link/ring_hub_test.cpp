// Two hubs, as of two processes, here in one.
#include "runtime/link/ring/ring_hub.hpp"

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "tests/support/eventually.hpp"

using namespace troupe;
using troupe::test::eventually;
using namespace std::chrono_literals;

namespace {

constexpr NodeId kNode{9};
constexpr ProcessId kLeft{1};
constexpr ProcessId kRight{2};
constexpr JobId kJob{3};

UniqueFd copy_of(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

wire::FrameHeader frame_of(ProcessId from, std::uint64_t id = 0) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.from = {kNode, from};
  header.job = kJob;
  header.id = id;
  return header;
}

/// The right one answers every message after a while; the left one fills the call of that number.
struct Pair {
  explicit Pair(Duration pause) {
    auto left_bell = Doorbell::create().value();
    auto right_bell = Doorbell::create().value();
    memory = SharedMemory::create("ring", 2 * kRingBytes, false).value();
    to_left = Doorbell::map(left_bell.take_fd()).value();
    to_right = Doorbell::map(right_bell.take_fd()).value();
    left = std::make_unique<RingHub>(
        kNode, std::move(left_bell),
        RingHub::Handlers{[this](Message m) { asked()->resolve(std::move(m.body)); }, [] {}, [](ProcessId) {},
                          [](ProcessId, const std::string&) {}});
    right = std::make_unique<RingHub>(
        kNode, std::move(right_bell),
        RingHub::Handlers{[this, pause](Message m) {
                            std::this_thread::sleep_for(pause);
                            ++received;
                            if (m.header.id == 0)
                              right->send(*to_left_ring, frame_of(kRight), m.body, SendMode::kMust);
                          },
                          [this] { idle_after = received.load(); }, [](ProcessId) {},
                          [this](ProcessId, const std::string& why) {
                            broken = why;
                            is_broken = true;
                          }});
    to_right_ring = left->open(kRight);
    to_left_ring = right->open(kLeft);
  }
  void attach() {
    auto same = SharedMemory::map(copy_of(memory.fd()), false).value();
    left->attach(kRight, kJob, std::move(memory), std::move(to_right), true).value();
    right->attach(kLeft, kJob, std::move(same), std::move(to_left), false).value();
  }
  wire::Bytes ask(std::size_t size) {
    const auto call = std::make_shared<CallState>(left.get());
    {
      const std::scoped_lock lock(mutex);
      asked_ = call;
    }
    const wire::Bytes body(size, std::byte{7});
    REQUIRE(left->send(*to_right_ring, frame_of(kLeft), body, SendMode::kWait) == Sent::kQueued);
    REQUIRE(call->wait(10s));
    return *call->outcome();
  }
  std::shared_ptr<CallState> asked() {
    const std::scoped_lock lock(mutex);
    return asked_;
  }

  SharedMemory memory;
  Doorbell to_left, to_right;
  std::mutex mutex;  // the ring orders the two as well, but ThreadSanitizer sees its memory at two addresses
  std::shared_ptr<CallState> asked_;
  std::atomic<int> received{0};
  std::atomic<int> idle_after{0};  ///< messages, on the right
  std::string broken;
  std::atomic<bool> is_broken{false};
  RingChannelPtr to_right_ring, to_left_ring;
  // Last, so that their threads end before what they use; the left one first.
  std::unique_ptr<RingHub> right;
  std::unique_ptr<RingHub> left;
};

}  // namespace

TEST_CASE("a thread that waits is the one that a message wakes") {
  Pair pair(2ms);  // long enough that both hubs sleep
  pair.attach();
  for (int i = 0; i < 200; ++i) pair.ask(8);
  CHECK(pair.left->late_wakeups() <= 2);  // chance may let a message come just when a sleep runs out
}

TEST_CASE("messages longer than a ring come whole, both ways") {
  Pair pair(0ms);
  pair.attach();
  for (const std::size_t size : {std::size_t{0}, std::size_t{100'000}, std::size_t{5'000'000}})
    CHECK(pair.ask(size).size() == size);
}

TEST_CASE("what is sent before a ring is there waits for it") {
  // A light actor that met a new peer blocked its thread until the node had made the ring: two of them
  // blocked all threads of a process, and with them the answer that they waited for.
  Pair pair(0ms);
  for (int i = 1; i <= 100; ++i)
    REQUIRE(pair.left->send(*pair.to_right_ring, frame_of(kLeft, 1), wire::Bytes(1000), SendMode::kMust) ==
            Sent::kQueued);
  CHECK(pair.left->queued_bytes(*pair.to_right_ring) > 100'000);
  pair.attach();
  CHECK(eventually([&] { return pair.received == 100; }));
}

TEST_CASE("who must not wait leaves what a slow reader has no room for, and none of it is lost") {
  Pair pair(100us);
  pair.attach();
  constexpr int kMessages = 2000;
  for (int i = 0; i < kMessages; ++i)
    REQUIRE(pair.left->send(*pair.to_right_ring, frame_of(kLeft, 1),
                            wire::Bytes(i % 50 == 0 ? 300'000 : 2000), SendMode::kMust) == Sent::kQueued);
  CHECK(eventually([&] { return pair.received == kMessages; }));
  CHECK(eventually([&] { return pair.left->queued_bytes(*pair.to_right_ring) == 0; }));
}

TEST_CASE("to a peer that is gone nothing is sent") {
  Pair pair(0ms);
  pair.attach();
  pair.left->close(kRight);
  CHECK(pair.left->send(*pair.to_right_ring, frame_of(kLeft), {}, SendMode::kMust) == Sent::kClosed);
}

TEST_CASE("the last messages of a peer that is gone are carried out") {
  // They were received while the list of rings was made anew, and nobody was told that there was something to
  // carry out: the actor that they were for stood still for good, as the driver of a job whose trainer had
  // crashed did, once in some hundred times on a loaded machine.
  Pair pair(1ms);
  pair.attach();
  constexpr int kMessages = 300;  // more than are received in a turn
  for (int i = 0; i < kMessages; ++i)
    REQUIRE(pair.left->send(*pair.to_right_ring, frame_of(kLeft, 1), {}, SendMode::kMust) == Sent::kQueued);
  REQUIRE(eventually([&] { return pair.received > 0; }));
  pair.right->close(kLeft);
  CHECK(eventually([&] { return pair.idle_after == kMessages; }));
}

TEST_CASE("a peer that speaks in another's name or for another job loses its ring") {
  Pair pair(0ms);
  pair.attach();
  auto header = frame_of(kLeft, 1);
  SECTION("another process") {
    header.from.process = {77};
  }
  SECTION("another job") {
    header.job = {78};
  }
  REQUIRE(pair.left->send(*pair.to_right_ring, header, {}, SendMode::kMust) == Sent::kQueued);
  CHECK(eventually([&] { return pair.is_broken.load(); }));
  CHECK(pair.received == 0);
}
