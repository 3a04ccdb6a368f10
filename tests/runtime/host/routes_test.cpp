// Routes over a channel to the node that is full when the test says so.
#include "runtime/host/routes.hpp"

#include <catch2/catch.hpp>

#include "runtime/host/may_wait.hpp"
#include "runtime/link/ring/ring_hub.hpp"

using namespace troupe;

namespace {

/// Has no thread: the test is the node.
struct FakeChannel final : NodeChannel {
  void start(ProcessAddress, UniqueFd, Handlers its) override { handlers = std::move(its); }
  void stop() override {}
  Sent send(const wire::FrameHeader& header, wire::ByteView) override {
    if (full) return Sent::kFull;
    sent.push_back(header);
    return Sent::kQueued;
  }
  bool full = false;
  std::vector<wire::FrameHeader> sent;
  Handlers handlers;
};

struct Fixture {
  explicit Fixture(RouteLimits limits)
      : channel(new FakeChannel),
        link({{1}, {2}}, std::unique_ptr<NodeChannel>(channel)),
        rings({1}, Doorbell::create().value(), {[](Message) {}, [] {}, [](ProcessId) {}, {}}),
        routes(config, link, rings, limits, [](ProcessId) {}) {}

  ProcessConfig config{.node = {1}, .process = {2}, .job = {3}};
  FakeChannel* channel;  ///< link's
  NodeLink link;
  RingHub rings;
  Routes routes;
};

}  // namespace

TEST_CASE("credit that finds the link to the node full is given when there is room") {
  // The simulator found it: it was dropped, and so was a piece of its receiver's window, for good.
  Fixture here({.credit_step = 100});
  const NoWaitScope receives;
  const ProcessAddress far{{9}, {8}};
  here.channel->full = true;
  here.routes.took_up(far, 150);
  here.channel->full = false;
  here.routes.flush_all();
  REQUIRE(here.channel->sent.size() == 1);
  CHECK(here.channel->sent[0].kind == wire::FrameKind::kCredit);
  CHECK(here.channel->sent[0].to == far);
  CHECK(here.channel->sent[0].id == 150);
  here.routes.flush_all();
  here.routes.took_up(far, 99);
  CHECK(here.channel->sent.size() == 1);  // once
}
