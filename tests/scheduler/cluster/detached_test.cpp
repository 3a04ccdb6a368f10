/// The head's machine as scripts: actors that outlive the driver that spawned them, and the jobs that wait
/// for the next one.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::cluster;
using troupe::test::kDriver;
using troupe::test::kGateway;
using troupe::test::Script;

namespace {

constexpr NodeId kNext{101};
constexpr ProcessAddress kNextDriver{kNext, ProcessId{8}};

/// A driver on its gateway, two nodes with two CPUs each, and a detached actor "it", which is up.
struct Detached : Script {
  explicit Detached(int max_restarts = 2, ClusterConfig with = {}) : Script(with) {
    node(1, 2);
    node(2, 2);
    gateway();
    job_id = job().job;
    id = spawn_detached(1, "it", max_restarts);
    at = started.node;
  }
  ActorId spawn_detached(std::uint64_t request, const std::string& name, int max_restarts,
                         ProcessAddress from = kDriver) {
    ActorSpec spec{job_id, "T", name, "arguments", {kCpu, true, {}}, max_restarts, 0, true};
    on(SpawnRequested{{from, request}, spec});
    if (get<StartActor>() == nullptr) return {};
    started = *get<StartActor>();
    on(ActorStarted{started.node, started.actor, ProcessId{9}, 1});
    return started.actor;
  }
  void driver_ends() { on(JobEnded{kGateway, job_id, "the driver has ended", kDriver.process}); }
  /// On three nodes: its job is parked, its driver's node is gone, and the actor has died.
  void parked_and_down() {
    on(Tick{});
    node(3, 2);
    driver_ends();
    on(NodeLeft{kGateway, "it left"});
    on(ActorDown{at, id, "signal 9", 1});
    on(Tick{});
  }
  JobAnswered next_driver(std::uint64_t request = 1) {
    on(NodeJoined{{kNext, "driver", "", "", 0, true}, {}, {}, {}});
    on(JobRegistered{"main", kNextDriver, request});
    return *get<JobAnswered>();
  }
  bool finds(ProcessAddress by = kNextDriver) {
    on(LookupActor{{by, 50}, job_id, "it"});
    return the<NameAnswered>().ok && the<NameAnswered>().actor == id;
  }
  const ActorRecord& record() const { return head->actors().at(id).record; }
  const JobRecord& job_record() const { return head->jobs().find(job_id)->record; }
  const JobRecord& stored() const { return std::get<JobRecord>(store.at("job/main")); }
  NodeId other() const { return {3 - at.value}; }
  /// What the node of its last life, or the keeper, would answer.
  void kept_by(NodeId node) { on(ActorArguments{{kDriver, 1}, id, true, "arguments", node}); }

  JobId job_id;
  ActorId id;
  NodeId at;
  StartActor started;
};

}  // namespace

TEST_CASE("a detached actor outlives its driver: the job is parked, and the next one of its name has it") {
  Detached s;
  const ActorId other = s.up(s.job_id, 2);
  s.on(LeaseRequested{NodeId{1}, s.job_id});
  SECTION("the driver says goodbye") {
    s.driver_ends();
  }
  SECTION("its node dies") {
    s.on(NodeLeft{kGateway, "it left"});
  }
  for (const EndJob& told : s.all<EndJob>()) CHECK(told.stays == std::vector<ActorId>{s.id});
  CHECK(s.get<EndJob>() != nullptr);
  CHECK(s.job_record().parked);
  CHECK(s.stored().parked);
  CHECK(s.record().state == ActorState::kAlive);
  CHECK(s.head->actors().at(other).record.state == ActorState::kEnding);
  CHECK(std::get<ActorRecord>(s.store.at("actor/" + to_string(other))).state == ActorState::kEnding);

  const JobAnswered next = s.next_driver();
  CHECK(next.job == s.job_id);
  CHECK(next.incarnation == 2);
  CHECK_FALSE(s.stored().parked);
  CHECK(s.stored().driver == kNextDriver);
  REQUIRE(s.get<JobTaken>() != nullptr);
  CHECK(s.index<Persist>() < s.index<JobAnswered>());
  CHECK(s.the<JobTaken>().driver == kNextDriver);
  CHECK(s.finds());
  // It may be killed as any actor, and its name is free then.
  s.on(KillRequested{kNext, s.job_id, s.id, "enough"});
  CHECK(s.the<KillActor>().node == s.at);
  s.on(ActorDown{s.at, s.id, "enough", 1});
  CHECK_FALSE(s.finds());
  CHECK(s.head->jobs().runs(s.job_id));
}

TEST_CASE(
    "a newer driver takes a job over whose driver lives, and what that one says later changes nothing") {
  Detached s;
  // On one node, as programs of submitted jobs are.
  s.on(JobRegistered{"main", {kGateway, ProcessId{8}}, 5});
  CHECK(s.the<JobAnswered>().job == s.job_id);
  CHECK(s.the<EndJob>().stays == std::vector<ActorId>{s.id});
  s.driver_ends();
  CHECK(s.job_record().driver == ProcessAddress{kGateway, ProcessId{8}});
  CHECK_FALSE(s.job_record().parked);
  s.on(JobEnded{kGateway, s.job_id, "the driver has ended", ProcessId{8}});
  CHECK(s.job_record().parked);
  s.driver_ends();  // a node that missed EndJob says it again, and hears who stays
  CHECK(s.the<EndJob>().stays == std::vector<ActorId>{s.id});
}

