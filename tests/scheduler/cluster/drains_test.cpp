// Nodes that drain: nothing new goes there, what can start elsewhere does, who spawned the rest is told.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t kGraceMs = 30'000;

DrainRequested drain_of(std::uint64_t node, std::int64_t grace_ms = kGraceMs) {
  return {NodeId{node}, grace_ms, "by hand"};
}
/// An actor with several lives, up on the node that was chosen.
StartActor restartable(Script& s, JobId job, std::uint64_t request, int cpus = 1) {
  ActorSpec spec{job, "T", "", "arguments", {cpus * kCpu, true, {}}};
  spec.max_restarts = 1;
  s.on(SpawnRequested{{kDriver, request}, spec});
  const StartActor start = *s.get<StartActor>();
  s.on(ActorStarted{start.node, start.actor, ProcessId{9}, start.incarnation});
  return start;
}

}  // namespace

TEST_CASE("a node that drains is told so, gets nothing new, and goes on when that is cancelled") {
  Script s;
  const JobId job = s.job_on({4});
  s.on(drain_of(1));
  CHECK(s.the<DrainNode>().grace_ms == kGraceMs);
  s.on(NodeDrains{NodeId{1}, kGraceMs, "by hand"});
  CHECK(s.last.empty());
  s.spawn(job, 2);
  CHECK(s.get<SpawnWaits>() != nullptr);
  s.node(2, 4);
  CHECK(s.the<StartActor>().node == NodeId{2});
  s.on(NodesWanted{{kDriver, 5}});
  CHECK(s.the<NodesAnswered>().nodes.size() == 1);  // the other one

  DrainRequested cancel = drain_of(1);
  cancel.cancel = true;
  s.on(cancel);
  CHECK(s.the<DrainNode>().grace_ms < 0);
  s.spawn(job, 9);
  CHECK(s.the<StartActor>().node == NodeId{2});  // the node has not said yet that it goes on
  s.on(NodeDrains{NodeId{1}, -1, "cancelled"});
  for (std::uint64_t i = 10; i < 16; ++i) s.spawn(job, i);  // both nodes are needed
  CHECK(s.get<StartActor>() != nullptr);
  CHECK(s.head->why_drains(NodeId{1}).empty());
}

TEST_CASE(
    "a spawn that waits for the node that drains is refused, and one that starts there goes on: it may hold "
    "CPUs already, which a cancelled drain would give away") {
  Script s;
  const JobId job = s.job_on({4});
  s.spawn(job, 2);
  const ActorId first = s.the<StartActor>().actor;
  s.spawn(job, 3, "", 4);  // waits
  s.on(SpawnRequested{{kDriver, 4}, {job, "T", "", "arguments", {4 * kCpu, true, NodeId{1}}}});
  CHECK(s.get<SpawnWaits>() != nullptr);
  s.node(2, 1);
  s.on(drain_of(1));
  CHECK(s.all<StartActor>().empty());
  CHECK(s.head->actors().at(first).record.state == ActorState::kStarting);
  REQUIRE(s.all<SpawnAnswered>().size() == 1);
  CHECK_FALSE(s.the<SpawnAnswered>().ok);
  CHECK(s.the<SpawnAnswered>().error.why == "node n1 drains: by hand");
}

