// Copies over direct connections: what is decided, and what happens on the sockets.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <thread>

#include "runtime/objects/direct_client.hpp"
#include "runtime/objects/direct_server.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::objects;
using namespace std::chrono_literals;
using test::eventually;

namespace {

constexpr std::uint64_t kOneMiB = std::uint64_t{1} << 20;
constexpr ProcessAddress kGiver{{1}, {2}};
constexpr ProcessAddress kStranger{{1}, {3}};
constexpr ObjectName kGiven{kGiver, 7};
using Way = DirectOwners::Way;

DirectAddress somewhere() {
  return {"127.0.0.1:1", wire::Bytes(32)};
}

wire::Bytes pattern(std::size_t bytes) {
  wire::Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 4096);
  return made;
}

/// Memory that an object is fetched into.
struct Memory {
  explicit Memory(std::size_t bytes) : fd(::memfd_create("copy", MFD_CLOEXEC)), size(bytes) {
    REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  }
  wire::Bytes read() const {
    wire::Bytes all(size);
    std::size_t at = 0;
    while (at < size) {
      const auto got = ::pread(fd.get(), all.data() + at, size - at, static_cast<off_t>(at));
      REQUIRE(got > 0);
      at += static_cast<std::size_t>(got);
    }
    return all;
  }
  UniqueFd fd;
  std::size_t size;
};

std::size_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::unique_ptr<DirectServer> serve(std::shared_ptr<const ObjectBytes> object) {
  return DirectServer::start("127.0.0.1",
                             [object = std::move(object)](std::uint64_t number) {
                               return number == kGiven.number ? object : nullptr;
                             })
      .value();
}

/// What becomes of a fetch.
std::future<Result<void>> fetch(DirectClient& client, DirectAddress at, const Memory& memory,
                                ObjectName name = kGiven) {
  const auto told = std::make_shared<std::promise<Result<void>>>();
  client.fetch({name, memory.size, std::move(at), memory.fd.get()},
               [told](Result<void> result) { told->set_value(std::move(result)); });
  return told->get_future();
}
Result<void> result_of(std::future<Result<void>> told) {
  REQUIRE(told.wait_for(60s) == std::future_status::ready);
  return told.get();
}

/// An owner that does what a test says once its reader has asked.
class StrangeOwner {
 public:
  explicit StrangeOwner(std::function<void(int fd, PartAsked asked)> then)
      : listener_(DataListener::bind({"127.0.0.1", 0}).value()), thread_([this, then = std::move(then)] {
          TransferDeadline deadline(0, MonotonicClock().now(), {60s, 60s});
          UniqueFd fd;
          while (!fd) {
            pollfd ready{listener_.fd(), POLLIN, 0};
            ::poll(&ready, 1, -1);
            fd = UniqueFd(::accept(listener_.fd(), nullptr, nullptr));
          }
          talk(fd.get(), then, deadline);
        }) {}
  ~StrangeOwner() { thread_.join(); }
  DirectAddress address() const { return {to_string(listener_.endpoint()), wire::Bytes(32)}; }

 private:
  static void talk(int fd, const std::function<void(int, PartAsked)>& then, TransferDeadline& deadline) {
    const std::array<std::byte, 32> key{};
    if (!prove_owner(fd, key, deadline)) return;
    if (const auto asked = read_asked(fd, deadline)) then(fd, *asked);
  }
  DataListener listener_;
  std::thread thread_;
};

/// Until the other end closes.
void wait_for_close(int fd) {
  char byte = 0;
  while (::recv(fd, &byte, 1, 0) > 0) {
  }
}

/// Says that all comes, and sends half of it.
void give_half(int fd, const PartAsked& asked) {
  wire::Bytes half(8 + asked.part.bytes / 2);
  for (std::size_t i = 0; i < 8; ++i) half[i] = static_cast<std::byte>(asked.part.bytes >> (8 * i));
  std::span<const std::byte> left(half);
  while (!left.empty()) {
    const auto sent = ::send(fd, left.data(), left.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // its reader has hung up
    left = left.subspan(static_cast<std::size_t>(sent));
  }
}

}  // namespace

