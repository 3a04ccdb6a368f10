#include <arpa/inet.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <thread>

#include "runtime/core/random.hpp"
#include "runtime/link/fragment.hpp"
#include "runtime/link/zmq/zmq_connection.hpp"
#include "runtime/link/zmq/zmq_loop.hpp"
#include "runtime/link/zmq/zmq_socket.hpp"
#include "runtime/link/zmq/zmq_strangers.hpp"
#include "runtime/link/zmq/zmq_transport.hpp"
#include "tests/runtime/link/link_fixture.hpp"
#include "tests/runtime/link/messages.hpp"

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

/// A TCP port that knows nothing of ZeroMQ.
struct Listener {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port = 0;
  Listener() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::listen(socket.get(), 8) == 0);
    REQUIRE(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    port = ntohs(at.sin_port);
  }
  UniqueFd accept() const { return UniqueFd(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
};

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
  REQUIRE(head.server->send(name, frame(text)) == Sent::kQueued);
  REQUIRE(node.record.wait_for(text));
  CHECK(node.record.count("lost") == 0);
}

/// Is over after its first turn.
class Brief : public zmq_link::LoopMember {
 public:
  void wait_for_turn() const { turns.wait(0); }
  std::atomic<int> turns{0};

 protected:
  Instant turn(Instant) override {
    ++turns;
    turns.notify_all();
    return zmq_link::kNever;
  }
  bool is_over() const override { return true; }
};

}  // namespace

TEST_CASE("a member that is over before it leaves gets no turn after it has left") {
  // Story: a link that ended in its loop's turn while its owner was about to leave was called when it was
  // gone: a head whose driver was killed crashed now and then, and left its folder behind.
  const MonotonicClock clock;
  const auto loop = zmq_link::ZmqLoop::start(clock).value();
  Brief first, second, third;
  loop->add(first);
  first.wait_for_turn();
  loop->add(second);
  second.wait_for_turn();  // so the loop has let go of the first
  loop->leave(first);
  loop->add(third);
  third.wait_for_turn();  // so the loop has looked at what leave() may have left behind
  CHECK(first.turns == 1);
  loop->leave(second);
  loop->leave(third);
}

