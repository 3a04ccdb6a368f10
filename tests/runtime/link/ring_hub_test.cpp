// Two hubs, as of two processes, here in one.
#include "runtime/link/ring/ring_hub.hpp"

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <thread>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

constexpr ProcessId kLeft{1};
constexpr ProcessId kRight{2};

UniqueFd copy_of(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

/// The right one answers every message after a while; the left one fills the call of that number.
struct Pair {
  explicit Pair(Duration pause) {
    auto left_bell = transport::Doorbell::create().value();
    auto right_bell = transport::Doorbell::create().value();
    auto memory = SharedMemory::create("ring", 2 * transport::kRingBytes, true).value();
    auto same_memory = SharedMemory::map(copy_of(memory.fd())).value();
    auto to_left = transport::Doorbell::map(copy_of(left_bell.fd())).value();
    auto to_right = transport::Doorbell::map(copy_of(right_bell.fd())).value();
    left = std::make_unique<RingHub>(
        std::move(left_bell),
        [this](ProcessId, const wire::FrameHeader&, wire::ByteView body) { answer(body); }, [] {});
    right = std::make_unique<RingHub>(
        std::move(right_bell),
        [this, pause](ProcessId, const wire::FrameHeader& header, wire::ByteView body) {
          std::this_thread::sleep_for(pause);
          right->send(kLeft, header, body);
        },
        [] {});
    left->add(kRight, std::move(memory), std::move(to_right), true).value();
    right->add(kLeft, std::move(same_memory), std::move(to_left), false).value();
  }
  ~Pair() {
    left.reset();
    right.reset();
  }
  void answer(wire::ByteView body) { call->resolve(wire::Bytes(body.begin(), body.end())); }
  wire::Bytes ask(std::size_t size) {
    call = std::make_shared<CallState>(left.get());
    const wire::Bytes body(size, std::byte{7});
    REQUIRE(left->send(kRight, {}, body));
    REQUIRE(call->wait(10s));
    return *call->outcome();
  }

  std::shared_ptr<CallState> call;
  std::unique_ptr<RingHub> left;
  std::unique_ptr<RingHub> right;
};

}  // namespace

TEST_CASE("a thread that waits is the one that a message wakes") {
  Pair pair(2ms);  // long enough that both hubs sleep
  for (int i = 0; i < 200; ++i) pair.ask(8);
  CHECK(pair.left->late_wakeups() <= 2);  // chance may let a message come just when a sleep runs out
}

TEST_CASE("messages longer than a ring come whole, both ways") {
  Pair pair(0ms);
  for (const std::size_t size : {std::size_t{0}, std::size_t{100'000}, std::size_t{5'000'000}})
    CHECK(pair.ask(size).size() == size);
}

TEST_CASE("to a peer that is not there or was removed nothing is sent") {
  Pair pair(0ms);
  CHECK_FALSE(pair.left->send({3}, {}, {}));
  pair.left->remove(kRight);
  CHECK_FALSE(pair.left->has(kRight));
  CHECK_FALSE(pair.left->send(kRight, {}, {}));
}
