// A node that drains takes no light actors, and leaves when nothing runs here, or when its time is over.
#include "tests/runtime/node/machine_fixture.hpp"

using namespace troupe;
using namespace troupe::node;
using F = Fixture;

namespace {

bool leaves(const Actions& actions) {
  return F::told<cluster::NodeLeaving>(actions) != nullptr;
}

}  // namespace

TEST_CASE("a node on which nothing runs has drained at its second look") {
  F f;
  const auto told = f.head(cluster::DrainNode{F::kNode, 30'000, "by hand"});
  REQUIRE(F::told<cluster::NodeDrains>(told) != nullptr);
  CHECK(F::told<cluster::NodeDrains>(told)->left_ms == 30'000);
  CHECK_FALSE(leaves(f.tick()));
  CHECK(leaves(f.tick()));
  CHECK(f.machine.drains());
}

TEST_CASE("a node waits for what runs here until its time is over, and takes no light actors meanwhile") {
  F f;
  const ProcessId driver = f.driver();
  const ProcessId worker = f.worker({1});
  f.on(DrainAsked{3s, "SIGTERM"});
  const auto lease = f.said(driver, wire::LeaseAsk{6, F::kNode, "", {F::kNode, driver}});
  REQUIRE(F::sent<wire::Answer>(lease, driver) != nullptr);
  CHECK_FALSE(F::sent<wire::Answer>(lease, driver)->ok);
  const auto joined = f.head(cluster::RequestRegistration{F::kNode, ""});
  CHECK(F::told<cluster::NodeJoined>(joined)->drain_left_ms == 3000);
  CHECK_FALSE(leaves(f.tick()));
  CHECK_FALSE(leaves(f.tick()));
  // Its own machine wants it: the head cannot cancel that.
  const auto cancelled = f.head(cluster::DrainNode{F::kNode, -1, "by hand"});
  CHECK(F::told<cluster::NodeDrains>(cancelled)->left_ms > 0);
  const auto over = f.tick();
  CHECK(leaves(over));
  CHECK(F::sent<wire::Leave>(over, worker) != nullptr);
}

TEST_CASE("a drain that is cancelled is over, and one that is asked for again has the shorter time") {
  F f;
  f.worker({1});
  f.head(cluster::DrainNode{F::kNode, 5'000, "by hand"});
  const auto again = f.head(cluster::DrainNode{F::kNode, 60'000, "by hand"});
  CHECK(F::told<cluster::NodeDrains>(again)->left_ms == 5'000);
  const auto cancelled = f.head(cluster::DrainNode{F::kNode, -1, "by hand"});
  CHECK(F::told<cluster::NodeDrains>(cancelled)->left_ms < 0);
  CHECK_FALSE(f.machine.drains());
  for (int i = 0; i < 10; ++i) CHECK_FALSE(leaves(f.tick()));
}

TEST_CASE("who spawned an actor hears that its node drains") {
  F f;
  const ProcessId driver = f.driver();
  const auto told = f.head(cluster::ActorLeaves{{{F::kNode, driver}, 3}, {5}, "by hand", false});
  REQUIRE(F::sent<wire::ActorLeaves>(told, driver) != nullptr);
  CHECK(F::sent<wire::ActorLeaves>(told, driver)->reason == "by hand");
}
