// Placement groups: room that is reserved together, who runs in it, and what follows from deaths.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

struct GroupScript : Script {
  using Script::Script;

  GroupAnswered make(JobId job, std::uint64_t request, PlacementStrategy strategy,
                     const std::vector<int>& cpus, std::string name = {}) {
    GroupSpec spec{{}, std::move(name), strategy, {}};
    for (const int one : cpus) spec.bundles.push_back({one * kCpu, 0});
    return ask({{kDriver, request}, job, GroupVerb::kMake, {}, spec});
  }
  GroupAnswered ask(const GroupRequested& asked) {
    on(asked);
    return get<GroupAnswered>() == nullptr ? GroupAnswered{} : *get<GroupAnswered>();
  }
  GroupAnswered ask(JobId job, std::uint64_t request, GroupVerb verb, GroupId group) {
    return ask({{kDriver, request}, job, verb, group, {}});
  }
  void spawn_in(JobId job, std::uint64_t request, GroupId group, int cpus, std::int32_t bundle = -1,
                std::int32_t max_restarts = 0) {
    ActorSpec spec{job, "T", "", "arguments", {cpus * kCpu, true, {}, 0, group, bundle}};
    spec.max_restarts = max_restarts;
    on(SpawnRequested{{kDriver, request}, spec});
  }
  ActorId up_in(JobId job, std::uint64_t request, GroupId group, int cpus, std::int32_t bundle = -1,
                std::int32_t max_restarts = 0) {
    spawn_in(job, request, group, cpus, bundle, max_restarts);
    const StartActor start = *get<StartActor>();
    on(ActorStarted{start.node, start.actor, ProcessId{9}, start.incarnation});
    return start.actor;
  }
  void down(ActorId actor) {
    const ActorRecord& record = head->actors().at(actor).record;
    on(ActorDown{record.node, actor, "killed", record.incarnation});
  }
  std::int64_t cpus_used(std::uint64_t node) const {
    return head->nodes().at(NodeId{node}).cpu_used_e4 / kCpu;
  }
  const GroupRecord& record(GroupId group) const { return head->groups().find(group)->record; }
};

}  // namespace

TEST_CASE("a group is durable before it is told, holds its room, and actors in it take that and no other") {
  GroupScript s;
  const JobId job = s.job_on({4, 4});
  const auto made = s.make(job, 2, PlacementStrategy::kStrictSpread, {2, 2}, "pair");
  REQUIRE(made.ok);
  CHECK(s.index<Persist>() < s.index<GroupAnswered>());
  CHECK(made.status.record.state == GroupState::kReady);
  CHECK(made.status.record.generation == 1);
  CHECK(made.status.reason == "STRICT_SPREAD on 2 nodes: n1, n2");
  CHECK((s.cpus_used(1) == 2 && s.cpus_used(2) == 2));
  const GroupId group = made.status.record.group;
  // Asked again it is the same group.
  CHECK(s.make(job, 2, PlacementStrategy::kStrictSpread, {2, 2}, "pair").status.record.group == group);

  const ActorId first = s.up_in(job, 3, group, 2), second = s.up_in(job, 4, group, 2);
  CHECK(s.head->actors().at(first).record.node != s.head->actors().at(second).record.node);
  CHECK((s.cpus_used(1) == 2 && s.cpus_used(2) == 2));
  s.spawn_in(job, 5, group, 1);  // nodes have room, the group has none
  CHECK(
      s.the<SpawnWaits>().reason ==
      "placement group pair: no bundle has 1 CPU free: bundle 0 on n1 has 0 of 2, bundle 1 on n2 has 0 of 2");
  s.down(first);
  CHECK(s.the<StartActor>().node == NodeId{1});
}

