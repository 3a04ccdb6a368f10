#include "runtime/link/zmq/zmq_transport.hpp"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "runtime/core/random.hpp"
#include "runtime/link/zmq/chunk.hpp"
#include "runtime/link/zmq/zmq_socket.hpp"
#include "tests/runtime/link/link_fixture.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

/// A connected TCP socket that knows nothing of ZeroMQ.
UniqueFd dial(const Endpoint& address) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  ::inet_pton(AF_INET, address.host.c_str(), &to.sin_addr);
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  const timeval limit{20, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

/// Reads until the other side closes; false when it does not.
bool is_closed_by_peer(const UniqueFd& fd) {
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (got == 0) return true;
    if (got < 0) return errno == ECONNRESET;
  }
}

void check_good_peer(Head& head, Node& node, const std::string& name) {
  static int counter = 0;
  const std::string text = "still here " + std::to_string(++counter);
  REQUIRE(node.send(text));
  REQUIRE(head.record.wait_for(name + ": " + text));
  REQUIRE(head.server->send(name, bytes(text)));
  REQUIRE(node.record.wait_for(text));
  CHECK(node.record.count("lost") == 0);
}

}  // namespace

TEST_CASE("a node with the right keys talks to the head, and the head knows who it is") {
  Head head;
  Node one(head, "one");
  Node two(head, "two");
  REQUIRE(one.send("hello from one"));
  REQUIRE(two.send("hello from two"));
  CHECK(head.record.wait_for("one: hello from one"));
  CHECK(head.record.wait_for("two: hello from two"));
  CHECK(head.server->send("two", bytes("for two")));
  CHECK(two.record.wait_for("for two"));
  CHECK(one.record.count("for two") == 0);
  CHECK_FALSE(head.server->send("three", bytes("nobody")));
  CHECK(one.client->state() == LinkState::kConnected);
}

TEST_CASE("messages arrive in order, whole and once, empty and large ones too") {
  Head head;
  Node node(head, "node");
  const std::vector<std::size_t> sizes = {0,
                                          1,
                                          kMaxChunkPayloadBytes - 1,
                                          kMaxChunkPayloadBytes,
                                          kMaxChunkPayloadBytes + 1,
                                          3 * kMaxChunkPayloadBytes,
                                          kMaxMessageBytes};
  std::vector<std::string> expected;
  for (const std::size_t size : sizes) {
    const std::vector<std::byte> message(size, std::byte{'m'});
    REQUIRE(node.client->send(message));
    REQUIRE(head.server->send("node", message));
    expected.push_back(describe(message));
  }
  REQUIRE(node.send("end"));
  REQUIRE(head.server->send("node", bytes("end")));
  expected.push_back("end");
  REQUIRE(head.record.wait_for("node: end"));
  REQUIRE(node.record.wait_for("end"));
  auto at_node = node.record.lines();
  at_node.erase(at_node.begin());  // "connected"
  CHECK(at_node == expected);
  auto at_head = head.record.lines();
  at_head.erase(at_head.begin());
  for (auto& line : expected) line.insert(0, "node: ");
  CHECK(at_head == expected);
}

TEST_CASE("what is too long or too much is refused at once") {
  Head head;
  Node node(head, "node");
  const std::vector<std::byte> too_long(kMaxMessageBytes + 1);
  CHECK_FALSE(node.client->send(too_long));
  CHECK_FALSE(head.server->send("node", too_long));
}

