// Actors that start together, all of them or none.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

struct Together : Script {
  GroupId make(JobId job, std::uint64_t request, std::size_t members, int cpus, std::int64_t gpu_e4 = 0,
               PlacementStrategy strategy = PlacementStrategy::kPack) {
    const GroupSpec spec{{}, "", strategy, std::vector(members, BundleDemand{cpus * kCpu, gpu_e4}), true};
    on(GroupRequested{{kDriver, request}, job, GroupVerb::kMake, {}, spec});
    REQUIRE(the<GroupAnswered>().ok);
    return the<GroupAnswered>().status.record.group;
  }
  void member(JobId job, std::uint64_t request, GroupId group, std::int32_t bundle, int cpus,
              std::int64_t gpu_e4 = 0) {
    ActorSpec spec{job, "T", "", "arguments", {cpus * kCpu, true, {}, gpu_e4, group, bundle}};
    on(SpawnRequested{{kDriver, request}, spec});
  }
  /// On these nodes two that start together ask for a CPU each, as requests 10 and 11.
  std::pair<JobId, GroupId> two_wait(const std::vector<int>& cpus) {
    const JobId of = job_on(cpus);
    const GroupId group = make(of, 3, 2, 1);
    member(of, 10, group, 0, 1);
    member(of, 11, group, 1, 1);
    return {of, group};
  }
  void down(ActorId actor) {
    const ActorRecord& record = head->actors().at(actor).record;
    on(ActorDown{record.node, actor, "killed", record.incarnation});
  }
  std::string reason(GroupId group) const { return head->groups().find(group)->reason; }
};

}  // namespace

// Was: none was told, so a process that had 256 of a group of 1,000 under way asked for no more, and all
// failed after two minutes without a reason, also where there was room.
TEST_CASE("who starts together with others that are still to come is told that it waits") {
  Together s;
  const JobId job = s.job_on({2});
  const GroupId group = s.make(job, 3, 2, 1);
  s.member(job, 10, group, 0, 1);
  CHECK(s.the<SpawnWaits>().to.request == 10);
  s.member(job, 11, group, 1, 1);
  CHECK(s.get<SpawnWaits>() == nullptr);
  CHECK(s.all<StartActor>().size() == 2);
}

TEST_CASE("actors that start together hold nothing until there is room for all, then each holds its own") {
  Together s;
  const JobId job = s.job_on({2, 2});
  const ActorId busy = s.up(job, 2);
  const GroupId group = s.make(job, 3, 4, 1);
  CHECK(s.head->groups().find(group)->record.state == GroupState::kWaiting);
  for (std::int32_t i = 0; i < 4; ++i) s.member(job, 10 + static_cast<std::uint64_t>(i), group, i, 1);
  CHECK(s.get<StartActor>() == nullptr);
  CHECK(s.head->nodes().at(NodeId{1}).cpu_used_e4 + s.head->nodes().at(NodeId{2}).cpu_used_e4 == kCpu);
  CHECK(s.reason(group) ==
        "all 4 bundles do not fit at a time: they ask for 4 CPU: n2 has 2 of 2, n1 has 1 of 2");
  // Each is told, once the last has come.
  CHECK(s.all<SpawnWaits>().size() == 4);
  CHECK(s.all<SpawnWaits>()[0].reason ==
        "placement group " + to_string(group) + " waits: " + s.reason(group));
  s.on(GroupRequested{{kDriver, 50}, job, GroupVerb::kAwait, group, {}});

  s.down(busy);
  const auto starts = s.all<StartActor>();
  REQUIRE(starts.size() == 4);
  for (const StartActor& start : starts) CHECK_FALSE(start.spec.demand.group);
  CHECK(s.the<GroupAnswered>().to.request == 50);
  CHECK(s.the<GroupAnswered>().ok);
  CHECK(s.head->groups().all().empty());
  CHECK_FALSE(s.store.contains("group/" + to_string(group)));
  // What one holds is free when it ends, and no later.
  s.down(starts[0].actor);
  CHECK(s.head->nodes().at(starts[0].node).cpu_used_e4 == kCpu);
  // Asked again an actor that started so is that actor.
  s.member(job, 11, group, 1, 1);
  CHECK(s.get<StartActor>() == nullptr);
}