TEST_CASE("a bundle that is asked for is taken, and one that there is not, or that is too small, refused") {
  GroupScript s;
  const JobId job = s.job_on({8});
  const GroupId group = s.make(job, 2, PlacementStrategy::kPack, {1, 3}).status.record.group;
  s.up_in(job, 3, group, 1, 1);
  CHECK(s.head->actors().begin()->second.record.bundle == 1);
  const auto refused = [&](std::uint64_t request, int cpus, std::int32_t bundle) {
    s.spawn_in(job, request, group, cpus, bundle);
    CHECK_FALSE(s.the<SpawnAnswered>().ok);
    return s.the<SpawnAnswered>().error.why;
  };
  const std::string name = "placement group " + to_string(group);
  CHECK(refused(4, 1, 2) == name + " has no bundle 2: it has 2, from 0");
  CHECK(refused(5, 2, 0) == "bundle 0 of " + name + " has no 2 CPU at all");
  CHECK(refused(6, 4, -1) == "no bundle of " + name + " has 4 CPU at all");
  s.spawn_in(job, 7, GroupId{99}, 1);
  CHECK(s.the<SpawnAnswered>().error.why ==
        "there is no placement group 63 in this job: it was removed, or is another job's");
  ActorSpec both{job, "T", "", "", {kCpu, true, NodeId{1}, 0, group, 0}};
  s.on(SpawnRequested{{kDriver, 8}, both});
  CHECK(s.the<SpawnAnswered>().error.code == ErrorCode::kBadInput);
}

TEST_CASE("a group that makes no sense is refused, and one whose name is taken") {
  GroupScript s;
  const JobId job = s.job_on({4});
  CHECK(s.make(job, 2, PlacementStrategy::kPack, {}).error.why == "it has no bundles");
  CHECK(s.make(job, 3, PlacementStrategy::kPack, {1, 0}).error.why == "bundle 1: it is empty");
  CHECK(s.make(job, 4, PlacementStrategy::kPack, {-1}).error.why ==
        "bundle 0: -1 CPUs are not between 0 and 100000");
  CHECK(s.make(job, 5, PlacementStrategy::kPack, std::vector<int>(1001, 1)).error.code == ErrorCode::kLimit);
  CHECK(s.make(JobId{99}, 6, PlacementStrategy::kPack, {1}).error.code == ErrorCode::kRefused);
  REQUIRE(s.make(job, 7, PlacementStrategy::kPack, {1}, "x").ok);
  CHECK(s.make(job, 8, PlacementStrategy::kPack, {1}, "x").error.why == "the name x is taken");
  CHECK(s.head->groups().all().size() == 1);
}

TEST_CASE("a group that has no room for all holds none, says why, and gets it before spawns that wait") {
  GroupScript s;
  const JobId job = s.job_on({4});
  const ActorId busy = s.up(job, 2);
  const auto made = s.make(job, 3, PlacementStrategy::kStrictPack, {2, 2});
  REQUIRE(made.ok);
  CHECK(made.status.record.state == GroupState::kWaiting);
  const std::string why =
      "STRICT_PACK wants all 2 bundles on one node, and none has free 4 CPU: n1 has 3 of 4";
  CHECK(made.status.reason == why);
  CHECK(s.cpus_used(1) == 1);
  s.ask(job, 4, GroupVerb::kAwait, made.status.record.group);
  CHECK(s.the<SpawnWaits>().reason == why);
  s.spawn(job, 5, "", 4);
  s.down(busy);
  CHECK(s.the<GroupAnswered>().to.request == 4);
  CHECK(s.get<StartActor>() == nullptr);
  CHECK(s.cpus_used(1) == 4);
}

TEST_CASE("more than any node has waits for a node that has it") {
  GroupScript s;
  const JobId job = s.job_on({4});
  const auto made = s.make(job, 2, PlacementStrategy::kStrictPack, {6});
  CHECK(made.status.reason == "bundle 0: no node has 6 CPU at all: the largest has 4");
  s.spawn_in(job, 3, made.status.record.group, 6);
  CHECK(s.the<SpawnWaits>().reason ==
        "placement group " + to_string(made.status.record.group) + " waits: " + made.status.reason);
  s.node(2, 8);
  CHECK(s.the<StartActor>().node == NodeId{2});
}