// Was: it became an actor of the newer driver's, who knew nothing of it, since both are on one node.
TEST_CASE("what a driver had on its way when another took its job over is refused") {
  Detached s;
  const ProcessAddress second{kGateway, ProcessId{8}};
  const auto registers = [&](ProcessAddress driver, std::uint64_t request) {
    s.on(JobRegistered{"main", driver, request});
    CHECK(s.the<JobAnswered>().job == s.job_id);
  };
  const auto spawn = [&](ProcessAddress from, std::uint64_t request, bool detached = false) {
    s.on(SpawnRequested{{from, request},
                        {s.job_id, "T", detached ? "late" : "", "", {kCpu, true, {}}, 0, 0, detached}});
    return s.get<StartActor>() != nullptr;
  };
  const auto reserve = [&](ProcessAddress from, std::uint64_t request) {
    s.on(GroupRequested{{from, request},
                        s.job_id,
                        GroupVerb::kMake,
                        {},
                        {{}, "", {}, std::vector<BundleDemand>{{kCpu, 0, {}}}}});
    return s.the<GroupAnswered>().ok;
  };
  registers(second, 5);
  CHECK_FALSE(spawn(kDriver, 10));
  CHECK(s.the<SpawnAnswered>().error.code == ErrorCode::kRefused);
  CHECK_FALSE(spawn(kDriver, 11, true));
  CHECK(s.the<SpawnAnswered>().error.why == kJobIsOver);
  CHECK_FALSE(reserve(kDriver, 12));
  CHECK(spawn(second, 13));
  CHECK(reserve(second, 14));
  registers(kDriver, 15);
  CHECK(spawn(kDriver, 16));
  CHECK_FALSE(spawn(second, 17));
}

TEST_CASE(
    "the only node of a parked job's actor is killed: its next life is on the node that comes after it") {
  ClusterConfig config;
  Script one(config);
  one.node(1, 2);
  one.gateway();
  const JobId job = one.job().job;
  one.on(SpawnRequested{{kDriver, 1}, {job, "T", "it", "arguments", {kCpu, true, {}}, -1, 0, true}});
  const StartActor first = *one.get<StartActor>();
  one.on(ActorStarted{first.node, first.actor, ProcessId{9}, 1});
  one.on(JobEnded{kGateway, job, "the driver has ended", kDriver.process});
  one.on(NodeLeft{kGateway, "it left"});
  one.on(NodeLeft{NodeId{1}, "killed by signal 9"});
  REQUIRE(one.head->log().size() == 1);
  CHECK_THAT(one.head->log()[0],
             Catch::Contains("'it' of job main starts again") && Catch::Contains("killed by signal 9"));
  one.pass(3, {});
  CHECK(one.head->jobs().runs(job));
  CHECK_THAT(one.head->why(one.head->actors().at(first.actor)), Catch::Contains("waits"));
  // One of another name that is there, too, has no executable of it: it is asked of its node's successor.
  one.on(NodeJoined{{NodeId{7}, "n1", "", "", 0, false}, {}, {}, {}});
  one.node(8, 2);
  CHECK(one.the<StartActor>().node == NodeId{8});
  CHECK(one.the<StartActor>().package_from == NodeId{7});
  CHECK(one.the<StartActor>().spec.payload == "arguments");
}

TEST_CASE("how a detached actor ended, and its parked job, is logged, and said to who looks for it") {
  // Was: both were gone without a word anywhere.
  Detached s(0);
  s.driver_ends();
  REQUIRE(s.head->log().size() == 1);
  CHECK(s.head->log()[0] == "job main is parked: the driver has ended");
  s.on(ActorDown{s.at, s.id, "killed by signal 9", 1});
  REQUIRE(s.head->log().size() == 2);
  CHECK_THAT(s.head->log()[0], Catch::Contains("detached actor T 'it' of job main has ended") &&
                                   Catch::Contains("killed by signal 9"));
  CHECK(s.head->log()[1] == "job main, which was parked, has ended: its last detached actor has ended");
  Detached killed;  // Was: "ended: job main ended: the driver has ended", which it did before it was gone.
  killed.on(KillRequested{kGateway, killed.job_id, killed.id, "enough"});
  killed.driver_ends();
  killed.on(ActorDown{killed.at, killed.id, "enough", 1});
  CHECK_THAT(killed.head->log().at(0), Catch::EndsWith("of job main has ended: enough"));
  s.on(Tick{});
  CHECK(s.head->log().empty());
  s.next_driver();
  s.on(LookupActor{{kNextDriver, 50}, s.the<JobAnswered>().job, "it"});
  CHECK_FALSE(s.the<NameAnswered>().ok);
  CHECK_THAT(s.the<NameAnswered>().error.what, Catch::Contains("killed by signal 9"));
  REQUIRE(s.head->detached_ends("main").size() == 1);
  CHECK_THAT(s.head->detached_ends("main")[0], Catch::StartsWith("it: ") && Catch::Contains("signal 9"));
  CHECK(s.head->detached_ends("other").empty());
}

TEST_CASE("the parked job goes with its last detached actor") {
  Detached s(0);
  const ActorId second = s.spawn_detached(2, "second", 0);
  s.driver_ends();
  const std::uint32_t incarnation = s.job_record().incarnation;
  SECTION("they are killed") {
    for (const ActorId id : {s.id, second}) {
      const NodeId node = s.head->actors().at(id).record.node;
      CHECK(s.job_record().parked);
      s.on(KillRequested{NodeId{}, s.job_id, id, "by the head's owner"});  // the head's shell says so
      CHECK(s.get<KillActor>() != nullptr);
      s.on(ActorDown{node, id, "killed", 1});
    }
  }
  SECTION("they die, and have no other life") {
    s.on(NodeLeft{s.at, "it left"});
    s.on(NodeLeft{s.other(), "it left"});
  }
  SECTION("the job is stopped") {
    CHECK(s.head->parked_jobs_of("main") == std::vector<JobId>{s.job_id});
    s.on(SubmissionStopRequested{"main"});
    CHECK(s.the<EndJob>().stays.empty());
  }
  CHECK_FALSE(s.head->jobs().runs(s.job_id));
  CHECK(s.stored().ended);
  CHECK_FALSE(s.stored().parked);
  const JobAnswered next = s.next_driver();
  CHECK(next.job != s.job_id);
  CHECK(next.incarnation == incarnation + 1);
}