// A stopped peer's queue must fill up and then refuse, and never block the caller or take more memory.
TEST_CASE("a peer that reads nothing makes send return false") {
  Head head;
  const CurveKeyPair keys = CurveKeyPair::generate();
  head.authorizer->allow(keys.public_key(), "silent");
  zmq::context_t context;
  zmq::socket_t silent(context, zmq::socket_type::dealer);
  zmq_link::set_common_options(silent, keys);
  silent.set(zmq::sockopt::rcvhwm, 1);
  silent.set(zmq::sockopt::linger, 0);
  const auto& server_key = head.keys.public_key().bytes;
  silent.set(zmq::sockopt::curve_serverkey, zmq::const_buffer(server_key.data(), server_key.size()));
  silent.connect(zmq_link::to_zmq_address(head.address()));
  REQUIRE(zmq_link::send_chunk(silent, nullptr, hello_chunk()) == 0);
  REQUIRE(head.record.wait_for("silent connected"));

  const std::vector<std::byte> message(std::size_t{8} << 20);
  std::size_t taken = 0;
  while (head.server->send("silent", message) && taken < 1000) ++taken;
  CHECK(taken >= kMaxQueuedBytes / message.size());
  CHECK(taken < 1000);
  Node good(head, "good");
  check_good_peer(head, good, "good");
}

TEST_CASE("a wrong server key, an unknown key and a port where nobody listens are told apart") {
  Head head;
  Node good(head, "good");
  Node bad;
  SECTION("the server's key is another one") {
    head.authorizer->allow(bad.keys.public_key(), "bad");
    const auto other = CurveKeyPair::generate().public_key();
    const auto refused = bad.connect(head, other, head.address(), std::chrono::seconds(20));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::kRefused);
    CHECK(refused.error().message().find("its key is another one") != std::string::npos);
  }
  SECTION("the head does not know the node's key") {
    const auto refused = bad.connect(head);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::kRefused);
    CHECK(refused.error().message().find("does not accept our key") != std::string::npos);
  }
  SECTION("the token's key has run out") {
    head.authorizer->allow(bad.keys.public_key(), "bad", head.clock.now());
    CHECK(bad.connect(head).error().code == ErrorCode::kRefused);
  }
  SECTION("nobody listens") {
    const UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // bound, not listening
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(taken.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    const auto refused = bad.connect(head, head.keys.public_key(), {"127.0.0.1", ntohs(at.sin_port)},
                                     std::chrono::milliseconds(300));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::kTimeout);
    CHECK(refused.error().message().find("nobody answers") != std::string::npos);
  }
  CHECK(head.record.count("bad connected") == 0);
  check_good_peer(head, good, "good");
}

TEST_CASE("a client without CURVE gets no frame through") {
  Head head;
  Node good(head, "good");
  zmq::context_t context;
  zmq::socket_t plain(context, zmq::socket_type::dealer);
  plain.set(zmq::sockopt::linger, 0);
  SECTION("NULL") {}
  SECTION("PLAIN") {
    plain.set(zmq::sockopt::plain_username, "admin");
    plain.set(zmq::sockopt::plain_password, "admin");
  }
  zmq_link::Monitor monitor(context, plain, ZMQ_EVENT_ALL);
  plain.connect(zmq_link::to_zmq_address(head.address()));
  zmq_link::send_chunk(plain, nullptr, hello_chunk());
  zmq_link::send_chunk(plain, nullptr, Chunk{kChunkLast, 0, 1, {}});
  bool refused = false;
  while (!refused) {
    zmq_pollitem_t item{monitor.handle(), 0, ZMQ_POLLIN, 0};
    REQUIRE(zmq_poll(&item, 1, 20000) == 1);
    monitor.drain([&](const zmq_link::Monitor::Event& event) {
      REQUIRE(event.kind != ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
      refused |= event.kind == ZMQ_EVENT_DISCONNECTED;
    });
  }
  check_good_peer(head, good, "good");
  for (const auto& line : head.record.lines()) CHECK(line.starts_with("good"));
}

TEST_CASE("noise, HTTP, TLS and half a greeting on the port disturb nobody") {
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  Head head;
  Node good(head, "good");
  std::vector<UniqueFd> strangers;
  const auto say = [&](std::span<const std::byte> text) {
    strangers.push_back(dial(head.address()));
    ::send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
  };
  say(bytes("GET / HTTP/1.1\r\nHost: head\r\n\r\n"));
  say(bytes("\x16\x03\x01\x02\x05\x01\x01\xfc\x03\x03 and so on"));
  say({});                                                // says nothing at all
  say(bytes(std::string_view("\xff\0\0\0\0\0\0\0", 8)));  // the first half of a ZMTP greeting
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> noise(1 + random.below(5000));
    random.fill(noise);
    if (i % 2 == 0) noise[0] = std::byte{0xff};  // looks like ZMTP a little longer
    say(noise);
  }
  check_good_peer(head, good, "good");
  // The handshake's deadline of 5 s ends every one of them.
  for (const UniqueFd& stranger : strangers) CHECK(is_closed_by_peer(stranger));
  check_good_peer(head, good, "good");
  for (const auto& line : head.record.lines()) CHECK(line.starts_with("good"));
}