// Was: they heard what they waited for once, whatever became of that.
TEST_CASE("members of a group that waits hear of another reason, from time to time") {
  Together s;
  const JobId job = s.job_on({6});
  const ActorId a = s.up(job, 2), b = s.up(job, 3);
  s.up(job, 4);
  const GroupId group = s.make(job, 5, 2, 3);
  s.member(job, 10, group, 0, 3);
  s.member(job, 11, group, 1, 3);
  REQUIRE(s.all<SpawnWaits>().size() == 2);
  const auto pass = [&](int time) { s.pass(time, {NodeId{1}, kGateway}); };
  pass(11);
  CHECK(s.all<SpawnWaits>().empty());  // nothing new
  const auto is_told = [&] {
    REQUIRE(s.all<SpawnWaits>().size() == 2);
    CHECK(s.all<SpawnWaits>()[0].reason ==
          "placement group " + to_string(group) + " waits: " + s.reason(group));
  };
  const std::string first = s.reason(group);
  s.down(a);
  CHECK(s.reason(group) != first);
  pass(1);
  is_told();
  s.down(b);
  pass(9);
  CHECK(s.all<SpawnWaits>().empty());  // too soon after the last
  pass(1);
  is_told();
}

// Each had half of the cluster, and waited for the other's for ever.
TEST_CASE(
    "two jobs that each need more than half start one after the other, whatever the order of their spawns") {
  for (int order = 0; order < 4; ++order) {
    CAPTURE(order);
    Together s;
    s.node(1, 4);
    s.gateway();
    const JobId a = s.job(1, "a").job, b = s.job(2, "b").job;
    const GroupId of_a = s.make(a, 3, 3, 1), of_b = s.make(b, 4, 3, 1);
    std::vector<StartActor> starts;
    const auto add = [&](bool first, std::int32_t i) {
      s.member(first ? a : b, (first ? 10U : 20U) + static_cast<std::uint64_t>(i), first ? of_a : of_b, i, 1);
      const auto now = s.all<StartActor>();
      starts.insert(starts.end(), now.begin(), now.end());
    };
    for (std::int32_t i = 0; i < 3; ++i) {
      add(order % 2 == 0, order / 2 == 0 ? i : 2 - i);
      add(order % 2 != 0, order / 2 == 0 ? i : 2 - i);
    }
    REQUIRE(starts.size() == 3);
    for (const StartActor& start : starts) CHECK(start.spec.job == starts[0].spec.job);
    s.down(starts[0].actor);
    s.down(starts[1].actor);
    CHECK(s.all<StartActor>().size() == 3);
  }
}

// Was: "there is no placement group 1f in this job", since that is gone when its actors start.
TEST_CASE(
    "one of those that started together, whose node dies before its request is repeated, starts again") {
  Together s;
  const auto [job, group] = s.two_wait({1, 1, 1});
  const auto starts = s.all<StartActor>();
  REQUIRE(starts.size() == 2);
  const std::uint64_t dies = starts[0].node.value;
  s.restart();
  for (std::uint64_t node = 1; node <= 3; ++node) {
    if (node != dies) s.node(node, 1);
  }
  s.on(NodeLeft{NodeId{dies}, "power loss"});
  s.gateway();
  s.member(job, 10, group, 0, 1);
  CHECK_FALSE(s.the<StartActor>().spec.demand.group);
  CHECK(s.the<StartActor>().spec.payload == "arguments");
  s.member(job, 11, group, 1, 1);
  CHECK(s.the<StartActor>().actor == starts[1].actor);
  s.member(job, 12, group, 0, 1);  // no member of it
  CHECK(s.the<SpawnAnswered>().error.code == ErrorCode::kRefused);
}