TEST_CASE("one that dies without its driver starts again, with what head and nodes have kept") {
  Detached s;
  s.on(Tick{});
  s.on(NodeLeft{kGateway, "it left"});
  SECTION("its process dies") {
    s.on(ActorDown{s.at, s.id, "signal 9", 1});
  }
  SECTION("its node dies: another one had the executable from it") {
    s.on(NodeLeft{s.at, "it left"});
  }
  s.on(Tick{});
  REQUIRE(s.get<StartActor>() != nullptr);
  const StartActor start = *s.get<StartActor>();
  CHECK(start.spec.payload == "arguments");
  CHECK(start.incarnation == 2);
  CHECK(start.driver == ProcessAddress{});  // its output goes nowhere
  CHECK((start.package_from == s.at || start.package_from == s.other() || !s.head->nodes().contains(s.at)));
  s.on(ActorStarted{start.node, s.id, ProcessId{10}, 2});
  s.next_driver();
  CHECK(s.finds());
  // Its last life.
  s.on(ActorDown{start.node, s.id, "signal 9", 2});
  s.pass(1, {NodeId{1}, NodeId{2}, kNext});
  CHECK(s.the<StartActor>().driver == kNextDriver);
  s.on(ActorStarted{s.the<StartActor>().node, s.id, ProcessId{11}, 3});
  s.on(JobEnded{kNext, s.job_id, "done", kNextDriver.process});
  CHECK(s.job_record().parked);
  s.on(ActorDown{s.record().node, s.id, "signal 9", 3});
  CHECK(s.record().state == ActorState::kDead);
  CHECK(s.stored().ended);
}

TEST_CASE("a second node keeps what a detached actor needs, and a third one when that dies") {
  Detached s;
  const auto keeper = [&] { return s.head->actors().at(s.id).keeper; };
  CHECK(keeper() == s.other());
  s.node(3, 2);
  CHECK(s.get<KeepArguments>() == nullptr);  // one is enough
  s.node(s.other().value, 2);                // its link broke: it may have missed the word
  REQUIRE(s.get<KeepArguments>() != nullptr);
  CHECK(keeper() == s.other());
  s.on(NodeLeft{s.other(), "it left"});
  CHECK(s.the<KeepArguments>().to == NodeId{3});
  CHECK(s.the<KeepArguments>().from == s.at);
  CHECK(s.the<KeepArguments>().payload == "arguments");
  s.driver_ends();
  s.on(NodeLeft{s.at, "it left"});
  s.node(4, 2);
  s.on(Tick{});
  CHECK((s.the<StartActor>().node == NodeId{3} || s.the<StartActor>().package_from == NodeId{3}));
}

TEST_CASE(
    "a head that starts again knows a parked job, and asks nodes for what its actors are constructed with") {
  Detached s;
  s.driver_ends();
  s.on(NodeLeft{kGateway, "it left"});
  s.restart();
  CHECK(s.job_record().parked);
  s.node(s.at.value, 2, {{s.id, ProcessId{9}, 1}});
  CHECK(s.the<ArgumentsWanted>().node == s.at);
  SECTION("its node has it") {
    s.kept_by(s.at);
    s.node(s.other().value, 2);
    CHECK(s.get<ArgumentsWanted>() == nullptr);
    CHECK(s.the<KeepArguments>().to == s.other());
    s.on(ActorDown{s.at, s.id, "signal 9", 1});
    s.on(Tick{});
  }
  SECTION("its node dies first, and another one has it") {
    s.on(NodeLeft{s.at, "it left"});
    s.node(s.other().value, 2);
    CHECK(s.the<ArgumentsWanted>().node == s.other());
    s.on(ActorArguments{{kDriver, 1}, s.id, false, "", NodeId{7}});  // who has not says nothing about others
    CHECK(s.record().state == ActorState::kRestarting);
    s.kept_by(s.other());
  }
  SECTION("nobody has it: it has no other life, and says why") {
    s.on(ActorDown{s.at, s.id, "signal 9", 1});
    s.pass(20, {s.at});
    CHECK_THAT(
        s.head->why(s.head->actors().at(s.id)),
        Catch::Contains("waits for a node that has what it is constructed with, for 40 s more at most"));
    s.pass(41, {s.at});
    CHECK(s.record().state == ActorState::kDead);
    CHECK_THAT(s.head->actors().at(s.id).reason, Catch::Contains("no node has what it is constructed with"));
    CHECK(s.stored().ended);
    return;
  }
  CHECK(s.the<StartActor>().spec.payload == "arguments");
  s.on(ActorStarted{s.the<StartActor>().node, s.id, ProcessId{10}, 2});
  s.next_driver();
  CHECK(s.finds());
}

TEST_CASE("a node that missed the end of a driver, or the next one, hears of it when it registers again") {
  // Lines of the actor waited for a driver that was gone, and the actor with them.
  Detached s;
  s.driver_ends();
  s.restart();
  s.node(s.at.value, 2, {{s.id, ProcessId{9}, 1}});
  CHECK(s.the<EndJob>().to == s.at);
  CHECK(s.the<EndJob>().stays == std::vector<ActorId>{s.id});
  s.next_driver();
  s.node(s.at.value, 2, {{s.id, ProcessId{9}, 1}});
  CHECK(s.get<EndJob>() == nullptr);
  CHECK(s.the<JobTaken>().to == s.at);
  CHECK(s.the<JobTaken>().driver == kNextDriver);
}

TEST_CASE("after a head's death the executable comes from the node that gave the arguments") {
  // It was asked of whoever spawned the actor, who was gone: the actor died with its second life.
  Detached s;
  s.driver_ends();
  s.on(NodeLeft{kGateway, "it left"});
  s.restart();
  s.node(s.other().value, 0);
  s.node(3, 2);
  s.on(NodeLeft{s.at, "it left"});
  s.kept_by(s.other());
  CHECK(s.the<StartActor>().node == NodeId{3});
  CHECK(s.the<StartActor>().package_from == s.other());
}

