/// The node's shell with real workers and a real driver's link; only the head is played by the test.
///
/// A worker is this very program, started again with TROUPE_ROLE set. What it does stands in its label.

#include "runtime/node/node.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>

#include "runtime/link/socket/first_exchange.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

constexpr int kChattyLines = 800'000;

[[noreturn]] void be_a_worker() {
  ::unsetenv(kRoleVariable);
  SocketLink link{UniqueFd(kLinkFd)};
  auto first = receive_control(link, 60s);
  const auto* config = first ? std::get_if<wire::Configure>(&first->message) : nullptr;
  if (config == nullptr || first->fds.size() != 1 || !hold_lock(std::move(first->fds.front()))) ::_exit(90);
  if (config->label == "fails") {
    std::fputs("out of ideas\n\n", stderr);
    ::_exit(3);
  }
  if (config->label == "empty line") {
    std::fputs("\n", stderr);
    ::_exit(4);
  }
  const ProcessAddress me{config->node, config->process};
  std::vector<UniqueFd> bell;
  bell.emplace_back(::memfd_create("bell", MFD_CLOEXEC));
  const auto say = [&](const wire::Control& message, std::vector<UniqueFd> fds = {}) {
    wire::FrameHeader header;
    header.from = me;
    header.job = config->job;
    const auto body = wire::encode_control(message, header);
    link.send(header, body, std::move(fds));
  };
  say(wire::Hello{}, std::move(bell));
  while (true) {
    auto message = receive_control(link, 60s);
    if (!message || std::holds_alternative<wire::Leave>(message->message)) ::_exit(0);
    if (const auto* start = std::get_if<wire::StartActorHere>(&message->message)) {
      say(wire::ActorUp{start->actor});
      if (config->label != "chatty") continue;
      for (int i = 0; i < kChattyLines; ++i) std::printf("line %d of many, as long as lines are\n", i);
      std::fflush(stdout);
    }
  }
}

const bool no_worker = [] {
  const char* role = std::getenv(kRoleVariable);
  if (role != nullptr && std::string(role) == "worker") be_a_worker();
  return true;
}();

/// A transport whose only peer is the head, played by the test.
struct PlayedHead : Transport {
  struct Server : LinkServer {
    Endpoint address() const override { return {"127.0.0.1", 1}; }
    Sent send(const PeerName&, wire::Bytes&&) override { return Sent::kClosed; }
  };
  struct Client : LinkClient {
    explicit Client(PlayedHead& to) : head(to) {}
    LinkState state() const override { return LinkState::kConnected; }
    Sent send(wire::Bytes&& frame) override {
      const auto header = wire::decode_header(frame);
      auto message = wire::decode_control(*header, wire::ByteView(frame).subspan(wire::kHeaderBytes));
      head.hear(std::get<wire::ToHead>(*message).event);
      return Sent::kQueued;
    }
    PlayedHead& head;
  };
  Result<std::unique_ptr<LinkServer>> serve(ServeOptions, ServerHandlers with) override {
    from_peers = std::move(with);
    return std::unique_ptr<LinkServer>(std::make_unique<Server>());
  }
  Result<std::unique_ptr<LinkClient>> connect(ConnectOptions, ClientHandlers with) override {
    handlers = std::move(with);
    handlers.on_state(LinkState::kConnected, "");
    return std::unique_ptr<LinkClient>(std::make_unique<Client>(*this));
  }
  void hear(const cluster::ClusterEvent& event) {
    if (std::holds_alternative<cluster::NodeJoined>(event)) say(cluster::NodeAccepted{{0xa}});
    if (const auto* job = std::get_if<cluster::JobRegistered>(&event))
      say(cluster::JobAnswered{job->driver, job->request, {7}, 1, ""});
    if (!std::holds_alternative<cluster::Heartbeat>(event)) heard.push_back(event);
  }
  void say(const cluster::ClusterAction& action) {
    handlers.on_message(wire::control_frame(wire::FromHead{action}));
  }
  template <class T>
  const T* find() const {
    for (const auto& event : heard) {
      if (const auto* found = std::get_if<T>(&event)) return found;
    }
    return nullptr;
  }
  ClientHandlers handlers;
  ServerHandlers from_peers;
  std::vector<cluster::ClusterEvent> heard;
};