TEST_CASE("a monitor that ends while its socket has something to tell blocks nobody") {
  // Story: the reader of a socket's events was closed first, the socket after it. An event in between blocked
  // ZeroMQ's one thread for good: a node lived on, and neither the head nor its peers ever heard of it again.
  auto context = std::make_unique<zmq::context_t>();
  const Listener listener;
  bool goes_on = true;
  for (int i = 0; i < 20 && goes_on; ++i) {
    zmq::socket_t watched(*context, zmq::socket_type::dealer);
    watched.set(zmq::sockopt::linger, 0);
    watched.set(zmq::sockopt::reconnect_ivl, -1);
    auto monitor = std::make_unique<zmq_link::Monitor>(*context, watched, ZMQ_EVENT_ALL);
    watched.connect(zmq_link::to_zmq_address({"127.0.0.1", listener.port}));
    UniqueFd accepted = listener.accept();
    monitor.reset();
    accepted = UniqueFd();  // its end is an event

    zmq::socket_t one(*context, zmq::socket_type::pair), other(*context, zmq::socket_type::pair);
    one.set(zmq::sockopt::linger, 0);
    other.set(zmq::sockopt::linger, 0);
    other.set(zmq::sockopt::rcvtimeo, 20'000);
    other.bind("tcp://127.0.0.1:*");
    one.connect(other.get(zmq::sockopt::last_endpoint));
    one.send(zmq::str_buffer("still here"), zmq::send_flags::none);
    zmq::message_t message;
    goes_on = other.recv(message).has_value();
  }
  if (!goes_on) static_cast<void>(context.release());  // its end would wait for that thread
  CHECK(goes_on);
}

TEST_CASE("a server that is stopped refuses nobody: a handshake that it does not answer is tried again") {
  // Was: told as a refusal, of which five end a node with its workers.
  const Listener stopped;  // its kernel takes connections
  const MonotonicClock clock;
  const auto transport = make_zmq_transport(clock);
  std::promise<LinkState> first;
  std::atomic<bool> told{false};
  ClientHandlers handlers;
  handlers.on_message = [](const wire::Bytes&) {};
  handlers.on_room = [] {};
  handlers.on_state = [&](LinkState state, const std::string&) {
    if (!told.exchange(true)) first.set_value(state);
  };
  const auto client = transport->connect({{"127.0.0.1", stopped.port},
                                          CurveKeyPair::generate().public_key(),
                                          CurveKeyPair::generate(),
                                          Duration::zero()},
                                         std::move(handlers));
  auto state = first.get_future();
  REQUIRE(state.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  CHECK(state.get() == LinkState::kConnecting);
}

TEST_CASE("a node with the right keys talks to the head, and the head knows who it is") {
  Head head;
  Node one(head, "one");
  Node two(head, "two");
  REQUIRE(one.send("hello from one"));
  REQUIRE(two.send("hello from two"));
  CHECK(head.record.wait_for("one: hello from one"));
  CHECK(head.record.wait_for("two: hello from two"));
  CHECK(head.server->send("two", frame("for two")) == Sent::kQueued);
  CHECK(two.record.wait_for("for two"));
  CHECK(one.record.count("for two") == 0);
  CHECK(head.server->send("three", frame("nobody")) == Sent::kClosed);
  CHECK(one.client->state() == LinkState::kConnected);
}

TEST_CASE("messages arrive in order, whole and once, empty and large ones too") {
  Head head;
  Node node(head, "node");
  const std::size_t packet =
      zmq_link::kMaxPacketBytes - kPacketHeaderBytes - wire::kHeaderBytes;  // of body, in one
  const std::vector<std::size_t> sizes = {0,          1,          zmq_link::kBatchBytes, packet - 1, packet,
                                          packet + 1, 3 * packet, wire::kMaxBodyBytes};
  std::vector<std::string> expected;
  const auto say = [&](std::span<const std::byte> body) {
    wire::Bytes to_head = frame(body);
    wire::Bytes to_node = frame(body);
    // 64 MiB is more than may wait before others.
    while (node.client->send(std::move(to_head)) == Sent::kFull) std::this_thread::yield();
    while (head.server->send("node", std::move(to_node)) == Sent::kFull) std::this_thread::yield();
    expected.push_back(describe(frame(body)));
  };
  for (const std::size_t size : sizes) say(std::vector<std::byte>(size, std::byte{'m'}));
  say(bytes("end"));
  REQUIRE(head.record.wait_for("node: end"));
  REQUIRE(node.record.wait_for("end"));
  auto at_node = node.record.lines();
  std::erase_if(at_node, [](const auto& line) { return line == "connected" || line == "room"; });
  CHECK(at_node == expected);
  auto at_head = head.record.lines();
  std::erase_if(at_head,
                [](const auto& line) { return line == "node connected" || line == "node has room"; });
  for (auto& line : expected) line.insert(0, "node: ");
  CHECK(at_head == expected);
}

TEST_CASE("what is too long is refused at once, and the link lives on") {
  Head head;
  Node node(head, "node");
  const wire::Bytes too_long = frame(std::vector<std::byte>(wire::kMaxBodyBytes + 1));
  CHECK(node.client->send(wire::Bytes(too_long)) == Sent::kTooLarge);
  CHECK(head.server->send("node", wire::Bytes(too_long)) == Sent::kTooLarge);
  check_good_peer(head, node, "node");
}

namespace {

/// A DEALER of its own, without our client: what a peer with a key can do on the wire.
struct RawPeer {
  zmq::context_t context;
  zmq::socket_t socket{context, zmq::socket_type::dealer};
  CurveKeyPair keys = CurveKeyPair::generate();
  zmq_link::Monitor monitor{context, socket, ZMQ_EVENT_DISCONNECTED};

  RawPeer(Head& head, const std::string& name) {
    head.authorizer->allow(keys.public_key(), name);
    zmq_link::set_common_options(socket, keys);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::reconnect_ivl, -1);
    const auto& server_key = head.keys.public_key().bytes;
    socket.set(zmq::sockopt::curve_serverkey, zmq::const_buffer(server_key.data(), server_key.size()));
  }
  void connect(Head& head) { socket.connect(zmq_link::to_zmq_address(head.address())); }
  void say(wire::ByteView packet) {
    const wire::Bytes whole = zmq_link::frame_of(packet);
    REQUIRE(zmq_send(socket.handle(), whole.data(), whole.size(), 0) >= 0);
  }
  void say(std::uint32_t number, std::string_view text) {
    const wire::Bytes whole = frame(text);
    const Cutter cutter(number, whole, {}, zmq_link::kMaxPacketBytes);
    wire::Bytes packet(cutter.next().size());
    cutter.next().copy_to(packet.data());
    say(packet);
  }
  bool is_disconnected() {
    zmq_pollitem_t item{monitor.socket().handle(), 0, ZMQ_POLLIN, 0};
    return zmq_poll(&item, 1, 30000) == 1;
  }
};

}  // namespace

// A stopped peer's queue must fill up and then refuse, and never block the caller or take more memory. Later
// it reads on: all that was taken arrives, and the sender hears that there is room.
TEST_CASE("a peer that reads nothing makes send say full, and loses nothing") {
  Head head(std::size_t{16} << 20);
  RawPeer silent(head, "silent");
  silent.socket.set(zmq::sockopt::rcvhwm, 1);
  silent.connect(head);
  silent.say(hello_packet());
  REQUIRE(head.record.wait_for("silent connected"));

  std::uint64_t taken = 0;
  Sent answer = Sent::kQueued;
  // What ZeroMQ and TCP hold is not bounded by our queue: fill them too.
  for (int full = 0; full < 100 && taken < 1000; ++full) {
    while (taken < 1000 &&
           (answer = head.server->send("silent", numbered_frame(1, taken, 1 << 20))) == Sent::kQueued)
      ++taken;
    Node good(head, "good");
    check_good_peer(head, good, "good");
  }
  CHECK(answer == Sent::kFull);
  CHECK(taken >= 16);
  CHECK(taken < 200);
  CHECK(head.record.count("silent gone") == 0);

  Joiner joiner({Joiner::Takes::kBody, true, nullptr});
  for (std::uint64_t heard = 0; heard < taken;) {
    zmq::message_t message;
    zmq_pollitem_t item{silent.socket.handle(), 0, ZMQ_POLLIN, 0};
    REQUIRE(zmq_poll(&item, 1, 30000) == 1);
    REQUIRE(zmq_msg_recv(message.handle(), silent.socket.handle(), 0) >= 0);
    wire::ByteView left{message.data<std::byte>(), message.size()};
    for (wire::ByteView packet; zmq_link::next_packet(left, packet);) {
      const auto fed = joiner.feed(packet);
      REQUIRE(fed.ok());
      if (*fed != Joiner::Fed::kMessage) continue;
      CHECK(joiner.header().id == heard++);
      CHECK(body_belongs(joiner.header(), joiner.body()));
    }
  }
  CHECK(head.record.wait_for("silent has room"));
  CHECK(head.server->send("silent", frame("more")) == Sent::kQueued);
}

// What came for a node waited in its memory, however much that was.
TEST_CASE("a server that may not receive holds its peers back, and loses nothing") {
  Head head(std::size_t{16} << 20);
  Node node(head, "node-1");
  head.may_receive = false;
  constexpr std::uint64_t kMessages = 400;
  std::uint64_t taken = 0;
  const auto send = [&] {
    return node.client->send(numbered_frame(1, taken, 1 << 20)) == Sent::kQueued && ++taken != 0;
  };
  // As much as its queue, ZeroMQ and TCP hold: nothing goes for a while then.
  for (int idle = 0; idle < 200 && taken < kMessages; ++idle) {
    if (send()) idle = 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(taken < kMessages - 100);
  CHECK(head.record.count("node-1: 1048576 bytes") == 0);
  CHECK(head.record.count("node-1 gone") == 0);
  head.may_receive = true;
  while (taken < kMessages) {
    if (!send()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(head.record.wait_for("node-1: 1048576 bytes", kMessages));
  CHECK(head.record.count("node-1 gone") == 0);
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
  const wire::Bytes hello = zmq_link::frame_of(hello_packet());
  zmq_send(plain.handle(), hello.data(), hello.size(), ZMQ_DONTWAIT);
  bool refused = false;
  while (!refused) {
    zmq_pollitem_t item{monitor.socket().handle(), 0, ZMQ_POLLIN, 0};
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

// A peer that has a key and still breaks the rules: its session ends, both sides hear why, its connection is
// closed, and nobody else notices.
TEST_CASE("a known peer that breaks the protocol loses its session and disturbs nobody") {
  Head head;
  Node good(head, "good");
  RawPeer rude(head, "rude");
  rude.socket.set(zmq::sockopt::routing_id, "good");  // claims another's name
  rude.connect(head);
  const bool before_hello = GENERATE(false, true);
  if (!before_hello) {
    rude.say(hello_packet());
    REQUIRE(head.record.wait_for("rude connected"));
    rude.say(1, "proper");
    REQUIRE(head.record.wait_for("rude: proper"));
  }
  std::string why;
  SECTION("an empty frame") {
    rude.socket.send(zmq::str_buffer(""));
    if (!before_hello) return check_good_peer(head, good, "good");  // no packet, no harm
  }
  SECTION("noise") {
    rude.socket.send(zmq::str_buffer("XXXXXXXXXXXXXXXXXXXXXXXXXX"));
    why = "something came that is no packet";
  }
  SECTION("a frame in two parts") {
    rude.socket.send(zmq::str_buffer("two"), zmq::send_flags::sndmore);
    rude.socket.send(zmq::str_buffer("parts"));
    why = "something came that is no packet";
  }
  SECTION("a message is missing") {
    rude.say(7, "seven");
    why = "message 7 came after message 1";
  }
  SECTION("the same message again") {
    rude.say(1, "proper");
    why = "message 1 came after message 1";
  }
  SECTION("a second hello") {
    rude.say(hello_packet());
    rude.say(hello_packet());
    why = "a hello in the middle of the link";
  }
  SECTION("a frame above 1 MiB") {
    rude.socket.send(zmq::message_t(zmq_link::kMaxZmqFrameBytes + 1), zmq::send_flags::none);
    why = "the connection broke";
  }
  SECTION("another version") {
    PacketHeader hello = hello_packet();
    hello[2] = std::byte{77};
    rude.say(hello);
    why = "the peer's protocol version is 77, ours is";
  }
  SECTION("its key is revoked while it talks") {
    REQUIRE(head.authorizer->revoke(rude.keys.public_key()));
    rude.say(2, "too late");
    why = "its key is not valid";
  }
  CHECK(rude.is_disconnected());
  if (!before_hello) {
    CHECK(head.record.wait_for("rude gone"));
    CHECK(head.reasons.wait_for_part(why));
  }
  CHECK(head.record.count("rude: too late") == 0);
  CHECK(head.record.count("rude: seven") == 0);
  CHECK(head.server->send("rude", frame("secret")) == Sent::kClosed);
  check_good_peer(head, good, "good");
  CHECK(head.record.count("good connected") == 1);
}

// ZeroMQ buffers the parts of one message until the last has come, whatever its limits say; the server ends a
// session of which TCP received far more than ZeroMQ gave it. (libzmq's own clients send no part before the
// last, so that what is held here is how much came.)
TEST_CASE("the server knows how much TCP received on a connection of its own port") {
  Listener listener;
  const std::uint16_t port = listener.port;
  const UniqueFd out = dial({"127.0.0.1", port});
  const UniqueFd in = listener.accept();
  const std::vector<std::byte> sent(100'000);
  REQUIRE(::send(out.get(), sent.data(), sent.size(), 0) == 100'000);
  std::vector<std::byte> got(sent.size());
  REQUIRE(::recv(in.get(), got.data(), got.size(), MSG_WAITALL) == 100'000);
  CHECK(zmq_link::received_bytes(in.get(), port) == 100'000);
  // A number that was given out again is left alone: it is no connection to that port.
  CHECK(zmq_link::received_bytes(out.get(), port) == 0);
  zmq_link::close_connection(out.get(), port);
  CHECK(::send(out.get(), sent.data(), 1, MSG_NOSIGNAL) == 1);
  zmq_link::close_connection(in.get(), port);
  CHECK(is_closed_by_peer(out));
}

// The other direction: a server that loses a message. The client closes, says why, and has a new session at
// once.
TEST_CASE("a client whose server breaks the protocol ends the session and connects again") {
  // A ROUTER of its own, with CURVE and no ZAP handler, which lets everybody in.
  zmq::context_t context;
  zmq::socket_t router(context, zmq::socket_type::router);
  const CurveKeyPair server_keys = CurveKeyPair::generate();
  zmq_link::set_common_options(router, server_keys);
  router.set(zmq::sockopt::curve_server, true);
  router.set(zmq::sockopt::linger, 0);
  router.set(zmq::sockopt::rcvtimeo, 30000);
  router.bind("tcp://127.0.0.1:*");
  const auto at = parse_endpoint(router.get(zmq::sockopt::last_endpoint).substr(6)).value();
  Head head;  // for its transport
  Node node;
  node.connect(head, server_keys.public_key(), at, Duration::zero()).value();
  const auto hear = [&](std::string& id) {
    zmq::message_t routing_id;
    zmq::message_t message;
    REQUIRE(zmq_msg_recv(routing_id.handle(), router.handle(), 0) >= 0);
    REQUIRE(zmq_msg_recv(message.handle(), router.handle(), 0) >= 0);
    id = routing_id.to_string();
    return message.to_string();
  };
  std::string first;
  std::string second;
  const auto say = [&](const std::string& to, wire::ByteView packet) {
    wire::Bytes one = zmq_link::frame_of(packet);
    REQUIRE(zmq_link::send_frame(router, &to, one) == 0);
  };
  hear(first);  // hello
  say(first, hello_packet());
  REQUIRE(node.record.wait_for("connected"));
  const wire::Bytes whole = frame("two");
  const Cutter cutter(2, whole, {}, 65536);  // message 1 is lost
  wire::Bytes packet;
  zmq_link::append_packet(packet, cutter.next());
  REQUIRE(zmq_link::send_frame(router, &first, packet) == 0);
  CHECK(node.record.wait_for("lost"));
  CHECK(node.reasons.wait_for_part("message 2 came after message 0"));
  CHECK(node.record.count("two") == 0);
  CHECK(hear(first).find("message 2 came after message 0") != std::string::npos);  // its goodbye
  hear(second);
  say(second, hello_packet());
  CHECK(node.record.wait_for("connected", 2));
  CHECK(first != second);
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
    for (int i = 0; i < 100; ++i)
      REQUIRE(head.server->send("node", frame("word " + std::to_string(i))) == Sent::kQueued);
    head.server.reset();
    CHECK(node.record.wait_for("word 99"));
    int heard = 0;
    for (int i = 0; i < 100; ++i) heard += node.record.count("word " + std::to_string(i)) > 0;
    CHECK(heard == 100);
    CHECK(node.record.wait_for("lost"));
  }
}

// A node that was stopped and replaced must not speak for the new one: the newest connection of a name
// counts, and the older one is told, so that what it goes on sending does not vanish.
TEST_CASE("a newer connection of the same name replaces the older") {
  Head head;
  Node older(head, "node");
  Node newer;
  newer.keys = older.keys;
  newer.connect(head).value();
  REQUIRE(head.record.wait_for("node connected", 2));
  CHECK(older.reasons.wait_for_part("a newer connection with the same key took its place"));
  CHECK(older.record.wait_for("lost"));
  older.client.reset();
  CHECK(head.record.count("node gone") <= head.record.count("node connected"));
}

// The story: at a reconnect frames for the old session went out in the new one, ahead of what its peer had to
// know.
TEST_CASE("what was queued when a session ended is not delivered in the next") {
  Head head;
  const CurveKeyPair keys = CurveKeyPair::generate();
  head.authorizer->allow(keys.public_key(), "node");
  std::uint64_t queued = 0;
  {
    RawPeer silent(head, "node");
    silent.socket.set(zmq::sockopt::rcvhwm, 1);
    silent.connect(head);
    silent.say(hello_packet());
    REQUIRE(head.record.wait_for("node connected"));
    while (head.server->send("node", numbered_frame(1, queued, 1 << 20)) == Sent::kQueued) ++queued;
    REQUIRE(queued > 0);
  }
  REQUIRE(head.record.wait_for("node gone"));
  CHECK(head.server->send("node", frame("nobody hears this")) == Sent::kClosed);
  Node next;
  next.keys = keys;
  next.connect(head).value();
  REQUIRE(head.record.wait_for("node connected", 2));
  check_good_peer(head, next, "node");
  CHECK(next.record.lines().size() == 2);  // connected, and the one message of the check
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

// Anybody can open connections and say nothing. Their number is bounded: the oldest are closed.
TEST_CASE("connections that say nothing are bounded in number") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(before.rlim_max, 1024);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  const std::size_t most = zmq_link::Strangers::most();
  REQUIRE(most <= 256);
  SECTION("the oldest go, and none that has a session") {
    Listener listener;
    zmq_link::Strangers strangers(LogLevel::kDebug);
    std::vector<UniqueFd> out;
    std::vector<UniqueFd> in;
    for (std::size_t i = 0; i < most + 21; ++i) {
      out.push_back(dial({"127.0.0.1", listener.port}));
      in.push_back(listener.accept());
      strangers.accepted(in.back().get(), listener.port, Instant{0});
      if (i == 5) strangers.admitted(in.back().get());
    }
    const auto is_open = [&](std::size_t i) {
      char byte = 0;
      return ::recv(out[i].get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
    };
    for (std::size_t i = 0; i < 21; ++i) CHECK((i == 5 ? is_open(i) : is_closed_by_peer(out[i])));
    for (std::size_t i = 21; i < out.size(); ++i) CHECK(is_open(i));
  }
  SECTION("a good peer comes in between them") {
    Head head;
    std::vector<UniqueFd> strangers;
    for (std::size_t i = 0; i < most + 20; ++i) strangers.push_back(dial(head.address()));
    Node good(head, "good");
    for (std::size_t i = 0; i < 20; ++i) CHECK(is_closed_by_peer(strangers[i]));
    check_good_peer(head, good, "good");
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("a link is destroyed within a second, also when its peer reads nothing or nobody answers") {
  Head head;
  const Instant before = head.clock.now();
  SECTION("nobody answers") {
    Node node;
    CHECK_FALSE(
        node.connect(head, head.keys.public_key(), {"127.0.0.1", 1}, std::chrono::milliseconds(10)).ok());
  }
  SECTION("a server whose peer reads nothing") {
    RawPeer silent(head, "silent");
    silent.socket.set(zmq::sockopt::rcvhwm, 1);
    silent.connect(head);
    silent.say(hello_packet());
    REQUIRE(head.record.wait_for("silent connected"));
    while (head.server->send("silent", frame(std::vector<std::byte>(1 << 20))) == Sent::kQueued) continue;
    head.server.reset();
  }
  CHECK(head.clock.now() - before < std::chrono::seconds(20));  // a hang is minutes
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