// A peer that has a key and still breaks the rules: it loses its connection or its message and nothing else.
TEST_CASE("a known peer that breaks the protocol disturbs nobody") {
  Head head;
  Node good(head, "good");
  const CurveKeyPair keys = CurveKeyPair::generate();
  head.authorizer->allow(keys.public_key(), "rude");
  zmq::context_t context;
  zmq::socket_t rude(context, zmq::socket_type::dealer);
  zmq_link::set_common_options(rude, keys);
  const auto& server_key = head.keys.public_key().bytes;
  rude.set(zmq::sockopt::curve_serverkey, zmq::const_buffer(server_key.data(), server_key.size()));
  rude.set(zmq::sockopt::routing_id, "good");  // claims another's name
  zmq_link::Monitor monitor(context, rude, ZMQ_EVENT_DISCONNECTED);
  rude.connect(zmq_link::to_zmq_address(head.address()));
  REQUIRE(zmq_link::send_chunk(rude, nullptr, hello_chunk()) == 0);
  REQUIRE(head.record.wait_for("rude connected"));

  SECTION("frames that are no chunks, then a good one") {
    rude.send(zmq::str_buffer(""));
    rude.send(zmq::str_buffer("TL"));
    rude.send(zmq::str_buffer("XXXXXXXXXXXXXXXXXXXXXXXXXX"));
    rude.send(zmq::str_buffer("two"), zmq::send_flags::sndmore);
    rude.send(zmq::str_buffer("parts"));
    REQUIRE(zmq_link::send_chunk(rude, nullptr, Chunk{kChunkLast, 7, 1, {}}) == 0);  // no beginning
    const auto text = bytes("proper");
    REQUIRE(zmq_link::send_chunk(rude, nullptr, Chunk{kChunkLast, 0, 2, text}) == 0);
    CHECK(head.record.wait_for("rude: proper"));
    CHECK(head.record.count("rude gone") == 0);
  }
  SECTION("a frame above 1 MiB") {
    rude.send(zmq::message_t(kMaxFrameBytes + 1), zmq::send_flags::none);
    zmq_pollitem_t item{monitor.handle(), 0, ZMQ_POLLIN, 0};
    CHECK(zmq_poll(&item, 1, 20000) == 1);
    CHECK(head.record.wait_for("rude gone"));
  }
  SECTION("its key is revoked while it talks") {
    REQUIRE(head.authorizer->revoke(keys.public_key()));
    zmq_link::send_chunk(rude, nullptr, Chunk{kChunkLast, 0, 1, bytes("too late")});
    CHECK(head.record.wait_for("rude gone"));
    CHECK(head.record.count("rude: too late") == 0);
    CHECK_FALSE(head.server->send("rude", bytes("secret")));
  }
  check_good_peer(head, good, "good");
  CHECK(head.record.count("good connected") == 1);
}

TEST_CASE("a second head on the port gets an error that names it and says what to do") {
  Head head;
  const auto second = head.transport->serve({head.address(), head.keys, head.authorizer}, {});
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::kIo);
  CHECK(second.error().message().find(to_string(head.address())) != std::string::npos);
  CHECK(second.error().message().find("choose another port") != std::string::npos);
  const auto elsewhere = head.transport->serve({{"192.0.2.1", 0}, head.keys, head.authorizer}, {});
  REQUIRE_FALSE(elsewhere.ok());
  CHECK(elsewhere.error().message().find("does not have that address") != std::string::npos);
  const auto name = head.transport->serve({{"example.org", 0}, head.keys, head.authorizer}, {});
  CHECK(name.error().code == ErrorCode::kBadConfig);
}