TEST_CASE("a head that restarts starts the waiting ones together when they ask again") {
  Together s;
  const auto [job, group] = s.two_wait({1});
  s.restart();
  s.gateway();
  s.node(1, 1);
  s.node(2, 1);
  REQUIRE(s.head->groups().find(group) != nullptr);
  CHECK(s.reason(group) == "waits for the actors that start with it");
  s.member(job, 10, group, 0, 1);
  CHECK(s.get<StartActor>() == nullptr);
  s.member(job, 11, group, 1, 1);
  CHECK(s.all<StartActor>().size() == 2);
}

TEST_CASE("one that is not wanted any more takes the others of its group with it") {
  Together s;
  const auto [job, group] = s.two_wait({1});
  s.on(SpawnCancelled{{kDriver, 11}});
  CHECK(s.the<SpawnAnswered>().to.request == 10);
  CHECK(s.the<SpawnAnswered>().error.why.ends_with("is not wanted any more"));
  CHECK(s.head->groups().all().empty());
  CHECK(s.head->waiting().empty());
  // The same when its process goes with its node.
  const GroupId again = s.make(job, 4, 2, 1);
  s.member(job, 12, again, 0, 1);
  s.member(job, 13, again, 1, 1);
  s.on(NodeLeft{kGateway, "bye"});
  CHECK(s.head->groups().all().empty());
  CHECK(s.head->waiting().empty());
}

// Was: it waited until its job ended, and with it those that had come.
TEST_CASE("a group whose maker does not ask for all of its actors is given up") {
  Together s;
  const JobId job = s.job_on({4});
  const GroupId group = s.make(job, 3, 2, 1);
  s.member(job, 10, group, 0, 1);
  s.pass(119, {NodeId{1}, kGateway});
  CHECK(s.head->groups().find(group) != nullptr);
  s.pass(1, {NodeId{1}, kGateway});
  CHECK(s.the<SpawnAnswered>().to.request == 10);
  CHECK(s.the<SpawnAnswered>().error.why ==
        "placement group " + to_string(group) + ": not all of its actors were asked for within 120 s");
  CHECK(s.head->groups().all().empty());
  CHECK(s.head->waiting().empty());
  CHECK_FALSE(s.store.contains("group/" + to_string(group)));
  // One that waits for room waits on.
  const GroupId large = s.make(job, 4, 2, 3);
  s.member(job, 20, large, 0, 3);
  s.member(job, 21, large, 1, 3);
  s.pass(130, {NodeId{1}, kGateway});
  CHECK(s.head->groups().find(large) != nullptr);
  CHECK(s.head->waiting().size() == 2);
}

// Was: given time since such a node had just died, they waited for ever.
TEST_CASE("what was to start together is refused when no node comes that is as large as one that died") {
  Together s;
  const JobId job = s.job_on({4, 1});
  s.on(NodeLeft{NodeId{1}, "bye"});
  const GroupId group = s.make(job, 3, 2, 3);
  s.member(job, 10, group, 0, 3);
  s.member(job, 11, group, 1, 3);
  CHECK(s.head->groups().find(group) != nullptr);
  s.pass(59, {NodeId{2}, kGateway});
  CHECK(s.head->groups().find(group) != nullptr);
  s.pass(1, {NodeId{2}, kGateway});
  REQUIRE(s.all<SpawnAnswered>().size() == 2);
  CHECK(s.the<SpawnAnswered>().error.why ==
        "placement group " + to_string(group) + ": no node has 3 CPU at all: the largest has 1");
  CHECK(s.head->groups().all().empty());
}