TEST_CASE("after a node's death its bundles are placed anew, and actors in them start again or die") {
  GroupScript s;
  const JobId job = s.job_on({2, 2});
  const GroupId group = s.make(job, 2, PlacementStrategy::kStrictSpread, {2, 2}).status.record.group;
  const ActorId again = s.up_in(job, 3, group, 1, 1, 1), once = s.up_in(job, 4, group, 1, 1);
  REQUIRE(s.head->actors().at(again).record.node == NodeId{2});
  s.on(NodeLeft{NodeId{2}, "power"});
  CHECK(s.record(group).state == GroupState::kWaiting);
  CHECK(s.record(group).placed[0].node == NodeId{1});
  CHECK_FALSE(s.record(group).placed[1].node);
  CHECK(s.head->actors().at(once).record.state == ActorState::kDead);
  CHECK(s.head->actors().at(again).record.state == ActorState::kRestarting);
  CHECK(
      s.head->groups().find(group)->reason ==
      "STRICT_SPREAD wants a node for each of all 2 bundles, and the cluster has 1 node; it waits for more");
  s.on(ActorArguments{{kDriver, 3}, again, true, "arguments"});
  CHECK(s.get<StartActor>() == nullptr);
  s.node(3, 2);
  CHECK(s.record(group).state == GroupState::kReady);
  CHECK(s.record(group).generation == 2);
  CHECK(s.the<StartActor>().actor == again);
  CHECK(s.the<StartActor>().node == NodeId{3});
  CHECK(s.index<Persist>() < s.index<StartActor>());
}

// Each of two groups has lost one of its two bundles, and there is room for one: whoever kept what is left
// would wait for the other for ever.
TEST_CASE("two groups that lost a part each do not wait for each other for ever") {
  GroupScript s;
  const JobId job = s.job_on({2, 2, 2, 2});
  const GroupId one = s.make(job, 2, PlacementStrategy::kStrictSpread, {2, 2}).status.record.group;
  const GroupId other = s.make(job, 3, PlacementStrategy::kStrictSpread, {2, 2}).status.record.group;
  s.on(NodeLeft{s.record(one).placed[0].node, "power"});
  s.on(NodeLeft{s.record(other).placed[0].node, "power"});
  const NodeId left = s.record(one).placed[1].node, there = s.record(other).placed[1].node;
  s.pass(50, {kGateway, left, there});
  CHECK((s.record(one).state == GroupState::kWaiting && s.record(other).state == GroupState::kWaiting));
  CHECK(s.record(one).placed[1].node == left);
  s.pass(20, {kGateway, left, there});
  CHECK((s.record(one).state == GroupState::kReady) != (s.record(other).state == GroupState::kReady));
}

TEST_CASE(
    "what runs in a group that is removed is killed, what waits is refused, and then its room is free") {
  GroupScript s;
  const JobId job = s.job_on({4});
  const GroupId group = s.make(job, 2, PlacementStrategy::kPack, {4}, "x").status.record.group;
  const ActorId actor = s.up_in(job, 3, group, 3);
  s.spawn_in(job, 4, group, 3);
  CHECK(s.ask(job, 5, GroupVerb::kRemove, group).ok);
  CHECK(s.the<KillActor>().reason == "placement group x: it was removed");
  CHECK(s.the<SpawnAnswered>().error.why == "placement group x: it was removed");
  CHECK(s.cpus_used(1) == 4);  // its process may live still
  CHECK(s.ask(job, 6, GroupVerb::kRemove, group).ok);
  s.spawn_in(job, 7, group, 1);
  CHECK(s.the<SpawnAnswered>().error.why == "placement group x was removed");
  CHECK(s.ask(job, 8, GroupVerb::kAwait, group).error.why == "it was removed");
  CHECK(s.make(job, 9, PlacementStrategy::kPack, {9}, "x").ok);  // the name is free
  s.down(actor);
  CHECK(s.cpus_used(1) == 0);
  CHECK_FALSE(s.store.contains("group/" + to_string(group)));
  CHECK(s.head->groups().find(group) == nullptr);
  CHECK(s.ask(job, 10, GroupVerb::kRemove, group).ok);
}

