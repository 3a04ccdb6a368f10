// A process's link to a node that does not read for a while.
#include "runtime/host/node_link.hpp"

#include <catch2/catch.hpp>

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
  process.start(test::copy_of(bell.fd()), {[](Message) {}, [] {}, [](const std::string&) {}});
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