// Was: the minute in which a node like it may come counted from the drain's beginning, so of a drain of ten
// minutes what only that node could hold was refused long before its successor came.
TEST_CASE("what only a node could hold that drains waits until a minute after it is gone") {
  Script s;
  const JobId job = s.job_on({4, 1});
  s.on(drain_of(1, 600'000));
  s.spawn(job, 2, "", 4);
  CHECK(s.get<SpawnWaits>() != nullptr);
  s.pass(300, {NodeId{1}, NodeId{2}, kGateway});
  s.spawn(job, 3, "", 4);
  CHECK(s.get<SpawnWaits>() != nullptr);
  const std::vector<NodeId> others{NodeId{2}, kGateway};
  SECTION("another one comes") {
    s.on(NodeLeaving{NodeId{1}, "it has drained"});
    s.on(NodeLeft{NodeId{1}, "it left"});
    s.pass(59, others);
    s.node(3, 4);
    CHECK(s.the<StartActor>().node == NodeId{3});
  }
  SECTION("none comes") {
    s.on(NodeLeft{NodeId{1}, "it left"});
    s.pass(59, others);
    CHECK(s.all<SpawnAnswered>().empty());
    s.pass(1, others);
    CHECK(s.all<SpawnAnswered>().size() == 2);
  }
  SECTION("it has less when it registers again, and stays") {
    s.on(NodeJoined{{NodeId{1}, "n1", "", "", 2 * kCpu, false}, {}, {}, {}});
    s.pass(60, {NodeId{1}, NodeId{2}, kGateway});
    CHECK(s.all<SpawnAnswered>().size() == 2);
  }
}

TEST_CASE(
    "who spawned an actor is told that its node drains, also when it comes up then, and that it stays") {
  Script s;
  const JobId job = s.job_on({4});
  const ActorId actor = s.up(job, 2);
  s.on(SpawnRequested{{kDriver, 3}, {job, "T", "", "arguments", {kCpu, true, NodeId{1}}}});
  const StartActor bound = *s.get<StartActor>();  // to this node alone
  s.on(drain_of(1));
  REQUIRE(s.all<ActorLeaves>().size() == 1);
  CHECK(s.the<ActorLeaves>().actor == actor);
  CHECK(s.the<ActorLeaves>().to == Requester{kDriver, 2});
  CHECK(s.the<ActorLeaves>().reason == "by hand");
  CHECK_FALSE(s.the<ActorLeaves>().stays);
  CHECK(s.all<KillActor>().empty());
  CHECK(s.head->why_drains(NodeId{1}) ==
        "waits for 2 x T of job main; it leaves in 30 s at the latest (by hand)");
  s.on(ActorStarted{NodeId{1}, bound.actor, ProcessId{10}});
  CHECK(s.the<ActorLeaves>().actor == bound.actor);
  s.on(NodeDrains{NodeId{1}, -1, "cancelled"});
  REQUIRE(s.all<ActorLeaves>().size() == 2);
  CHECK(s.the<ActorLeaves>().stays);
}

TEST_CASE("actors with several lives start again elsewhere, one after the other, and use up no restart") {
  Script s;
  const JobId job = s.job_on({4});
  const StartActor a = restartable(s, job, 2), b = restartable(s, job, 3);
  s.node(2, 4);
  s.on(drain_of(1));
  REQUIRE(s.all<KillActor>().size() == 1);
  const ActorId first = s.the<KillActor>().actor, second = first == a.actor ? b.actor : a.actor;
  for (const ActorId moving : {first, second}) {
    if (moving == second) {
      s.on(Tick{});
      CHECK(s.the<KillActor>().actor == second);
    }
    s.on(ActorDown{NodeId{1}, moving, "its node drains", 1});
    REQUIRE(s.get<ArgumentsWanted>() != nullptr);
    s.on(Tick{});
    CHECK(s.get<KillActor>() == nullptr);  // one at a time
    s.on(ActorArguments{s.head->actors().at(moving).record.requester, moving, true, "arguments"});
    CHECK(s.the<StartActor>().node == NodeId{2});
    s.on(ActorStarted{NodeId{2}, moving, ProcessId{11}, 2});
    CHECK(s.head->actors().at(moving).record.restarts == 0);
  }
  CHECK(s.head->why_drains(NodeId{1}).empty());
}

TEST_CASE("an actor that has no room elsewhere stays until the node leaves") {
  Script s;
  const JobId job = s.job_on({4});
  const StartActor a = restartable(s, job, 2, 4);
  s.node(2, 1);
  s.on(drain_of(1));
  s.on(Tick{});
  CHECK(s.all<KillActor>().empty());
  s.on(NodeLeaving{NodeId{1}, "it drained, and its time is over"});
  s.on(ActorDown{NodeId{1}, a.actor, "its node leaves", 1});
  CHECK(s.head->actors().at(a.actor).record.state == ActorState::kRestarting);
  s.on(NodeLeft{NodeId{1}, "it left"});
  CHECK(s.head->nodes().size() == 2);
}

TEST_CASE("a restarted head hears from the node that it drains; a node that missed it is told again") {
  Script s;
  s.gateway();
  s.node(1, 4);
  s.on(drain_of(1));
  s.on(Heartbeat{NodeId{1}});
  s.node(1, 4);  // its link broke before it heard
  CHECK(s.the<DrainNode>().grace_ms == kGraceMs);
  s.restart();
  NodeJoined joined{{NodeId{1}, "n1", "", "", 4 * kCpu, false}, {}, {}, {}};
  joined.drain_left_ms = 1000;
  joined.drain_reason = "by hand";
  s.on(joined);
  s.gateway();
  const JobId job = s.job().job;
  s.spawn(job, 2);
  CHECK(s.get<StartActor>() == nullptr);
}

TEST_CASE("a submitted job goes on where a node drains, and follows its retries when that leaves") {
  Script s;
  s.node(1, 4);
  SubmissionSpec spec;
  spec.id = "one";
  spec.program = {"sleep", "600"};
  spec.retries = 1;
  s.on(SubmissionRequested{spec});
  s.on(DriverStarted{NodeId{1}, "one", 1});
  s.node(2, 4);
  s.on(drain_of(1));
  CHECK(s.get<StopDriver>() == nullptr);
  CHECK(s.head->why_drains(NodeId{1}) ==
        "waits for submitted job one; it leaves in 30 s at the latest (by hand)");
  s.on(NodeLeaving{NodeId{1}, "its time is over"});
  s.on(DriverEnded{NodeId{1}, "one", 1, {.ran = true, .how = "its node leaves"}});
  s.pass(2, {NodeId{1}, NodeId{2}});
  const SubmissionRecord* job = s.head->submissions().find("one");
  CHECK(job->node == NodeId{2});
  CHECK(job->attempt == 2);
}

TEST_CASE("what is no node, and one that leaves, does not drain") {
  Script s;
  s.gateway();
  s.node(1, 4);
  s.on(drain_of(100));
  CHECK(s.last.empty());
  s.on(drain_of(7));
  CHECK(s.last.empty());
  s.on(NodeLeaving{NodeId{1}, "told to end"});
  s.on(drain_of(1));
  CHECK(s.last.empty());
}
