// Workers of tasks that wait: their CPUs are for others meanwhile, and come back once, whatever ends the
// wait.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

struct Waits : Script {
  /// A worker on node 1, which has two CPUs.
  explicit Waits(ClusterConfig with = {}) : Script(with) {
    job = job_on({2});
    first = up(job, 2);
    second = up(job, 3);
  }
  void waits(ActorId actor, bool does = true, std::uint64_t node = 1, std::uint32_t incarnation = 1) {
    on(ActorWaits{NodeId{node}, actor, incarnation, does});
  }
  void down(ActorId actor) { on(ActorDown{NodeId{1}, actor, "killed"}); }
  int held(std::uint64_t node = 1) const {
    return static_cast<int>(head->nodes().at(NodeId{node}).cpu_used_e4 / kCpu);
  }
  /// Whether a worker more is started at once; it waits else.
  bool starts(std::uint64_t request, int cpus = 1) {
    spawn(job, request, "", cpus);
    return get<StartActor>() != nullptr;
  }

  JobId job{};
  ActorId first{}, second{};
};

}  // namespace

// Two tasks that waited for a third one's object held the two CPUs that there were, and it never ran.
TEST_CASE("what a task that waits leaves is placed, and what it takes back is held at once") {
  Waits s;
  CHECK_FALSE(s.starts(4));
  CHECK_FALSE(s.starts(5));
  s.waits(s.first);
  REQUIRE(s.all<StartActor>().size() == 1);
  const ActorId third = s.the<StartActor>().actor;
  CHECK(s.head->actors().at(third).record.requester.request == 4);
  CHECK(s.held() == 2);
  CHECK(s.head->why(s.head->actors().at(s.first)) ==
        "least used node: n1 has 2 of 2; it waits, and leaves its CPUs to others");
  s.on(ActorStarted{NodeId{1}, third, ProcessId{9}});
  // It does not ask: more is held than there is.
  s.waits(s.first, false);
  CHECK(s.held() == 3);
  CHECK(s.get<StartActor>() == nullptr);
  s.down(third);
  CHECK(s.get<StartActor>() == nullptr);
  CHECK(s.held() == 2);
  s.down(s.second);
  CHECK(s.get<StartActor>() != nullptr);
  CHECK(s.held() == 2);
}

TEST_CASE("the last word of a wait counts, once, and that of who is not there does not") {
  Waits s;
  for (int i = 0; i < 3; ++i) s.waits(s.first);
  CHECK(s.held() == 1);
  for (int i = 0; i < 3; ++i) s.waits(s.first, false);
  CHECK(s.held() == 2);
  s.waits(s.first, true, 77);    // no such node
  s.waits(s.first, true, 100);   // it is on another one
  s.waits(s.first, true, 1, 2);  // no such life
  s.waits(ActorId{12345});       // no such actor
  CHECK(s.held() == 2);
  s.waits(s.first);
  s.down(s.first);  // while it waits
  CHECK(s.held() == 1);
  s.waits(s.first, false);
  CHECK(s.held() == 1);
  s.waits(s.second);
  s.on(KillRequested{kGateway, s.job, s.second, "its lease ended"});
  CHECK(s.held() == 0);
  s.waits(s.second, false);  // it ran on before it heard of that
  CHECK(s.held() == 1);
  s.down(s.second);
  CHECK(s.held() == 0);
}

TEST_CASE("a head that starts again is told who waits, and counts all CPUs until then") {
  Waits s;
  s.waits(s.first);
  REQUIRE(s.starts(4));
  const ActorId third = s.the<StartActor>().actor;
  s.on(ActorStarted{NodeId{1}, third, ProcessId{9}});
  s.restart();
  CHECK(s.held() == 3);
  const std::vector<LiveActor> lives{
      {s.first, ProcessId{9}, 1, true}, {s.second, ProcessId{9}}, {third, ProcessId{9}}};
  s.node(1, 2, lives);
  CHECK(s.held() == 2);
  s.gateway();
  CHECK_FALSE(s.starts(5));
  // A link that broke took both words with it: the node says how it is.
  s.node(1, 2, {{s.first, ProcessId{9}}, {s.second, ProcessId{9}, 1, true}, {third, ProcessId{9}, 1, true}});
  CHECK(s.held() == 2);
  s.on(ActorStarted{NodeId{1}, s.the<StartActor>().actor, ProcessId{9}});
  s.restart();
  s.node(1, 2, {});
  CHECK(s.held() == 0);
}

