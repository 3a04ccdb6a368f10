#include "scheduler/cluster/membership.hpp"

#include <catch2/catch.hpp>

#include "scheduler/cluster/running_time.hpp"

using namespace troupe;
using namespace troupe::cluster;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("a silent member is suspect after 3 s, dead after 6 s, and stays dead") {
  Membership members({});
  REQUIRE(members.join(NodeId{1}, seconds(0)));
  members.join(NodeId{2}, seconds(0));
  for (int t = 1; t <= 6; ++t) {
    members.heard(NodeId{2}, seconds(t));
    const auto changes = members.tick(seconds(t));
    if (t == 3) CHECK(members.liveness(NodeId{1}) == Liveness::kSuspect);
    if (t == 6) {
      REQUIRE(changes.size() == 1);
      CHECK(changes[0].reason == "no heartbeat for 6.0 s");
    }
  }
  CHECK(members.heard(NodeId{1}, seconds(7)) == Liveness::kDead);
  CHECK_FALSE(members.join(NodeId{1}, seconds(7)));
  CHECK(members.liveness(NodeId{2}) == Liveness::kAlive);
  members.forget(NodeId{1});
  CHECK(members.liveness(NodeId{1}) == Liveness::kUnknown);
}

TEST_CASE("a suspect that is heard again has its time anew") {
  Membership members({});
  members.join(NodeId{1}, seconds(0));
  for (int t = 0; t <= 4; ++t) members.tick(seconds(t));
  CHECK(members.heard(NodeId{1}, seconds(4)) == Liveness::kSuspect);
  CHECK(members.liveness(NodeId{1}) == Liveness::kAlive);
  CHECK(members.tick(seconds(6)).empty());
  CHECK(members.tick(seconds(7)).size() == 1);
  CHECK(members.liveness(NodeId{1}) == Liveness::kSuspect);
}

TEST_CASE("a judge that was stopped itself declares nobody dead for it") {
  Membership members({});
  RunningTime time(seconds(2));
  members.join(NodeId{1}, time.at(seconds(0)));
  CHECK(members.tick(time.at(seconds(0))).empty());
  CHECK(members.tick(time.at(seconds(60))).empty());
  CHECK(members.liveness(NodeId{1}) == Liveness::kAlive);
  // What was heard right after the stop does not count for longer than any other heartbeat.
  members.heard(NodeId{1}, time.at(seconds(60) + milliseconds(1)));
  for (int t = 61; t <= 66; ++t) members.tick(time.at(seconds(t)));
  CHECK(members.liveness(NodeId{1}) == Liveness::kSuspect);
  members.tick(time.at(seconds(67)));
  CHECK(members.liveness(NodeId{1}) == Liveness::kDead);
}