TEST_CASE("An owner is asked for its address once, and left alone for a while when it is not reached") {
  DirectOwners owners;
  const Instant now = 100s;
  CHECK(owners.choose(kGiver, kLeastDirectBytes, now).way == Way::kLinks);
  CHECK(owners.choose(kGiver, kLeastDirectBytes + 1, now).way == Way::kAsk);
  owners.said(kGiver, somewhere(), now);
  CHECK(owners.choose(kGiver, 2 * kOneMiB, now).way == Way::kDirect);
  CHECK(owners.choose(kGiver, 2 * kOneMiB, now).at.address == "127.0.0.1:1");
  CHECK(owners.choose(kGiver, 1, now).way == Way::kLinks);
  CHECK(owners.choose(kStranger, 2 * kOneMiB, now).way == Way::kAsk);

  owners.ended(kGiver, ErrorInfo{ErrorCode::kObjectLost, "it is on disk", "", ""}, now);
  CHECK(owners.choose(kGiver, 2 * kOneMiB, now).way == Way::kDirect);
  owners.ended(kGiver, ErrorInfo{ErrorCode::kUnavailable, "it broke", "", ""}, now);
  CHECK(owners.choose(kGiver, 2 * kOneMiB, now + DirectOwners::kBackoff - 1ns).way == Way::kLinks);
  CHECK(owners.choose(kGiver, 2 * kOneMiB, now + DirectOwners::kBackoff).way == Way::kAsk);
}

TEST_CASE("An owner without an address is asked again after a while") {
  DirectOwners owners;
  const Instant now = 100s;
  const DirectAddress wrong[] = {{}, {"127.0.0.1:1", wire::Bytes(31)}, {"", wire::Bytes(32)}};
  for (const auto& one : wrong) {
    owners.said(kGiver, one, now);
    CHECK(owners.choose(kGiver, 2 * kOneMiB, now + 1s).way == Way::kLinks);
    CHECK(owners.choose(kGiver, 2 * kOneMiB, now + DirectOwners::kBackoff).way == Way::kAsk);
  }
  owners.said(kGiver, std::nullopt, now);
  CHECK(owners.choose(kGiver, 2 * kOneMiB, now + 1s).way == Way::kLinks);
  owners.said(kGiver, somewhere(), now + 1s);
  CHECK(owners.choose(kGiver, 2 * kOneMiB, now + 1s).way == Way::kDirect);
}

TEST_CASE("What is known of owners is bounded, and goes with them") {
  DirectOwners owners;
  for (std::uint64_t i = 0; i < DirectOwners::kMost + 100; ++i) owners.said({{1}, {i}}, somewhere(), 1s);
  CHECK(owners.size() == DirectOwners::kMost);
  owners.forget([](ProcessAddress) { return true; });
  CHECK(owners.size() == 0);
}

TEST_CASE("Parts cover an object once, in order and in whole pages") {
  CHECK(split(2 * kOneMiB, 4) == std::vector<Part>{{0, 2 * kOneMiB}});
  CHECK(split(64 * kOneMiB, 4).size() == 4);
  CHECK(split(1024 * kOneMiB, 4).size() == 4);
  CHECK(split(1024 * kOneMiB, 0).size() == 1);
  for (const std::uint64_t bytes : {std::uint64_t{1}, 16 * kOneMiB - 1, 32 * kOneMiB + 1, 48 * kOneMiB - 1,
                                    100 * kOneMiB + 4097, 1024 * kOneMiB + 5}) {
    INFO(bytes);
    std::uint64_t end = 0;
    const auto parts = split(bytes, 4);
    CHECK(parts.size() <= 4);
    for (const Part& part : parts) {
      CHECK(part.offset == end);
      CHECK(part.offset % 4096 == 0);
      CHECK(part.bytes > 0);
      end += part.bytes;
    }
    CHECK(end == bytes);
  }
}