TEST_CASE("one that was to start again when the head died has an end, too, where no node has its arguments") {
  // It was restored without a deadline: the job stayed parked for ever.
  Detached s;
  s.driver_ends();
  s.on(ActorDown{s.at, s.id, "signal 9", 1});
  REQUIRE(s.record().state == ActorState::kRestarting);
  s.restart();
  REQUIRE(s.record().state == ActorState::kRestarting);
  s.node(s.at.value, 2);
  s.pass(61, {s.at});
  CHECK(s.record().state == ActorState::kDead);
  CHECK_THAT(s.head->actors().at(s.id).reason, Catch::Contains("no node has what it is constructed with"));
  CHECK(s.stored().ended);
}

// Was: "it was killed, or had to end", by whom and why the head had lost.
TEST_CASE("why an actor is killed outlives the head") {
  Detached s;
  s.on(KillRequested{kGateway, s.job_id, s.id, "enough"});
  REQUIRE(s.record().state == ActorState::kEnding);
  s.restart();
  s.node(s.at.value, 2);  // without it
  CHECK(s.record().state == ActorState::kDead);
  CHECK(s.head->actors().at(s.id).reason == "enough");
}

TEST_CASE("a parked job starts detached actors alone, asked for by those that it has") {
  Detached s;
  s.driver_ends();
  const ProcessAddress it{s.at, ProcessId{9}};
  s.on(SpawnRequested{{it, 1}, {s.job_id, "T", "", "", {0, true, {}}}});
  CHECK_THAT(s.the<SpawnAnswered>().error.why, Catch::Contains("no program of job main runs"));
  s.on(LeaseRequested{s.at, s.job_id});
  CHECK_FALSE(s.the<LeaseAnswered>().ok);
  s.on(GroupRequested{{it, 2}, s.job_id, GroupVerb::kMake, {}, {{}, "", {}, {{kCpu, 0}}}});
  CHECK_FALSE(s.the<GroupAnswered>().ok);
  const ActorId child = s.spawn_detached(3, "child", 0, it);
  CHECK(s.started.package_from == s.at);
  s.on(ActorDown{s.at, s.id, "it has done its work", 1, true});
  CHECK(s.job_record().parked);
  s.next_driver();
  s.on(LeaseRequested{s.at, s.job_id});
  CHECK(s.the<LeaseAnswered>().driver == kNextDriver);
  CHECK(s.head->actors().at(child).record.state == ActorState::kAlive);
}

TEST_CASE("a parked job ends with the node that was to start the last of its actors, whose request is gone") {
  // It stayed parked, with no actor.
  Detached s(0);
  s.driver_ends();
  const ProcessAddress it{s.at, ProcessId{9}};
  // Beside the one that asks for it there is no room.
  s.on(SpawnRequested{{it, 1}, {s.job_id, "T", "child", "", {2 * kCpu, true, {}}, 0, 0, true}});
  CHECK(s.the<StartActor>().node == s.other());
  s.on(ActorDown{s.at, s.id, "it has done its work", 1, true});
  s.restart();
  CHECK(s.job_record().parked);
  s.on(NodeLeft{s.other(), "it left"});
  CHECK_FALSE(s.head->jobs().runs(s.job_id));
  CHECK(s.stored().ended);
}

TEST_CASE("what cannot outlive its driver is refused") {
  const ActorSpec good{JobId{1}, "T", "it", "", {0, true, {}}, 0, 0, true};
  CHECK_FALSE(check_spec(good));
  ActorSpec spec = good;
  spec.name = "";
  CHECK_THAT(check_spec(spec)->why, Catch::Contains("it has no name"));
  spec = good;
  spec.demand.isolated = false;
  CHECK_THAT(check_spec(spec)->why, Catch::Contains("shares its process"));
  spec = good;
  spec.demand.group = GroupId{3};
  CHECK_THAT(check_spec(spec)->why, Catch::Contains("placement group"));
  ClusterConfig embedded;
  embedded.ends_with_program = true;
  Detached s(0, embedded);
  CHECK_THAT(s.the<SpawnAnswered>().error.why, Catch::Contains("nothing would outlive it"));
}

TEST_CASE("one whose first life has not begun ends with its driver, who has no answer") {
  Detached s;
  s.on(SpawnRequested{{kDriver, 2}, {s.job_id, "T", "late", "", {kCpu, true, {}}, 0, 0, true}});
  const StartActor start = *s.get<StartActor>();
  s.driver_ends();
  CHECK(s.the<EndJob>().stays == std::vector<ActorId>{s.id});
  s.on(ActorStarted{start.node, start.actor, ProcessId{12}});
  CHECK(s.the<KillActor>().actor == start.actor);
}

TEST_CASE("the next driver has the name of an actor that ends before it was up") {
  // A program that was ended while its actors started, and started again at once, was told that they are
  // taken.
  Detached s;
  s.spawn(s.job_id, 2, "late");
  const StartActor start = *s.get<StartActor>();
  s.driver_ends();
  s.next_driver();
  s.on(SpawnRequested{{kNextDriver, 2}, {s.job_id, "T", "late", "", {kCpu, true, {}}}});
  CHECK(s.get<SpawnAnswered>() == nullptr);
  CHECK(s.the<ConfirmActor>().actor == start.actor);
  s.on(ActorDown{start.node, start.actor, "its job ended", 1});
  CHECK(s.the<StartActor>().spec.name == "late");
}

TEST_CASE("a first life whose start the head's death swallowed begins when its request is repeated") {
  // The simulator found it: a node gave the head its arguments, and the request then started nothing.
  Detached s;
  const ActorSpec late{s.job_id, "T", "late", "arguments", {kCpu, true, {}}, 2, 0, true};
  s.on(SpawnRequested{{kDriver, 2}, late});
  const StartActor start = *s.get<StartActor>();
  s.restart();
  s.gateway();
  for (const ArgumentsWanted& wanted : s.all<ArgumentsWanted>()) CHECK(wanted.actor == s.id);
  s.on(ActorArguments{{kDriver, 2}, start.actor, true, "arguments", kGateway});
  s.node(start.node.value, 2);
  s.on(SpawnRequested{{kDriver, 2}, late});
  CHECK(s.the<StartActor>().actor == start.actor);
}