TEST_CASE("what cannot start with a group is refused, and so is what no node could hold") {
  Together s;
  const JobId job = s.job_on({2});
  const GroupId group = s.make(job, 3, 2, 1);
  const auto refused = [&](std::uint64_t request, std::int32_t bundle, int cpus, GroupId in) {
    s.member(job, request, in, bundle, cpus);
    CHECK(s.the<SpawnAnswered>().error.code == ErrorCode::kRefused);
    return s.the<SpawnAnswered>().error.why;
  };
  const std::string name = "placement group " + to_string(group);
  CHECK(refused(10, -1, 1, group) == name + " has no bundle -1 to start in");
  CHECK(refused(11, 2, 1, group) == name + " has no bundle 2 to start in");
  CHECK(refused(12, 0, 2, group) == "it asks for other CPUs and GPUs than bundle 0 of " + name + " has");
  s.member(job, 13, group, 0, 1);
  CHECK(refused(14, 0, 1, group) == "another actor waits for bundle 0 of " + name);
  const GroupId large = s.make(job, 4, 2, 3);
  s.member(job, 15, large, 0, 3);
  CHECK(refused(16, 1, 3, large) ==
        "placement group " + to_string(large) + ": no node has 3 CPU at all: the largest has 2");
  CHECK(s.all<SpawnAnswered>().size() == 2);
  // A name that is taken: the other one does not start either.
  s.spawn(job, 20, "taken");
  s.on(ActorStarted{NodeId{1}, s.the<StartActor>().actor, ProcessId{9}});
  const GroupId named = s.make(job, 5, 2, 1);
  s.member(job, 21, named, 1, 1);
  ActorSpec spec{job, "T", "taken", "", {kCpu, true, {}, 0, named, 0}};
  s.on(SpawnRequested{{kDriver, 22}, spec});
  s.on(ActorLives{NodeId{1}, s.the<ConfirmActor>().actor, s.the<ConfirmActor>().question});
  CHECK(s.all<SpawnAnswered>().size() == 2);
  CHECK(s.head->groups().find(named) == nullptr);
}

TEST_CASE("parts of GPUs are dealt to actors that start together as the plan has them") {
  Together s;
  s.node_with_gpus(1, 2);
  const JobId job = s.job_on({});
  const GroupId group = s.make(job, 3, 4, 0, kGpu / 2, PlacementStrategy::kStrictPack);
  for (std::int32_t i = 0; i < 4; ++i)
    s.member(job, 10 + static_cast<std::uint64_t>(i), group, i, 0, kGpu / 2);
  REQUIRE(s.all<StartActor>().size() == 4);
  CHECK(s.head->nodes().at(NodeId{1}).gpu_used_e4 == GpuUse{kGpu, kGpu});
}

TEST_CASE("a job that runs says what its actors wait for") {
  Together s;
  s.node(1, 2);
  s.gateway();
  SubmissionSpec spec;
  spec.id = "train";
  spec.program = {"x"};
  s.on(SubmissionRequested{spec});
  s.on(DriverStarted{NodeId{1}, "train", 1});
  s.on(JobRegistered{"main", kDriver, 1, "train"});
  const JobId job = s.the<JobAnswered>().job;
  const auto why = [&] { return s.head->why(*s.head->submissions().find("train")); };
  CHECK(why() == "it runs on n1");
  const GroupId group = s.make(job, 3, 3, 1);
  for (std::int32_t i = 0; i < 3; ++i) s.member(job, 10 + static_cast<std::uint64_t>(i), group, i, 1);
  CHECK(why() == "it runs on n1; placement group " + to_string(group) + " waits: " + s.reason(group));
  s.on(SpawnCancelled{{kDriver, 10}});
  s.spawn(job, 20, "", 2);
  s.spawn(job, 21, "", 1);
  CHECK(why() ==
        "it runs on n1; an actor of it waits: T: no node has 1 CPU free: n1 has 0 of 2; room is held by 1 "
        "actor "
        "(T) of job train (2 CPU), until they end or their program lets go of them (of a training run: takes "
        "its result)");
  s.restart();  // the head remembers whose job it is
  s.gateway();
  s.node(1, 2);
  CHECK(s.head->jobs().find(job)->record.submission == "train");
}