TEST_CASE("what waits leaves nothing behind when its node drains or dies") {
  Waits s;
  s.on(DrainRequested{NodeId{1}, 30'000, "by hand", false});
  s.on(NodeDrains{NodeId{1}, 30'000, "by hand"});
  s.waits(s.first);
  s.waits(s.second);
  CHECK_FALSE(s.starts(4));  // nothing new goes there
  s.waits(s.second, false);
  s.on(NodeDrains{NodeId{1}, -1, "cancelled"});
  s.on(ActorStarted{NodeId{1}, s.the<StartActor>().actor, ProcessId{9}});
  CHECK(s.held() == 2);
  s.node(2, 1);
  s.on(NodeLeft{NodeId{1}, "it left"});
  CHECK(s.head->actors().at(s.first).record.state == ActorState::kDead);
  CHECK(s.held(2) == 0);
}

// Actors hold no CPUs by default: they would have waited for the end of tasks that run for hours.
TEST_CASE("where more is held than there is, what asks for no CPUs is placed all the same") {
  Waits s;
  s.waits(s.first);
  s.waits(s.second);
  REQUIRE(s.starts(4, 2));
  s.waits(s.first, false);
  s.waits(s.second, false);
  CHECK(s.held() == 4);
  CHECK_FALSE(s.starts(5));
  CHECK(s.starts(6, 0));
}

TEST_CASE("who waits leaves its GPUs to nobody, and its CPUs in its bundle and its queue's quota") {
  Script s;
  s.node_with_gpus(1, 1);
  s.gateway();
  s.on(QueueChanged{{"a", 2 * kCpu}, false});
  SubmissionSpec program{.id = "one", .name = "", .program = {"x"}};
  program.queue = "a";
  s.on(SubmissionRequested{program});
  s.on(DriverStarted{NodeId{1}, "one", 1});
  s.on(JobRegistered{"main", kDriver, 1, "one"});
  const JobId job = s.the<JobAnswered>().job;
  const auto queue_holds = [&] {
    for (const QueueStatus& status : s.head->queue_statuses())
      if (status.queue.name == "a") return static_cast<int>(status.cpu_used_e4 / kCpu);
    return -1;
  };
  const GroupSpec one{{}, "", PlacementStrategy::kPack, {{kCpu, kGpu}}};
  s.on(GroupRequested{{kDriver, 2}, job, GroupVerb::kMake, {}, one});
  const GroupId group = s.the<GroupAnswered>().status.record.group;
  const auto in_group = [&](std::uint64_t request, std::int64_t gpus) {
    s.on(SpawnRequested{{kDriver, request}, {job, "T", "", "", {kCpu, true, {}, gpus, group}}});
    return s.get<StartActor>() == nullptr ? ActorId{} : s.the<StartActor>().actor;
  };
  const ActorId inside = in_group(3, kGpu);
  REQUIRE(inside);
  CHECK_FALSE(in_group(4, 0));
  CHECK_FALSE(in_group(5, kGpu));
  s.on(ActorWaits{NodeId{1}, inside, 1, true});
  REQUIRE(s.all<StartActor>().size() == 1);  // it has the CPU, not the GPU
  const ActorId beside = s.the<StartActor>().actor;
  CHECK(s.head->actors().at(beside).record.requester.request == 4);
  CHECK(queue_holds() == 1);  // the group's
  s.on(ActorWaits{NodeId{1}, inside, 1, false});
  s.on(ActorDown{NodeId{1}, beside, "killed"});
  s.on(ActorDown{NodeId{1}, inside, "killed"});
  CHECK(s.get<StartActor>() != nullptr);  // the other that wants the GPU

  s.spawn(job, 10);
  const ActorId outside = s.the<StartActor>().actor;
  s.on(ActorStarted{NodeId{1}, outside, ProcessId{9}});
  s.spawn(job, 11);
  CHECK(s.the<SpawnWaits>().reason == "queue a holds 2 CPU of its quota of 2, and 1 more are too many");
  s.on(ActorWaits{NodeId{1}, outside, 1, true});
  CHECK(s.get<StartActor>() != nullptr);
  CHECK(queue_holds() == 2);
  s.on(ActorWaits{NodeId{1}, outside, 1, false});
  CHECK(queue_holds() == 3);
  s.spawn(job, 12);
  CHECK(s.get<SpawnWaits>() != nullptr);
}

// What begins again has nothing that waits: only workers of tasks say so, which have one life.
TEST_CASE("an actor with other lives holds its CPUs whatever is said of it") {
  Script s;
  const JobId job = s.job_on({2});
  ActorSpec spec{job, "T", "", "arguments", {kCpu, true, {}}};
  spec.max_restarts = 1;
  s.on(SpawnRequested{{kDriver, 2}, spec});
  const ActorId actor = s.the<StartActor>().actor;
  s.on(ActorStarted{NodeId{1}, actor, ProcessId{9}});
  s.on(ActorWaits{NodeId{1}, actor, 1, true});
  CHECK(s.head->nodes().at(NodeId{1}).cpu_used_e4 == kCpu);
}
