#include "runtime/link/socket/socket_link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include "runtime/core/clock.hpp"
#include "runtime/link/fragment.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "tests/runtime/link/messages.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

struct SocketPair {
  SocketLink a;
  SocketLink b;
  explicit SocketPair(std::size_t queue_bytes = kLinkQueueBytes) {
    auto made = SocketLink::pair();
    REQUIRE(made.ok());
    a = SocketLink(std::move(made->first.socket()), queue_bytes);
    b = std::move(made->second);
  }
};

/// The next message; both ends take turns until it is there.
Message next_message(SocketPair& pair) {
  Message message;
  const Instant deadline = MonotonicClock().now() + std::chrono::seconds(30);
  while (MonotonicClock().now() < deadline) {
    const auto got = pair.b.receive(message);
    if (got == SocketLink::Got::kMessage) return message;
    REQUIRE(got == SocketLink::Got::kNothing);
    pair.a.flush();
  }
  FAIL("no message within 30 s");
  return message;
}

UniqueFd some_descriptor() {
  return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

TEST_CASE("socket: descriptors travel with their message, also when it waits and when it is cut") {
  SocketPair pair;
  std::size_t sent = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    const auto header = numbered_header(1, i);
    std::vector<UniqueFd> fds;
    for (std::size_t f = 0; f < i % (kMaxMessageFds + 1); ++f) fds.push_back(some_descriptor());
    const Sent answer = pair.a.send(header, body_of(header, 1000 * i), std::move(fds));
    REQUIRE(answer == Sent::kQueued);
    ++sent;
  }
  REQUIRE(pair.a.wants_write());  // 20 MB: it waits
  for (std::size_t i = 0; i < sent; ++i) {
    const Message message = next_message(pair);
    REQUIRE(message.header.id == i);
    CHECK(message.body.size() == 1000 * i);
    CHECK(body_belongs(message.header, message.body));
    REQUIRE(message.fds.size() == i % (kMaxMessageFds + 1));
    for (const UniqueFd& fd : message.fds) CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK_FALSE(pair.a.wants_write());
}

TEST_CASE("socket: full is an answer, and leaves what it did not take") {
  SocketPair pair(1 << 20);
  const auto header = numbered_header(1, 0);
  const wire::Bytes body = body_of(header, 100'000);
  std::size_t taken = 0;
  std::vector<UniqueFd> fds;
  for (;;) {
    fds.push_back(some_descriptor());
    const int before = fds[0].get();
    const Sent answer = pair.a.send(header, body, std::move(fds));
    if (answer == Sent::kFull) {
      REQUIRE(fds.size() == 1);
      CHECK(fds[0].get() == before);
      break;
    }
    REQUIRE(answer == Sent::kQueued);
    REQUIRE(fds.empty());
    REQUIRE(++taken < 10'000);
  }
  CHECK_FALSE(pair.a.has_room());
  CHECK(taken >= 10);
  for (std::size_t i = 0; i < taken; ++i) next_message(pair);
  CHECK(pair.a.has_room());
  CHECK(pair.a.send(header, wire::Bytes(wire::kMaxBodyBytes + 1)) == Sent::kTooLarge);
  CHECK(pair.a.send(header, wire::Bytes(wire::kMaxBodyBytes)) ==
        Sent::kQueued);  // above the bound, into an empty queue
  CHECK(next_message(pair).body.size() == wire::kMaxBodyBytes);
}

// A peer that closes while something of ours lies unread resets the connection: the kernel tells that once,
// before it gives what the peer had written. A reader that stops at the reset loses the last words of a
// worker.
TEST_CASE("socket: what arrived before the end is received, also after a reset") {
  SocketPair pair;
  REQUIRE(pair.b.send(numbered_header(9, 1), body_of(numbered_header(9, 1), 10)) == Sent::kQueued);
  for (std::uint64_t i = 0; i < 3; ++i) {
    REQUIRE(pair.a.send(numbered_header(1, i), body_of(numbered_header(1, i), 100)) == Sent::kQueued);
  }
  pair.a = SocketLink();
  Message message;
  for (std::uint64_t i = 0; i < 3; ++i) {
    REQUIRE(pair.b.receive(message) == SocketLink::Got::kMessage);
    CHECK(message.header.id == i);
  }
  CHECK(pair.b.receive(message) == SocketLink::Got::kClosed);
  CHECK(pair.b.why_closed().find("closed") != std::string::npos);
  CHECK(pair.b.send(numbered_header(1, 1), {}) == Sent::kClosed);
}

TEST_CASE("socket: the side that closes says why") {
  SocketPair pair;
  for (int i = 0; i < 100; ++i) {  // more than the socket takes: the goodbye counts what was begun
    REQUIRE(pair.a.send(numbered_header(1, 1), body_of(numbered_header(1, 1), 100'000)) == Sent::kQueued);
  }
  REQUIRE(pair.a.wants_write());
  Message message;
  for (int i = 0; i < 3; ++i) REQUIRE(pair.b.receive(message) == SocketLink::Got::kMessage);
  pair.a.shutdown("the job ended");
  CHECK(pair.a.why_closed() == "the job ended");
  CHECK(pair.a.send(numbered_header(1, 1), {}) == Sent::kClosed);
  SocketLink::Got got;
  int messages = 3;
  while ((got = pair.b.receive(message)) == SocketLink::Got::kMessage) ++messages;
  CHECK(got == SocketLink::Got::kClosed);
  CHECK(messages < 100);
  CHECK(pair.b.why_closed().find("the job ended") != std::string::npos);
}

TEST_CASE("socket: a packet out of sequence closes the link, and both sides know why") {
  SocketPair pair;
  const auto header = numbered_header(1, 1);
  const wire::HeaderBytes head = wire::encode_header(header);
  const Cutter second(2, head, {}, 65536);  // message 1 is lost
  wire::Bytes packet(second.next().size());
  second.next().copy_to(packet.data());
  REQUIRE(::send(pair.a.fd(), packet.data(), packet.size(), 0) > 0);
  Message message;
  REQUIRE(pair.b.receive(message) == SocketLink::Got::kClosed);
  CHECK(pair.b.why_closed().find("message 2 came after message 0") != std::string::npos);
  REQUIRE(pair.a.receive(message) == SocketLink::Got::kClosed);
  CHECK(pair.a.why_closed().find("message 2 came after message 0") != std::string::npos);
}

TEST_CASE("socket: descriptors that are lost close the link") {
  SocketPair pair;
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 4; ++i) fds.push_back(some_descriptor());
  const int top = fds.back().get();
  REQUIRE(pair.a.send(numbered_header(1, 1), {}, std::move(fds)) == Sent::kQueued);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const UniqueFd last = some_descriptor();  // every number below is in use or counts as free again
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(std::min(last.get() + 2, top));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  Message message;
  const auto got = pair.b.receive(message);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(got == SocketLink::Got::kClosed);
  CHECK(pair.b.why_closed().find("ulimit -n") != std::string::npos);
}

TEST_CASE("socket: first exchange") {
  SocketPair pair;
  SECTION("a message with a descriptor") {
    std::vector<UniqueFd> fds;
    fds.push_back(some_descriptor());
    REQUIRE(send_control(pair.a, {{1}, {2}}, wire::Ready{"here:1"}, std::move(fds)));
    auto received = receive_control(pair.b, std::chrono::seconds(10));
    REQUIRE(received.ok());
    CHECK(std::get<wire::Ready>(received->message).address == "here:1");
    CHECK(received->fds.size() == 1);
  }
  SECTION("a large one: somebody reads it") {
    bool received = false;
    std::thread reader([&] { received = receive_control(pair.b, std::chrono::seconds(30)).ok(); });
    CHECK(send_control(pair.a, {}, wire::Ready{std::string(std::size_t{20} << 20, 'x')}));
    reader.join();
    CHECK(received);
  }
  SECTION("nothing comes, although signals do") {
    struct sigaction quiet {};
    quiet.sa_handler = [](int) {};
    ::sigaction(SIGUSR1, &quiet, nullptr);
    const pthread_t self = ::pthread_self();
    std::atomic<bool> done{false};
    std::thread signals([&] {
      while (!done) {
        ::pthread_kill(self, SIGUSR1);
        std::this_thread::yield();
      }
    });
    const Instant before = MonotonicClock().now();
    const auto received = receive_control(pair.b, std::chrono::milliseconds(100));
    CHECK(MonotonicClock().now() - before >= std::chrono::milliseconds(100));
    done = true;
    signals.join();
    REQUIRE_FALSE(received.ok());
    CHECK(received.error().code == ErrorCode::kTimeout);
  }
  SECTION("the other end is gone") {
    pair.a = SocketLink();
    const auto received = receive_control(pair.b, std::chrono::seconds(10));
    REQUIRE_FALSE(received.ok());
    CHECK(received.error().code == ErrorCode::kUnavailable);
    CHECK_FALSE(send_control(pair.b, {}, wire::Pulse{}));
  }
  SECTION("something else comes") {
    REQUIRE(pair.a.send(numbered_header(1, 1), {}) == Sent::kQueued);
    CHECK_FALSE(receive_control(pair.b, std::chrono::seconds(10)).ok());
  }
}