TEST_CASE("An owner gives no part that is not of its object") {
  constexpr auto kMost = ~std::uint64_t{0};
  CHECK(why_not_given({0, 10}, 10).empty());
  CHECK(why_not_given({9, 1}, 10).empty());
  CHECK_FALSE(why_not_given({0, 0}, 10).empty());
  CHECK_FALSE(why_not_given({0, 11}, 10).empty());
  CHECK_FALSE(why_not_given({10, 1}, 10).empty());
  CHECK_FALSE(why_not_given({kMost, 2}, 10).empty());
  CHECK_FALSE(why_not_given({2, kMost}, 10).empty());
}

TEST_CASE("A transfer is given up when nothing moves, and when it is too slow") {
  TransferDeadline silent(10 * kOneMiB, 100s, {20s, 60s});
  CHECK(silent.check(119s).ok());
  silent.moved(119s);
  CHECK(silent.check(138s).ok());
  CHECK(silent.check(139s).error().why == "its other end was silent for 20.000000 s");

  TransferDeadline slow(10 * kOneMiB, 100s, {20s, 60s});  // 60 s, and 10 s for 10 MiB
  for (Instant now = 100s; now < 170s; now += 1s) {
    slow.moved(now);
    CHECK(slow.check(now).ok());
  }
  CHECK(slow.check(170s).error().why == "it was slower than 1 MiB/s");
}

TEST_CASE("An object comes whole over several connections, and no descriptor is left") {
  const std::size_t before = descriptors();
  {
    const auto object = std::make_shared<ObjectBytes>(pattern(40 * kOneMiB + 12345));
    const auto server = serve(object);
    DirectClient client;
    const Memory memory(object->view().size());
    const Memory again(object->view().size());
    auto first = fetch(client, server->address(), memory);
    auto second = fetch(client, server->address(), again);
    REQUIRE(result_of(std::move(first)).ok());
    REQUIRE(result_of(std::move(second)).ok());
    CHECK(std::ranges::equal(memory.read(), object->view()));
    CHECK(std::ranges::equal(again.read(), object->view()));
    CHECK(eventually([&] { return server->connections() == 0; }));
    CHECK(eventually([&] { return object.use_count() == 2; }));  // the server's own
  }
  CHECK(descriptors() == before);
}

TEST_CASE("Without the owner's key nothing is given, and with it nothing else than was asked for") {
  const auto server = serve(std::make_shared<ObjectBytes>(pattern(2 * kOneMiB)));
  DirectClient client;
  const Memory memory(2 * kOneMiB);
  auto wrong = server->address();
  wrong.key[5] ^= std::byte{1};
  CHECK(result_of(fetch(client, wrong, memory)).error().code == ErrorCode::kRefused);
  const auto lost = ErrorCode::kObjectLost;
  CHECK(result_of(fetch(client, server->address(), memory, {kGiver, 8})).error().code == lost);
  const Memory longer(2 * kOneMiB + 1);
  CHECK(result_of(fetch(client, server->address(), longer)).error().code == lost);
  CHECK(memory.read() == wire::Bytes(2 * kOneMiB));
  CHECK(result_of(fetch(client, server->address(), memory)).ok());
}

TEST_CASE("Noise and silence at an owner's port do not keep others out") {
  const auto server = serve(std::make_shared<ObjectBytes>(pattern(2 * kOneMiB)));
  const auto at = parse_endpoint(server->address().address).value();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(dial(at, 10s).value());
  const std::string noise(4096, 'x');
  for (int i = 0; i < 10; ++i)
    CHECK(::send(strangers[std::size_t(i)].get(), noise.data(), noise.size(), MSG_NOSIGNAL) > 0);
  DirectClient client;
  const Memory memory(2 * kOneMiB);
  CHECK(result_of(fetch(client, server->address(), memory)).ok());
}

