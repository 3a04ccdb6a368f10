// A process's link to a node that does not read for a while.
#include "runtime/host/node_link.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/host/may_wait.hpp"
#include "runtime/host/socket_channel.hpp"
#include "tests/runtime/host/fake_node.hpp"

using namespace troupe;
using test::eventually;

TEST_CASE("what a process tells its full node is late, and not lost") {
  // A thread that receives must not wait: its ActorEnded vanished, and a request whose turn had come never
  // got one.
  auto ends = SocketLink::pair().value();
  SocketLink node = std::move(ends.first);
  NodeLink process({{1}, {2}}, std::make_unique<SocketChannel>(std::move(ends.second)));
  auto bell = Doorbell::create().value();
  process.start(bell.take_fd(), {[](Message) {}, [] {}, nullptr, [](const std::string&) {}});
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kReply;
  header.to = {{3}, {4}};
  header.from = {{1}, {2}};
  const wire::Bytes body(1'000'000);
  int sent = 0;
  while (process.send(header, body) == Sent::kQueued) ++sent;
  REQUIRE(sent >= 32);
  constexpr std::uint64_t kTold = 100;
  std::uint64_t asked = 0;
  {
    const NoWaitScope receives;
    for (std::uint64_t i = 1; i <= kTold; ++i) process.tell(wire::ActorEnded{{i}, "it ended"});
    asked = process.ask([](std::uint64_t request) { return wire::NodesAsk{request}; }, nullptr).number;
  }
  int replies = 0;
  std::uint64_t told = 0;
  bool in_order = true, request_came = false;
  CHECK(eventually([&] {
    node.flush();
    for (Message message; node.receive(message) == SocketLink::Got::kMessage;) {
      if (message.header.kind == wire::FrameKind::kReply) ++replies;
      if (message.header.kind != wire::FrameKind::kControl) continue;
      const auto control = wire::decode_control(message.header, message.body).value();
      if (const auto* ended = std::get_if<wire::ActorEnded>(&control))
        in_order &= ended->actor.value == ++told;
      if (const auto* nodes = std::get_if<wire::NodesAsk>(&control)) request_came = nodes->request == asked;
    }
    return request_came;
  }));
  CHECK(replies == sent);
  CHECK(told == kTold);
  CHECK(in_order);
}

TEST_CASE("what a process told its node before its end still goes to a node that reads") {
  auto ends = SocketLink::pair().value();
  SocketLink node = std::move(ends.first);
  NodeLink process({{1}, {2}}, std::make_unique<SocketChannel>(std::move(ends.second)));
  auto bell = Doorbell::create().value();
  process.start(bell.take_fd(), {[](Message) {}, [] {}, nullptr, [](const std::string&) {}});
  constexpr int kTold = 1000;  // more than a link's queue and its socket hold
  for (std::uint64_t i = 1; i <= kTold; ++i) process.tell(wire::ActorEnded{{i}, std::string(50'000, 'x')});
  std::thread end([&] { process.stop(); });
  int told = 0;
  CHECK(eventually([&] {
    for (Message message; node.receive(message) == SocketLink::Got::kMessage;)
      told += message.header.id == wire::Control(wire::ActorEnded{}).index();
    return told == kTold;
  }));
  end.join();
}

// Was: its socket and its wake-up stayed open as long as the process lived.
TEST_CASE("a link whose node says what does not decode is closed, and keeps no descriptor") {
  const auto open_now = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  auto ends = SocketLink::pair().value();
  SocketLink node = std::move(ends.first);
  const auto before = open_now();  // with the process's end of it
  NodeLink process({{1}, {2}}, std::make_unique<SocketChannel>(std::move(ends.second)));
  std::atomic<bool> is_lost = false;
  auto bell = Doorbell::create().value();
  process.start(bell.take_fd(),
                {[](Message) {}, [] {}, nullptr, [&](const std::string&) { is_lost = true; }});
  wire::FrameHeader header;
  const wire::Bytes answer = wire::encode_control(wire::Answer{}, header);
  REQUIRE(node.send(header, wire::ByteView(answer).first(1)) == Sent::kQueued);
  CHECK(eventually([&] {
    node.flush();
    return is_lost.load();
  }));
  CHECK(eventually([&] {
    Message message;
    return node.receive(message) == SocketLink::Got::kClosed;
  }));
  process.stop();
  CHECK(open_now() == before - 1);
}

namespace {

/// Has no thread: the test is the node, and the time.
struct ByHand final : NodeChannel {
  void start(ProcessAddress, UniqueFd, Handlers its) override { handlers = std::move(its); }
  void stop() override {}
  Sent send(const wire::FrameHeader& header, wire::ByteView) override {
    pulses += header.kind == wire::FrameKind::kControl && header.id == wire::Control(wire::Pulse{}).index();
    return Sent::kQueued;
  }
  void say(const wire::Control& control) {
    Message message;
    message.body = wire::encode_control(control, message.header);
    handlers.on_message(std::move(message));
  }
  int pulses = 0;
  Handlers handlers;
};

struct Linked {
  Linked() {
    auto bell = Doorbell::create().value();
    link.start(bell.take_fd(), {[this](const Message&) { ++messages; }, [] {}, nullptr,
                                [this](const std::string& why) { lost = why; }});
  }
  ByHand* channel = new ByHand;
  NodeLink link{{{1}, {2}}, std::unique_ptr<NodeChannel>(channel)};
  int messages = 0;
  std::string lost;
};

}  // namespace

TEST_CASE("a driver's node that is silent for six pulses is lost") {
  // Was: a driver whose own node was stopped waited without an end; then, where it had answered no pulse
  // before.
  Linked here;
  here.link.watch();
  const auto asked = here.link.ask([](std::uint64_t request) { return wire::NodesAsk{request}; }, nullptr);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(here.channel->handlers.on_pulse());
    here.channel->say(wire::Pulse{});
  }
  CHECK(here.messages == 0);
  for (int i = 0; i < NodeLink::kPulses; ++i) REQUIRE(here.channel->handlers.on_pulse());
  CHECK(here.channel->pulses == 20 + NodeLink::kPulses);
  CHECK_FALSE(asked.state->ready());
  CHECK_FALSE(here.channel->handlers.on_pulse());
  CHECK(here.lost == "node 1: it has given no sign of life for 6 s");
  REQUIRE(asked.state->ready());
  CHECK(asked.state->outcome().error().code == ErrorCode::kUnavailable);
}

TEST_CASE("whatever a node says is a sign of life, and a worker's may be silent") {
  Linked here;
  for (int i = 0; i < 20; ++i) REQUIRE(here.channel->handlers.on_pulse());  // a worker's node
  here.link.watch();
  here.channel->say(wire::SpawnWaits{1, "why"});
  for (int i = 0; i < 4 * NodeLink::kPulses; ++i) {
    REQUIRE(here.channel->handlers.on_pulse());
    if (i % 4 == 0) here.channel->say(wire::SpawnWaits{1, "why"});
  }
  CHECK(here.lost.empty());
}