struct World {
  PlayedHead head;
  EventLoop loop;
  SocketLink parent;  ///< the launcher's and driver's end
  std::unique_ptr<Node> node;
  ProcessAddress driver;
  bool done = false;

  explicit World(bool hosts_driver = true) {
    auto pair = SocketLink::pair();
    parent = std::move(pair->first);
    wire::NodeConfig config;
    config.id = {0xa};
    config.name = "a";
    config.address = "127.0.0.1:0";
    config.head = "127.0.0.1:2";
    config.hosts_driver = hosts_driver;
    const auto keys = CurveKeyPair::generate();
    node = std::make_unique<Node>(loop, head,
                                  Node::Options{config, keys, keys.public_key(), std::move(pair->second)});
    REQUIRE(node->start([this](const Result<void>& joined) {
      REQUIRE(joined.ok());
      node->serve_parent();
    }));
    if (!hosts_driver) return;
    std::optional<wire::Configure> mine;
    REQUIRE(until([&] {
      mine = next<wire::Configure>();
      return mine.has_value();
    }));
    driver = {{0xa}, mine->process};
    std::vector<UniqueFd> bell;
    bell.emplace_back(::memfd_create("bell", MFD_CLOEXEC));
    ask(wire::Hello{}, std::move(bell));
    ask(wire::JobAsk{1, "job"});
    REQUIRE(until([&] { return next<wire::Answer>().has_value(); }));
  }
  void ask(const wire::Control& message, std::vector<UniqueFd> with = {}) {
    wire::FrameHeader header;
    header.from = driver;
    const auto body = wire::encode_control(message, header);
    REQUIRE(parent.send(header, body, std::move(with)) == Sent::kQueued);
  }
  /// The next control message of that type that came, if any; others before it are lost.
  template <class T>
  std::optional<T> next() {
    Message message;
    while (parent.receive(message) == SocketLink::Got::kMessage) {
      auto control = wire::decode_control(message.header, message.body);
      fds = std::move(message.fds);
      if (auto* found = std::get_if<T>(&*control)) return std::move(*found);
    }
    return std::nullopt;
  }
  std::vector<UniqueFd> fds;  ///< that came with the last message

  /// Runs the loop until `is_so`, for a minute at most.
  bool until(const std::function<bool()>& is_so) {
    const Instant deadline = MonotonicClock().now() + 60s;
    bool so = false;
    while (!(so = is_so()) && MonotonicClock().now() < deadline && !done) {
      loop.after(1ms, [this] { loop.pause(); });
      done = loop.run();
    }
    return so;
  }
  void start(ActorId actor, const std::string& label) {
    const auto bytes = wire::encode(wire::ActorPayload{1, label, driver, "", {}});
    const std::string payload(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    head.say(cluster::StartActor{{0xa}, actor, {{7}, "T", "", payload, {0, true, {}}}, ""});
  }
};

}  // namespace

TEST_CASE("A real worker: it starts its actor, is killed, and the head hears how it ended") {
  World world;
  world.start({1}, "good");
  REQUIRE(world.until([&] { return world.head.find<cluster::ActorStarted>() != nullptr; }));
  world.head.say(cluster::KillActor{{0xa}, {1}, "enough"});
  REQUIRE(world.until([&] { return world.head.find<cluster::ActorDown>() != nullptr; }));
  CHECK(world.head.find<cluster::ActorDown>()->reason ==
        "enough (its process: killed by signal 9 (SIGKILL))");
}

TEST_CASE("A worker that fails: its actor fails with the last line that it wrote") {
  World world;
  world.start({1}, "fails");
  REQUIRE(world.until([&] { return world.head.find<cluster::ActorFailed>() != nullptr; }));
  CHECK(world.head.find<cluster::ActorFailed>()->error.why ==
        "exit code 3, last line of its output: out of ideas");
}

TEST_CASE("A worker that writes an empty line and dies tells nothing but its exit code") {
  // Story: the reason carried 300 bytes of the node's heap to driver and peers.
  World world;
  world.start({1}, "empty line");
  REQUIRE(world.until([&] { return world.head.find<cluster::ActorFailed>() != nullptr; }));
  CHECK(world.head.find<cluster::ActorFailed>()->error.why == "exit code 4");
}