TEST_CASE("An owner that closes in the middle is an error that says what is missing") {
  const StrangeOwner owner(give_half);
  DirectClient client;
  const Memory memory(2 * kOneMiB);
  const auto result = result_of(fetch(client, owner.address(), memory));
  CHECK(result.error().code == ErrorCode::kUnavailable);
  CHECK(result.error().why == "the other end closed it with 1048576 bytes to come");
}

TEST_CASE("An owner that announces another length is refused before anything is written") {
  const StrangeOwner owner([](int fd, PartAsked asked) {
    asked.part.bytes *= 4;  // then half of it comes
    give_half(fd, asked);
  });
  DirectClient client;
  const Memory memory(2 * kOneMiB);
  CHECK(result_of(fetch(client, owner.address(), memory)).error().code == ErrorCode::kRefused);
  CHECK(memory.read() == wire::Bytes(2 * kOneMiB));
}

TEST_CASE("An owner that falls silent is given up") {
  const StrangeOwner owner([](int fd, const PartAsked& asked) {
    give_half(fd, asked);
    wait_for_close(fd);
  });
  DirectClient client({100ms, 60s});
  const Memory memory(2 * kOneMiB);
  CHECK(result_of(fetch(client, owner.address(), memory)).error().code == ErrorCode::kTimeout);
}

TEST_CASE("A silent transfer ends when its owner is known to be gone, and with the process") {
  std::promise<void> halfway;
  const StrangeOwner owner([&](int fd, const PartAsked& asked) {
    give_half(fd, asked);
    halfway.set_value();
    wait_for_close(fd);
  });
  const Memory memory(2 * kOneMiB);
  auto client = std::make_unique<DirectClient>(TransferDeadline::Limits{1h, 1h});
  auto told = fetch(*client, owner.address(), memory);
  REQUIRE(halfway.get_future().wait_for(60s) == std::future_status::ready);
  client->abort([](ProcessAddress p) { return p == kStranger; }, "another one");
  CHECK(told.wait_for(20ms) == std::future_status::timeout);
  SECTION("gone") {
    client->abort([](ProcessAddress p) { return p == kGiver; }, "killed by signal 9");
    CHECK(result_of(std::move(told)).error().why == "its owner is gone: killed by signal 9");
  }
  SECTION("the process ends") {
    client.reset();
    CHECK(result_of(std::move(told)).error().why == "this process ends");
  }
}

TEST_CASE("A server ends in the middle of what it gives") {
  auto server = serve(std::make_shared<ObjectBytes>(pattern(64 * kOneMiB)));
  const auto at = server->address();
  const auto socket = dial(parse_endpoint(at.address).value(), 10s).value();
  TransferDeadline deadline(0, MonotonicClock().now(), {60s, 60s});
  REQUIRE(prove_reader(socket.get(), KeyView(at.key.data(), 32), deadline).ok());
  REQUIRE(ask_for(socket.get(), {kGiven.number, {0, 64 * kOneMiB}}, deadline).ok());
  server.reset();  // its connection waits for room in the socket
  const Memory memory(64 * kOneMiB);
  const auto taken = take(socket.get(), {0, 64 * kOneMiB}, memory.fd.get(), deadline);
  CHECK(taken.error().code == ErrorCode::kUnavailable);
}

TEST_CASE("Where nobody listens, and at an address of no host, is an error") {
  DirectClient client;
  const Memory memory(2 * kOneMiB);
  std::string gone;
  { gone = serve(std::make_shared<ObjectBytes>(pattern(1)))->address().address; }
  CHECK(result_of(fetch(client, {gone, wire::Bytes(32)}, memory)).error().code == ErrorCode::kUnavailable);
  CHECK(result_of(fetch(client, {"a.name:1", wire::Bytes(32)}, memory)).error().code ==
        ErrorCode::kBadConfig);
  CHECK_FALSE(DirectServer::start("a.name", {}).ok());
}