TEST_CASE(
    "a further life whose executable cannot be had is tried again, from whoever may have it, so often") {
  // Was: the first node that was busy ended the actor for good.
  Detached s(1);
  s.parked_and_down();
  const auto fails = [&] {
    REQUIRE(s.get<StartActor>() != nullptr);
    const StartActor start = *s.get<StartActor>();
    CHECK(start.package_from != start.node);
    CHECK(s.head->nodes().contains(start.package_from));
    s.on(ActorFailed{
        start.node, s.id, {ErrorCode::kLimit, "no executable", "it is busy", ""}, start.incarnation, true});
  };
  const auto waits = [&] {
    for (int i = 0; i < 15 && s.get<StartActor>() == nullptr; ++i)
      s.pass(1, {NodeId{1}, NodeId{2}, NodeId{3}});
  };
  SECTION("until it is there") {
    for (int i = 0; i < 5; ++i) {
      fails();
      CHECK(s.record().state == ActorState::kRestarting);
      CHECK(s.record().restarts == 1);  // they use up none
      waits();
    }
    const StartActor start = *s.get<StartActor>();
    s.on(ActorStarted{start.node, s.id, ProcessId{10}, start.incarnation});
    CHECK(s.record().state == ActorState::kAlive);
  }
  SECTION("and no more") {
    for (int i = 0; i < s.config.starts_without_executable; ++i) {
      fails();
      waits();
    }
    fails();
    CHECK(s.record().state == ActorState::kDead);
    CHECK_THAT(s.head->actors().at(s.id).reason, Catch::Contains("it is busy"));
    CHECK(s.stored().ended);
  }
}

TEST_CASE("a life that ends with its node before it is up leaves the node known that has the executable") {
  // Was: where that was the other one that had it, the next life asked a node that was dead.
  Detached s(5);
  s.parked_and_down();
  const NodeId gone = s.the<StartActor>().node;
  s.on(NodeLeft{gone, "it left"});
  std::vector<NodeId> alive;
  for (const NodeId node : {NodeId{1}, NodeId{2}, NodeId{3}}) {
    if (node != gone) alive.push_back(node);
  }
  for (int i = 0; i < 15 && s.get<StartActor>() == nullptr; ++i) s.pass(1, alive);
  REQUIRE(s.get<StartActor>() != nullptr);
  const StartActor next = *s.get<StartActor>();
  const auto has_it = [&](NodeId node) { return node != gone && (node == s.at || node == s.other()); };
  CHECK((has_it(next.node) || has_it(next.package_from)));
}

TEST_CASE("the record of a submission, and with it its package, stays while its job is parked") {
  // Was: seven days after its program had ended its actors could start nowhere any more.
  ClusterConfig config;
  config.keep_ended_submissions = std::chrono::seconds(5);
  Script s(config);
  s.node(1, 4);
  SubmissionSpec spec;
  spec.id = "counts";
  spec.program = {"./counts"};
  spec.package = std::string(64, 'a');
  s.on(SubmissionRequested{spec});
  const StartDriver start = *s.get<StartDriver>();
  s.on(DriverStarted{start.node, start.spec.id, start.attempt});
  const ProcessAddress driver{NodeId{1}, ProcessId{4}};
  s.on(JobRegistered{"counting", driver, 1, "counts"});
  const JobId job = s.the<JobAnswered>().job;
  s.on(SpawnRequested{{driver, 2}, {job, "T", "it", "", {kCpu, true, {}}, 0, 0, true}});
  const StartActor actor = *s.get<StartActor>();
  s.on(ActorStarted{actor.node, actor.actor, ProcessId{9}});
  s.on(JobEnded{NodeId{1}, job, "the driver has ended", driver.process});
  s.on(DriverEnded{
      start.node, start.spec.id, start.attempt, {.ran = true, .exit_code = 0, .how = "exit code 0"}});
  REQUIRE(s.head->jobs().find(job)->record.parked);
  s.pass(20, {NodeId{1}});
  CHECK(s.head->submissions().names_package(spec.package));
  s.on(KillRequested{NodeId{1}, job, actor.actor, "enough"});
  s.on(ActorDown{actor.node, actor.actor, "enough", 1});
  s.pass(20, {NodeId{1}});
  CHECK_FALSE(s.head->submissions().names_package(spec.package));
}