TEST_CASE("groups are removed with their job, and another job sees nothing of them") {
  GroupScript s;
  const JobId job = s.job_on({4}), other = s.job(2, "other").job;
  const GroupId group = s.make(job, 3, PlacementStrategy::kPack, {2}, "x").status.record.group;
  const GroupId waits = s.make(job, 4, PlacementStrategy::kPack, {9}).status.record.group;
  s.up_in(job, 5, group, 1);
  CHECK(s.ask(other, 6, GroupVerb::kShow, group).error.code == ErrorCode::kRefused);
  CHECK(s.ask(other, 7, GroupVerb::kRemove, group).ok);
  CHECK(s.record(group).state == GroupState::kReady);
  s.spawn_in(other, 8, group, 1);
  CHECK_FALSE(s.the<SpawnAnswered>().ok);
  CHECK(s.ask({{kDriver, 9}, other, GroupVerb::kShow, {}, {{}, "x", {}, {}}}).error.code ==
        ErrorCode::kUnavailable);
  CHECK(s.ask({{kDriver, 10}, job, GroupVerb::kShow, {}, {{}, "x", {}, {}}}).status.record.group == group);
  s.on(JobEnded{kGateway, job, "done"});
  CHECK(s.head->groups().find(waits) == nullptr);
  CHECK(s.record(group).state == GroupState::kEnding);
  s.down(s.head->actors().begin()->first);
  CHECK(s.head->groups().all().empty());
  CHECK(s.cpus_used(1) == 0);
}

TEST_CASE("a head that restarts knows groups, what is in them, and what they wait for") {
  GroupScript s;
  const JobId job = s.job_on({2, 2});
  const GroupId group = s.make(job, 2, PlacementStrategy::kSpread, {2, 2}).status.record.group;
  const GroupId waits = s.make(job, 3, PlacementStrategy::kPack, {1}).status.record.group;
  const ActorId actor = s.up_in(job, 4, group, 2, 1);
  s.restart();
  s.gateway();
  s.node(1, 2);
  s.node(2, 2, {{actor, ProcessId{9}}});
  CHECK(s.record(group).state == GroupState::kReady);
  CHECK(s.head->actors().at(actor).record.state == ActorState::kAlive);
  CHECK((s.cpus_used(1) == 2 && s.cpus_used(2) == 2));
  s.ask(job, 5, GroupVerb::kAwait, waits);
  CHECK(s.get<SpawnWaits>() != nullptr);
  s.node(3, 1);
  CHECK(s.the<GroupAnswered>().to.request == 5);
}

TEST_CASE("bundles hold GPUs, whole ones and parts, and actors see those of their bundle") {
  GroupScript s;
  s.node_with_gpus(1, 2);
  const JobId job = s.job_on({});
  GroupSpec spec{{}, "", PlacementStrategy::kPack, {{kCpu, kGpu}, {0, kGpu / 2}}};
  const GroupId group = s.ask({{kDriver, 2}, job, GroupVerb::kMake, {}, spec}).status.record.group;
  const auto gpus_of = [&](std::uint64_t request, std::int64_t gpu_e4, std::int32_t bundle) {
    s.on(SpawnRequested{{kDriver, request}, {job, "T", "", "", {0, true, {}, gpu_e4, group, bundle}}});
    return s.get<StartActor>() == nullptr ? std::vector<std::string>{} : s.the<StartActor>().gpus;
  };
  CHECK(gpus_of(3, kGpu / 2, 0) == std::vector<std::string>{"GPU-0"});
  CHECK(gpus_of(4, kGpu / 2, 0) == std::vector<std::string>{"GPU-0"});
  CHECK(gpus_of(5, kGpu / 2, 1) == std::vector<std::string>{"GPU-1"});
  CHECK(gpus_of(6, kGpu / 4, 1).empty());
  CHECK(s.the<SpawnWaits>().reason ==
        "placement group " + to_string(group) +
            ": it must run on bundle 1 on n1, and bundle 1 on n1 has 0 of 1 GPU");
  s.spawn_with_gpus(job, 7, 0.5);  // what is left of the second
  CHECK(s.the<StartActor>().gpus == std::vector<std::string>{"GPU-1"});
}