TEST_CASE("a node outlives its head and finds the next one") {
  Head head;
  Node node(head, "node");
  const Endpoint address = head.address();
  head.server.reset();
  REQUIRE(node.record.wait_for("lost"));
  CHECK_FALSE(node.send("into nothing"));
  head.start(address);
  REQUIRE(head.record.wait_for("node connected", 2));
  REQUIRE(node.record.wait_for("connected", 2));
  REQUIRE(node.send("again"));
  CHECK(head.record.wait_for("node: again"));
  CHECK(head.record.count("node: into nothing") == 0);
}

TEST_CASE("the last words of a link are heard") {
  Head head;
  Node node(head, "node");
  SECTION("of a node") {
    for (int i = 0; i < 100; ++i) REQUIRE(node.send("word " + std::to_string(i)));
    node.client.reset();
    CHECK(head.record.wait_for("node: word 99"));
    CHECK(head.record.wait_for("node gone"));
  }
  SECTION("of the head") {
    for (int i = 0; i < 100; ++i) REQUIRE(head.server->send("node", bytes("word " + std::to_string(i))));
    head.server.reset();
    CHECK(node.record.wait_for("word 99"));
    int heard = 0;
    for (int i = 0; i < 100; ++i) heard += node.record.count("word " + std::to_string(i)) > 0;
    CHECK(heard == 100);
    CHECK(node.record.wait_for("lost"));
  }
}

// A node that was stopped and replaced must not speak for the new one: the newest connection of a name
// counts.
TEST_CASE("a newer connection of the same name replaces the older") {
  Head head;
  Node older(head, "node");
  Node newer;
  newer.keys = older.keys;
  newer.connect(head).value();
  REQUIRE(head.record.wait_for("node connected", 2));
  REQUIRE(older.send("from the past"));
  REQUIRE(newer.send("from now"));
  REQUIRE(head.record.wait_for("node: from now"));
  REQUIRE(head.server->send("node", bytes("for you")));
  CHECK(newer.record.wait_for("for you"));
  CHECK(older.record.count("for you") == 0);
  CHECK(head.record.count("node: from the past") == 0);
  older.client.reset();
  check_good_peer(head, newer, "node");
  CHECK(head.record.count("node gone") == 0);
}

TEST_CASE("a node that is killed is reported gone") {
  Head head;
  const CurveKeyPair keys = CurveKeyPair::generate();
  head.authorizer->allow(keys.public_key(), "mortal");
  const pid_t child = ::fork();
  if (child == 0) {
    // The child has none of the parent's threads: it makes a link of its own and waits to be killed.
    const MonotonicClock clock;
    const auto transport = make_zmq_transport(clock);
    auto link = transport->connect({head.address(), head.keys.public_key(), keys}, {});
    for (;;) ::pause();
  }
  CHECK(head.record.wait_for("mortal connected"));
  ::kill(child, SIGKILL);
  CHECK(head.record.wait_for("mortal gone"));
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
}

TEST_CASE("a hundred reconnects leak no descriptor") {
  Head head;
  Node keeper(head, "keeper");
  const auto round_trip = [&](int i) {
    const Node node(head, "node");
    if (i % 10 == 0) {
      Node stranger;
      CHECK_FALSE(stranger.connect(head).ok());
    }
  };
  for (int i = 0; i < 3; ++i) round_trip(i);
  REQUIRE(head.record.wait_for("node gone", 3));
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 100; ++i) round_trip(i);
  REQUIRE(head.record.wait_for("node gone", 103));
  // The server's side of a refused connection closes on libzmq's own time.
  std::size_t after = open_descriptors();
  for (int turn = 0; after > before && turn < 1000; ++turn) {
    check_good_peer(head, keeper, "keeper");
    after = open_descriptors();
  }
  CHECK(after <= before);
}