TEST_CASE("A region is sparse: the node touches no page of it; and one of 10 TB is refused") {
  World world;
  world.ask(wire::RegionAsk{2, "data", std::uint64_t{1} << 30, "driver", true});
  std::optional<wire::Answer> answer;
  REQUIRE(world.until([&] { return (answer = world.next<wire::Answer>()).has_value(); }));
  REQUIRE(answer->ok);
  REQUIRE(world.fds.size() == 1);
  struct stat info {};
  REQUIRE(::fstat(world.fds.front().get(), &info) == 0);
  CHECK(info.st_size == 1 << 30);
  CHECK(info.st_blocks == 0);
  world.ask(wire::RegionAsk{3, "huge", std::uint64_t{10} << 40, "driver", true});
  REQUIRE(world.until([&] { return (answer = world.next<wire::Answer>()).has_value(); }));
  CHECK(answer->error.code == ErrorCode::kLimit);
}

TEST_CASE("A driver's workers wait until it has written what they said, and no line is lost") {
  World world;
  world.start({1}, "chatty");  // some 30 MB
  REQUIRE(world.until([&] { return world.head.find<cluster::ActorStarted>() != nullptr; }));
  std::size_t lines = 0;
  bool in_order = true;
  REQUIRE(world.until([&] {
    while (auto output = world.next<wire::Output>()) {
      for (std::size_t at = 0; at < output->text.size();) {
        const auto end = output->text.find('\n', at);
        in_order = in_order && output->text.compare(at, 5 + std::to_string(lines).size() + 1,
                                                    "line " + std::to_string(lines) + " ") == 0;
        ++lines;
        at = end + 1;
      }
      world.ask(wire::OutputTaken{{}, output->node, output->text.size()});
    }
    return lines >= kChattyLines;
  }));
  CHECK(lines == kChattyLines);
  CHECK(in_order);
}

TEST_CASE(
    "kill -9 of a driver with thousands of spawns under way: the node ends its workers and leaves at once") {
  World world;
  world.start({1}, "good");
  REQUIRE(world.until([&] { return world.head.find<cluster::ActorStarted>() != nullptr; }));
  for (std::uint64_t i = 10; i < 20'000; ++i) {
    wire::FrameHeader header;
    header.from = world.driver;
    const auto body = wire::encode_control(wire::SpawnAsk{i, {}}, header);
    if (world.parent.send(header, body) != Sent::kQueued) break;
  }
  world.parent = SocketLink();
  world.until([] { return false; });
  CHECK(world.done);
  CHECK(world.head.find<cluster::NodeLeft>() != nullptr);
  REQUIRE(world.head.find<cluster::JobEnded>() != nullptr);
  CHECK(world.head.find<cluster::JobEnded>()->job == JobId{7});
}

TEST_CASE(
    "What other nodes send is taken while there is room for it, and a node that looks at it makes room") {
  World world;
  const auto& peers = world.head.from_peers;
  wire::FrameHeader header;  // an answer for a process that is gone
  header.kind = wire::FrameKind::kReply;
  header.from = {{0xb}, {5}};
  header.to = {{0xa}, {999}};
  const wire::Bytes frame = wire::whole_frame(header, wire::Bytes(std::size_t{1} << 20));
  int taken = 0;
  for (; taken < 1000 && (!peers.may_receive || peers.may_receive()); ++taken) peers.on_message("b", frame);
  CHECK(taken <= 64);
  REQUIRE(world.until([&] { return peers.may_receive(); }));
}

TEST_CASE("A node without a driver leaves when its launcher is gone") {
  World world(false);
  world.parent = SocketLink();
  world.until([] { return false; });
  CHECK(world.done);
  REQUIRE(world.head.find<cluster::NodeLeaving>() != nullptr);
  CHECK(world.head.find<cluster::NodeLeaving>()->reason == "its launcher is gone");
  CHECK(world.head.find<cluster::NodeLeft>() != nullptr);
}

// After `troupe stop` the log said that the launcher was gone.
TEST_CASE("A node that its launcher tells to leave says so") {
  World world(false);
  REQUIRE(send_control(world.parent, {}, wire::Leave{"it was told to end"}));
  world.parent = SocketLink();
  world.until([] { return false; });
  REQUIRE(world.head.find<cluster::NodeLeaving>() != nullptr);
  CHECK(world.head.find<cluster::NodeLeaving>()->reason == "it was told to end");
}