TEST_CASE("bundles on a node that drains take nothing new, and move when it leaves") {
  GroupScript s;
  const JobId job = s.job_on({2});
  const GroupId group = s.make(job, 2, PlacementStrategy::kPack, {2}).status.record.group;
  s.node(2, 2);
  s.on(DrainRequested{NodeId{1}, 30'000, "by hand"});
  s.spawn_in(job, 3, group, 1);
  REQUIRE(s.get<SpawnWaits>() != nullptr);
  s.spawn_in(job, 4, group, 1, 0);
  CHECK(s.the<SpawnWaits>().reason ==
        "placement group " + to_string(group) +
            ": bundle 0 is placed anew when n1 has left, which drains: by hand");
  s.on(NodeLeft{NodeId{1}, "drained"});
  CHECK(s.the<StartActor>().node == NodeId{2});
  CHECK(s.record(group).generation == 2);
}

TEST_CASE("of groups that wait the first is served first") {
  GroupScript s;
  const JobId job = s.job_on({1});
  const ActorId busy = s.up(job, 2);
  std::vector<GroupId> groups;  // ids are random
  for (std::uint64_t i = 0; i < 8; ++i)
    groups.push_back(s.make(job, 3 + i, PlacementStrategy::kPack, {1}).status.record.group);
  s.down(busy);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    CHECK(s.record(groups[i]).state == GroupState::kReady);
    s.ask(job, 50 + i, GroupVerb::kRemove, groups[i]);
  }
}

// Was: whoever asked gave up, or died, and the group held its room to the end of its job.
TEST_CASE("a group whose request is cancelled is removed") {
  GroupScript s;
  const JobId job = s.job_on({4});
  const GroupId ready = s.make(job, 2, PlacementStrategy::kPack, {3}).status.record.group;
  const GroupId waits = s.make(job, 3, PlacementStrategy::kPack, {3}).status.record.group;
  s.on(SpawnCancelled{{kDriver, 3}});
  CHECK(s.head->groups().find(waits) == nullptr);
  s.on(SpawnCancelled{{kDriver, 4}});  // of no group
  CHECK(s.cpus_used(1) == 3);
  s.on(SpawnCancelled{{kDriver, 2}});
  CHECK(s.head->groups().find(ready) == nullptr);
  CHECK(s.cpus_used(1) == 0);
}

// Was: 8 KB for each bundle of 1,024 GPUs that nothing held.
TEST_CASE("bundles that wait take no memory for their GPUs, and all groups have a bound of bundles") {
  ClusterConfig config;
  config.max_bundles = 5;
  GroupScript s(config);
  s.node_with_gpus(1, 2);
  const JobId job = s.job_on({});
  const GroupSpec large{{}, "", PlacementStrategy::kPack, {{0, 1024 * kGpu}, {0, kGpu}}};
  const GroupId waits = s.ask({{kDriver, 2}, job, GroupVerb::kMake, {}, large}).status.record.group;
  for (const Group::Use& use : s.head->groups().find(waits)->used) CHECK(use.gpus.empty());
  const GroupSpec small{{}, "", PlacementStrategy::kPack, {{0, 2 * kGpu}}};
  const GroupId ready = s.ask({{kDriver, 3}, job, GroupVerb::kMake, {}, small}).status.record.group;
  CHECK(s.head->groups().find(ready)->used[0].gpus == GpuUse(2));
  CHECK(s.make(job, 4, PlacementStrategy::kPack, {1, 1, 1}).error.code == ErrorCode::kLimit);
  s.ask(job, 5, GroupVerb::kRemove, waits);
  CHECK(s.make(job, 6, PlacementStrategy::kPack, {1, 1, 1}).ok);
}

// Was: the group and its room stayed for ever.
TEST_CASE("a head that restarts forgets a group that was removed and whose job and actors have ended") {
  GroupScript s;
  const JobId job = s.job_on({4});
  const GroupId group = s.make(job, 2, PlacementStrategy::kPack, {2}).status.record.group;
  const ActorId actor = s.up_in(job, 3, group, 2);
  s.on(JobEnded{kGateway, job, "done"});
  REQUIRE(s.record(group).state == GroupState::kEnding);
  s.store.erase("actor/" + to_string(actor));  // its end is durable, the group's is not
  s.restart();
  CHECK(s.head->groups().all().empty());
  CHECK(s.cpus_used(1) == 0);
}

TEST_CASE("a group whose search was cut off is tried again at ticks alone") {
  GroupScript s;
  s.node_with_gpus(1, 8);
  const JobId job = s.job_on({});
  std::vector<ActorId> large;  // 0.95 of each GPU stays free
  for (std::uint64_t i = 0; i < 16; ++i) {
    s.spawn_with_gpus(job, 2 + i, i < 8 ? 0.95 : 0.05);
    if (i < 8) large.push_back(s.the<StartActor>().actor);
  }
  for (const ActorId actor : large) s.down(actor);
  GroupSpec spec{{}, "", PlacementStrategy::kStrictPack, {}};
  for (int i = 0; i < 9; ++i) spec.bundles.push_back({0, kGpu / 10 * 4});
  for (int i = 0; i < 7; ++i) spec.bundles.push_back({0, kGpu / 10 * 3});
  for (int i = 0; i < 9; ++i) spec.bundles.push_back({0, kGpu / 10 * 2});
  const GroupId group = s.ask({{kDriver, 20}, job, GroupVerb::kMake, {}, spec}).status.record.group;
  REQUIRE(s.head->groups().find(group)->cut_off);
  s.node_with_gpus(2, 9);
  CHECK(s.record(group).state == GroupState::kWaiting);
  s.on(Tick{});
  CHECK(s.record(group).state == GroupState::kReady);
}

// Was: the end of one actor had all groups that wait looked for in all nodes, however many they were.
TEST_CASE("an event looks for room for some groups, and those behind them have their turn at ticks") {
  ClusterConfig config;
  config.group_looks = 3;
  GroupScript s(config);
  const JobId job = s.job_on({4});
  s.spawn(job, 2, "", 4);
  const ActorId actor = s.the<StartActor>().actor;
  for (std::uint64_t request = 3; request <= 5; ++request)
    s.make(job, request, PlacementStrategy::kPack, {8});  // no node is so large
  const GroupId small = s.make(job, 6, PlacementStrategy::kPack, {2}).status.record.group;
  s.down(actor);
  CHECK(s.record(small).state == GroupState::kWaiting);
  for (int tick = 0; tick < 4; ++tick) s.on(Tick{});
  CHECK(s.record(small).state == GroupState::kReady);
}

TEST_CASE("what waits is told which groups hold the room") {
  GroupScript s;
  const JobId job = s.job_on({4});
  s.make(job, 2, PlacementStrategy::kPack, {2, 1}, "train");
  s.spawn(job, 3, "", 2);
  CHECK(s.the<SpawnWaits>().reason ==
        "no node has 2 CPU free: the largest has 4, and the most that are free on one are 1; room is held by "
        "placement group train of job main (3 CPU)");
  const auto other = s.make(job, 4, PlacementStrategy::kPack, {2}, "second");
  CHECK(other.status.reason ==
        "bundle 0: no node has 2 CPU free: n1 has 1 of 4; room is held by placement group train of "
        "job main (3 CPU)");
}