namespace {

/// A node of 8 CPUs, and submissions whose programs run there.
struct Taken : Script {
  explicit Taken(ClusterConfig with = {}) : Script(with) {
    node(1, 8);
    gateway();
    for (const char* queue : {"a", "b"}) on(QueueChanged{{queue, 4 * kCpu, -1, 10'000}});
  }
  /// Its program, which registers the job: "main".
  JobId runs(const std::string& id, const std::string& queue, ProcessAddress driver) {
    SubmissionSpec spec;
    spec.id = id;
    spec.program = {"./" + id};
    spec.queue = queue;
    spec.package = std::string(64, id.back());
    on(SubmissionRequested{spec});
    on(DriverStarted{NodeId{1}, id, 1});
    return registers(id, driver);
  }
  JobId registers(const std::string& submission, ProcessAddress driver) {
    on(JobRegistered{"main", driver, 1, submission});
    return the<JobAnswered>().job;
  }
  void ends(const std::string& id, JobId job, ProcessAddress driver) {
    on(JobEnded{driver.node, job, "the driver has ended", driver.process});
    on(DriverEnded{NodeId{1}, id, 1, {.ran = true, .exit_code = 0, .how = "exit code 0"}});
  }
  ActorId spawn_detached(JobId job, ProcessAddress from, std::uint64_t request, int cpus = 1) {
    const std::string name = "it" + std::to_string(request);
    ActorSpec spec{job, "T", name, "arguments", {cpus * kCpu, true, {}}, -1, 0, true};
    on(SpawnRequested{{from, request}, spec});
    if (get<StartActor>() == nullptr) return {};
    const StartActor start = *get<StartActor>();
    on(ActorStarted{start.node, start.actor, ProcessId{30 + request}, 1});
    return start.actor;
  }
  std::int64_t used(const std::string& queue) const {
    for (const QueueStatus& one : head->queue_statuses()) {
      if (one.queue.name == queue) return one.cpu_used_e4 / kCpu;
    }
    return -1;
  }
  bool has_package(const std::string& id) const {
    return head->submissions().names_package(std::string(64, id.back()));
  }
  const JobRecord& main() const { return head->jobs().named("main")->record; }

  const ProcessAddress first{NodeId{1}, ProcessId{4}}, second{NodeId{1}, ProcessId{5}};
};

}  // namespace

// Was: it stayed that of the first: `troupe job stop` of the second ended nothing, its actors were counted to
// the first's queue, and once the first's record was gone to none.
TEST_CASE("a parked job that another submission's program takes over is of that one, and of its queue") {
  Taken s;
  const JobId job = s.runs("job-a", "a", s.first);
  s.spawn_detached(job, s.first, 2, 3);
  CHECK(s.used("a") == 3);
  s.ends("job-a", job, s.first);
  CHECK(s.head->parked_jobs_of("job-a") == std::vector{job});

  CHECK(s.runs("job-b", "b", s.second) == job);
  CHECK(s.main().submission == "job-b");
  CHECK(std::get<JobRecord>(s.store.at("job/main")).submission == "job-b");
  CHECK(s.used("a") == 0);
  CHECK(s.used("b") == 3);
  s.on(SpawnRequested{{s.second, 3}, {job, "T", "", "", {2 * kCpu, true, {}}}});
  const auto why = [&](const std::string& id) { return s.head->why(*s.head->submissions().find(id)); };
  CHECK_THAT(why("job-b"), Catch::Contains("an actor of it waits") && Catch::Contains("queue b holds 3 CPU"));
  CHECK(why("job-a") == "exit code 0");
  s.on(SpawnCancelled{{s.second, 3}});
  s.ends("job-b", job, s.second);
  CHECK(s.head->parked_jobs_of("job-a").empty());
  CHECK(s.head->parked_jobs_of("job-b") == std::vector{job});
  s.restart();
  s.node(1, 8, {{*s.head->jobs().find(job)->actors.begin(), ProcessId{32}, 1}});
  CHECK(s.used("b") == 3);

  // A program that nobody submitted is in no queue, nor are the actors that it takes over.
  s.gateway();
  CHECK(s.registers("", kDriver) == job);
  CHECK(s.main().submission.empty());
  CHECK(s.used("b") == 0);
  s.on(JobEnded{kGateway, job, "the driver has ended", kDriver.process});
  s.on(SubmissionStopRequested{"job-b"});
  CHECK(s.main().parked);
  s.on(SubmissionStopRequested{"main"});
  CHECK(s.main().ended);
}

TEST_CASE("a further life that one queue stops starts when the next one of its job lets it") {
  Taken s;
  const JobId job = s.runs("job-a", "a", s.first);
  const ActorId actor = s.spawn_detached(job, s.first, 2, 3);
  s.ends("job-a", job, s.first);
  s.on(ActorDown{NodeId{1}, actor, "signal 9", 1});
  s.on(QueueChanged{{"a", 2 * kCpu, -1, 10'000}});
  s.on(Tick{});
  CHECK(s.head->waiting().size() == 1);
  s.runs("job-b", "b", s.second);
  CHECK(s.the<StartActor>().actor == actor);
  CHECK(s.used("b") == 3);
}

// Was: they went while the second ran, and the first's actors could start nowhere any more.
TEST_CASE("records of submissions stay while detached actors that their programs spawned live") {
  ClusterConfig config;
  config.keep_ended_submissions = std::chrono::seconds(5);
  Taken s(config);
  const JobId job = s.runs("job-a", "a", s.first);
  const ActorId a = s.spawn_detached(job, s.first, 2);
  s.ends("job-a", job, s.first);
  s.runs("job-b", "b", s.second);
  const ActorId b = s.spawn_detached(job, s.second, 3);
  const auto later = [&] { s.pass(20, {NodeId{1}, kGateway}); };
  later();
  CHECK(s.has_package("job-a"));
  s.ends("job-b", job, s.second);
  s.restart();
  s.gateway();
  s.node(1, 8, {{a, ProcessId{32}, 1}, {b, ProcessId{33}, 1}});
  CHECK(s.registers("", kDriver) == job);
  later();
  CHECK((s.has_package("job-a") && s.has_package("job-b")));
  s.on(KillRequested{kGateway, job, a, "enough"});
  s.on(ActorDown{NodeId{1}, a, "enough", 1});
  later();
  CHECK_FALSE(s.has_package("job-a"));
  CHECK(s.has_package("job-b"));
}

namespace {

/// The node of a life says that it has saved, and the keeper, if it is told, that it has that.
void saves(Detached& s, const wire::Bytes& state, std::uint64_t version, std::uint32_t life = 1) {
  s.on(StateSaved{{{s.record().node, ProcessId{9}}, version}, s.id, life, {version, state}});
}
void save(Detached& s, const wire::Bytes& state, std::uint64_t version, std::uint32_t life = 1) {
  saves(s, state, version, life);
  if (s.get<KeepState>() != nullptr) s.on(StateKept{s.the<KeepState>().to, s.id, version});
}
const wire::Bytes& state_of(const Detached& s) {
  return s.head->actors().at(s.id).state.bytes;
}
const wire::Bytes kOlder(1), kNewest(2);

}  // namespace

TEST_CASE("what a detached actor saves is kept here and by another node, and its next life has it") {
  Detached s;
  saves(s, kOlder, 1);
  const auto written = std::get<ActorRecord>(s.the<Persist>().record);
  CHECK(written.has_saved);  // and not what: it may hold a secret
  CHECK(written.spec.payload.empty());
  CHECK(s.the<KeepState>().to == s.other());
  CHECK(s.the<KeepState>().state.bytes == kOlder);
  CHECK(s.get<KeepArguments>() == nullptr);  // it has those
  // The answer waits for the other node: head and node may die, one soon after the other.
  CHECK(s.get<Acknowledged>() == nullptr);
  saves(s, kOlder, 1);  // said again
  CHECK(s.get<Acknowledged>() == nullptr);
  s.on(StateKept{s.other(), s.id, 0});
  s.on(StateKept{NodeId{77}, s.id, 1});
  CHECK(s.get<Acknowledged>() == nullptr);
  s.on(StateKept{s.other(), s.id, 1});
  CHECK(s.the<Acknowledged>().ok);
  CHECK(s.the<Acknowledged>().to == Requester{{s.at, ProcessId{9}}, 1});
  s.on(StateKept{s.other(), s.id, 1});
  CHECK(s.get<Acknowledged>() == nullptr);
  saves(s, kOlder, 1);
  CHECK(s.the<Acknowledged>().ok);
  // Not for long: it may be stopped.
  saves(s, kNewest, 2);
  CHECK(s.get<Persist>() == nullptr);
  CHECK(s.the<KeepState>().state.bytes == kNewest);
  s.now += std::chrono::milliseconds(249);
  s.on(Tick{});
  CHECK(s.get<Acknowledged>() == nullptr);
  s.now += std::chrono::milliseconds(1);
  s.on(Tick{});
  CHECK(s.the<Acknowledged>().to.request == 2);
  s.on(Tick{});
  CHECK(s.get<Acknowledged>() == nullptr);
  CHECK(s.get<KeepState>() == nullptr);
  SECTION("its process dies") {
    s.on(ActorDown{s.at, s.id, "signal 9", 1});
  }
  SECTION("its node dies") {
    s.on(NodeLeft{s.at, "it left"});
  }
  s.on(Tick{});
  CHECK(s.the<StartActor>().spec.payload == "arguments");
  CHECK(s.the<StartActor>().state.bytes == kNewest);
  const NodeId node = s.the<StartActor>().node;
  // The life before is not heard any more, wherever it is.
  s.on(StateSaved{{{node, ProcessId{9}}, 2}, s.id, 1, {3, kOlder}});
  CHECK_FALSE(s.the<Acknowledged>().ok);
  CHECK(s.the<Acknowledged>().error.code == ErrorCode::kActorDied);
  // It may save before the head hears that it is up.
  const wire::Bytes of_its_constructor(7);
  save(s, of_its_constructor, 3, 2);
  CHECK(s.the<Acknowledged>().ok);
  s.on(ActorStarted{node, s.id, ProcessId{10}, 2});
  CHECK(state_of(s) == of_its_constructor);
  save(s, wire::Bytes(kMaxPayloadBytes), 4, 2);  // with its arguments it is too large
  CHECK(s.the<Acknowledged>().error.code == ErrorCode::kLimit);
  CHECK_THAT(s.the<Acknowledged>().error.why, Catch::Contains("with its constructor's arguments it has"));
  CHECK(state_of(s) == of_its_constructor);
  // Said again, late: the newer one stays.
  save(s, kOlder, 2, 2);
  CHECK(s.the<Acknowledged>().ok);
  CHECK(state_of(s) == of_its_constructor);
}

TEST_CASE("the head takes no more of what actors have saved than it has room for") {
  ClusterConfig small;
  small.max_payload_bytes = 100;
  Detached s(2, small);
  save(s, wire::Bytes(91), 1);  // and 9 of its arguments
  CHECK(s.the<Acknowledged>().ok);
  save(s, wire::Bytes(92), 2);
  CHECK_THAT(s.the<Acknowledged>().error.why, Catch::Contains("it has 92 bytes"));
  save(s, wire::Bytes(50), 3);  // in place of the other
  CHECK(s.the<Acknowledged>().ok);
}

TEST_CASE("a new keeper gets the state with the arguments") {
  Detached s;
  s.node(3, 2);
  save(s, kNewest, 1);
  s.on(NodeLeft{s.other(), "it left"});
  CHECK(s.the<KeepArguments>().state.bytes == kNewest);
  s.on(Tick{});
  CHECK(s.get<KeepState>() == nullptr);
}

TEST_CASE("a head that starts again while an actor restarts waits for the node on which that died") {
  // Was: its record did not say where, and the first node that came gave an older state than its callers
  // knew.
  Detached s;
  save(s, kOlder, 1);
  s.on(Tick{});
  save(s, kNewest, 2);
  s.on(NodeLeft{kGateway, "it left"});
  s.on(ActorDown{s.at, s.id, "signal 9", 1});
  s.restart();
  s.node(s.other().value, 2);
  s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", s.other(), {1, kOlder}});
  CHECK(s.get<StartActor>() == nullptr);
  SECTION("it has it") {
    s.node(s.at.value, 2);
    s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", s.at, {2, kNewest}});
    CHECK(s.the<StartActor>().state.bytes == kNewest);
  }
  SECTION("it is dead: the other one's is the newest that there is") {
    s.on(NodeLeft{s.at, "it left"});
    s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", s.other(), {1, kOlder}});
    CHECK(s.the<StartActor>().state.bytes == kOlder);
  }
}

TEST_CASE("a head that starts again takes the newest state that a node has, and waits for the last life's") {
  Detached s;
  s.driver_ends();
  s.on(NodeLeft{kGateway, "it left"});
  s.restart();
  s.node(s.at.value, 2, {{s.id, ProcessId{9}, 1}});
  s.node(s.other().value, 2);
  const auto has = [&](NodeId node, const wire::Bytes& state, std::uint64_t version) {
    s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", node, {version, state}});
  };
  SECTION("it lives") {
    has(s.other(), kOlder, 4);
    has(s.at, kNewest, 5);
    has(s.other(), kOlder, 4);
    s.on(ActorDown{s.at, s.id, "signal 9", 1});
  }
  SECTION("it has died meanwhile") {
    s.on(ActorDown{s.at, s.id, "signal 9", 1});
    has(s.other(), kOlder, 4);
    CHECK(s.get<StartActor>() == nullptr);
    has(s.at, kNewest, 5);
  }
  SECTION("it has died, and its node after it: the other one is asked again") {
    s.on(ActorDown{s.at, s.id, "signal 9", 1});
    has(s.other(), kOlder, 4);
    s.on(NodeLeft{s.at, "it left"});
    CHECK(s.the<ArgumentsWanted>().node == s.other());
    has(s.other(), kNewest, 4);
  }
  s.on(Tick{});
  CHECK(state_of(s) == kNewest);
  CHECK(s.record().state == ActorState::kStarting);
}

TEST_CASE("a head that starts again takes no state of another node while that of the actor's may come") {
  // Was: the node that registered first gave what it had, and the actor's own was not asked any more.
  Detached s;
  s.driver_ends();
  s.on(NodeLeft{kGateway, "it left"});
  s.restart();
  s.node(s.other().value, 2);
  s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", s.other(), {4, kOlder}});
  CHECK_FALSE(s.head->actors().at(s.id).has_payload);
  SECTION("it lives") {
    s.node(s.at.value, 2, {{s.id, ProcessId{9}, 1}});
    CHECK(s.the<ArgumentsWanted>().node == s.at);
    s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", s.at, {5, kNewest}});
    s.on(ActorDown{s.at, s.id, "signal 9", 1});
  }
  SECTION("it died while the head was away") {
    s.node(s.at.value, 2);
    CHECK(s.record().state == ActorState::kRestarting);
    s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", s.at, {5, kNewest}});
  }
  SECTION("its node is dead: the other one is asked again") {
    s.on(NodeLeft{s.at, "it left"});
    CHECK(s.the<ArgumentsWanted>().node == s.other());
    s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", s.other(), {4, kNewest}});
  }
  s.on(Tick{});
  CHECK(state_of(s) == kNewest);
  CHECK(s.record().state == ActorState::kStarting);
}

TEST_CASE(
    "a node that has an older state and answers first starts no life while another may have the newest") {
  Detached s;
  s.node(3, 2);
  save(s, kOlder, 1);
  s.restart();
  const NodeId keeper{3};
  for (const NodeId node : {s.other(), keeper}) s.node(node.value, 2);
  s.on(NodeLeft{s.at, "it is dead"});
  const auto has = [&](NodeId node, const wire::Bytes& state, std::uint64_t version) {
    s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", node, {version, state}});
  };
  has(s.other(), kOlder, 1);
  CHECK(s.get<StartActor>() == nullptr);
  SECTION("the other answers") {
    has(keeper, kNewest, 5);
    CHECK(s.record().state == ActorState::kRestarting);
    s.now += std::chrono::seconds(2);
    s.on(Tick{});
    CHECK(state_of(s) == kNewest);
  }
  SECTION("it does not: the first one's is what there is") {
    s.now += std::chrono::seconds(2);
    s.on(Tick{});
    CHECK(state_of(s) == kOlder);
  }
  CHECK(s.record().state == ActorState::kStarting);
}

// Was: the node of the program that spawned it has its arguments, and the actor began anew without a word.
TEST_CASE(
    "an actor that has saved a state has no life without one: it is dead when its nodes and the head are") {
  Detached s;
  save(s, kNewest, 1);
  s.restart();
  s.on(NodeLeft{s.other(), "it is dead"});
  s.on(NodeLeft{s.at, "it is dead"});
  s.on(ActorArguments{{kDriver, 1}, s.id, true, "arguments", kGateway, {}});
  for (int second = 0; second < 70; ++second) {
    s.now += std::chrono::seconds(1);
    s.on(Heartbeat{kGateway});
    s.on(Tick{});
    CHECK(s.get<StartActor>() == nullptr);
  }
  CHECK(s.record().state == ActorState::kDead);
}

TEST_CASE("who started a job and its detached actors is written down, and changes with the next driver") {
  Script s;
  s.node(1, 2);
  s.gateway();
  const auto registered = [&](std::uint64_t request, const std::string& by) {
    JobRegistered e{"main", kDriver, request};
    e.started_by = by;
    s.on(e);
    return s.the<JobAnswered>().job;
  };
  const JobId job = registered(1, "machine/1");
  const auto spawn = [&](std::uint64_t request, const std::string& name, bool detached) {
    s.on(SpawnRequested{{kDriver, request}, {job, "T", name, "", {0, true, {}}, 0, 0, detached}});
    const StartActor start = *s.get<StartActor>();
    s.on(ActorStarted{start.node, start.actor, ProcessId{10 + request}, 1});
    return std::get<ActorRecord>(s.store.at("actor/" + to_string(start.actor))).started_by;
  };
  CHECK(spawn(2, "it", true) == "machine/1");
  CHECK(spawn(3, "other", false).empty());
  CHECK(registered(4, "") == job);  // another program of that name: the head's owner's
  CHECK(std::get<JobRecord>(s.store.at("job/main")).started_by.empty());
  CHECK(spawn(5, "of the owner", true).empty());
  // Was: what an actor of the machine spawned was of whoever had the job by then.
  s.on(SpawnRequested{{{NodeId{1}, ProcessId{12}}, 1}, {job, "T", "its own", "", {0, true, {}}, 0, 0, true}});
  CHECK(s.head->actors().at(s.the<StartActor>().actor).record.started_by == "machine/1");
}
