/// The head's machine as scripts: actors that are started again when they die.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::cluster;
using std::chrono::milliseconds;
using std::chrono::seconds;
using troupe::test::kDriver;
using troupe::test::kGateway;
using troupe::test::Script;

namespace {

/// A driver on its gateway, two nodes with a CPU each, and an actor with other lives, which is up.
struct Restarting : Script {
  explicit Restarting(int max_restarts = 2, const std::string& name = {}) {
    node(1, 1);
    node(2, 1);
    gateway();
    job_id = job().job;
    ActorSpec spec{job_id, "T", name, "arguments", {kCpu, true, {}}, max_restarts, 3};
    on(SpawnRequested{{kDriver, 1}, spec});
    id = the<StartActor>().actor;
    at = the<StartActor>().node;
    on(ActorStarted{at, id, ProcessId{9}});
    on(ResolveActor{kGateway, job_id, id});
  }
  const Actor& actor() const { return head->actors().at(id); }
  const ActorRecord& record() const { return actor().record; }
  void dies(std::uint32_t life, bool on_purpose = false) {
    on(ActorDown{at, id, "signal 9", life, on_purpose});
  }
  void arguments(bool kept = true) { on(ActorArguments{{kDriver, 1}, id, kept, kept ? "arguments" : ""}); }
  /// The next life is up.
  void lives_again() {
    arguments();
    const StartActor start = *get<StartActor>();
    at = start.node;
    on(ActorStarted{at, id, ProcessId{10}, start.incarnation});
  }
  const ActorPlace& told() const { return the<ActorPlaced>().place; }

  JobId job_id;
  ActorId id;
  NodeId at;
};

}  // namespace

TEST_CASE("an actor with max_restarts keeps its id, and those who call it are told where it is") {
  Restarting s;
  CHECK(is_restartable(s.id));
  CHECK(s.told().life == ActorLife::kLives);
  CHECK(s.told().process == ProcessAddress{s.at, ProcessId{9}});
  CHECK(s.told().max_task_retries == 3);

  s.dies(1);
  CHECK(s.get<SpawnAnswered>() == nullptr);
  CHECK(s.told().life == ActorLife::kRestarts);
  CHECK(s.told().incarnation == 2);
  CHECK(s.told().reason == "signal 9");
  CHECK(s.index<Persist>() < s.index<ActorPlaced>());
  REQUIRE(s.get<ArgumentsWanted>() != nullptr);  // the head does not keep them: they may hold a secret
  CHECK(s.the<ArgumentsWanted>().to == Requester{kDriver, 1});

  s.arguments();
  CHECK(s.the<StartActor>().actor == s.id);
  CHECK(s.the<StartActor>().incarnation == 2);
  CHECK(s.the<StartActor>().spec.payload == "arguments");
  CHECK(s.index<Persist>() < s.index<StartActor>());
  s.at = s.the<StartActor>().node;
  s.on(ActorStarted{s.at, s.id, ProcessId{10}, 2});
  CHECK(s.told().life == ActorLife::kLives);
  CHECK(s.told().process == ProcessAddress{s.at, ProcessId{10}});
  CHECK(std::get<ActorRecord>(s.store.begin()->second).spec.payload.empty());
}

TEST_CASE("after the last life it is dead") {
  Restarting s(1);
  s.dies(1);
  s.lives_again();
  s.dies(2);
  CHECK(s.told().life == ActorLife::kEnded);
  CHECK_THAT(s.told().reason, Catch::Contains("signal 9") &&
                                  Catch::Contains("it was started again 1 time, as max_restarts says"));
  CHECK(s.record().state == ActorState::kDead);
  s.on(ResolveActor{NodeId{1}, s.job_id, s.id});
  CHECK(s.told().life == ActorLife::kEnded);
}

TEST_CASE("the end of an earlier life says nothing about this one") {
  Restarting s;
  s.dies(1);
  s.lives_again();
  s.dies(1);
  s.on(ActorFailed{s.at, s.id, {ErrorCode::kActorDied, "", "", ""}, 1});
  CHECK(s.record().state == ActorState::kAlive);
  s.on(ActorStarted{s.at, s.id, ProcessId{9}, 1});  // a life that lived on, unknown to the head
  CHECK(s.the<KillActor>().incarnation == 1);
  s.node(s.at.value, 1, {{s.id, ProcessId{9}, 1}, {s.id, ProcessId{10}, 2}});
  CHECK(s.all<KillActor>().size() == 1);
  CHECK(s.record().state == ActorState::kAlive);
}

TEST_CASE("what was wanted is no death: it does not start again") {
  Restarting s;
  SECTION("it was killed") {
    s.on(KillRequested{kGateway, s.job_id, s.id, "enough"});
    s.dies(1);
  }
  SECTION("it ended itself") {
    s.dies(1, true);
  }
  SECTION("it was killed while it had no life") {
    s.dies(1);
    s.on(KillRequested{kGateway, s.job_id, s.id, "enough"});
    s.arguments();
    CHECK(s.get<StartActor>() == nullptr);
  }
  SECTION("its job ended") {
    s.dies(1);
    s.on(JobEnded{kGateway, s.job_id, "done"});
  }
  SECTION("its constructor threw") {
    s.dies(1);
    s.arguments();
    s.on(ActorFailed{s.the<StartActor>().node, s.id, {ErrorCode::kTaskFailed, "", "boom", ""}, 2});
  }
  SECTION("nobody has its arguments any more") {
    s.dies(1);
    s.arguments(false);
  }
  SECTION("the node of whoever spawned it died") {
    s.dies(1);
    s.on(NodeLeft{kGateway, "it left"});
  }
  CHECK(s.record().state == ActorState::kDead);
}

TEST_CASE("a kill that wants an answer has it once the head has written it down") {
  Restarting s;
  const KillRequested kill{kGateway, s.job_id, s.id, "enough", kDriver.process, 9};
  SECTION("it lives") {
    s.on(kill);
    CHECK(s.index<Persist>() < s.index<Acknowledged>());
  }
  SECTION("it is between two lives") {
    s.dies(1);
    s.on(kill);
    CHECK(s.index<Erase>() < s.index<Acknowledged>());
  }
  CHECK(s.the<Acknowledged>().ok);
  CHECK(s.the<Acknowledged>().to == Requester{kDriver, 9});
  s.restart();  // whatever dies from now on: there is no other life
  s.gateway();
  s.node(s.at.value, 1, {{s.id, ProcessId{9}, 1}});
  s.on(ActorDown{s.at, s.id, "signal 9", 1});
  const auto known = s.head->actors().find(s.id);
  CHECK((known == s.head->actors().end() || known->second.record.state == ActorState::kDead));
  s.on(kill);  // repeated: it is as it was to be
  CHECK(s.the<Acknowledged>().ok);
}

// Was: the node said it when it had joined, and by that it held no process of the job: refused, and nobody
// told.
TEST_CASE(
    "a kill by a worker that has ended, the last of its job on its node, is obeyed after a head's death") {
  Restarting s;
  s.spawn(s.job_id, 2);
  const StartActor worker = *s.get<StartActor>();
  REQUIRE(worker.node != s.at);
  s.on(ActorStarted{worker.node, worker.actor, ProcessId{5}});
  const KillRequested kill{worker.node, s.job_id, s.id, "enough", ProcessId{5}, 9};
  s.restart();
  s.on(kill);
  CHECK(s.the<KillActor>().actor == s.id);
  CHECK(s.get<Acknowledged>() == nullptr);
  s.node(worker.node.value, 1);
  CHECK_FALSE(s.head->jobs().find(s.job_id)->actors_on.contains(worker.node));
  s.on(kill);
  CHECK(s.the<Acknowledged>().ok);
}

TEST_CASE("a kill of another job's actor is refused in words") {
  Restarting s;
  s.on(KillRequested{kGateway, JobId{12345}, s.id, "malice", kDriver.process, 9});
  CHECK_FALSE(s.the<Acknowledged>().ok);
  CHECK(s.the<Acknowledged>().error.code == ErrorCode::kRefused);
  CHECK(s.record().state == ActorState::kAlive);
}

TEST_CASE("who is killed while a life starts is dead when its node says so, and not before") {
  // The simulator found it: the life was up, and the head that started again called it dead.
  Restarting s;
  s.dies(1);
  s.arguments();
  s.at = s.the<StartActor>().node;
  s.on(KillRequested{kGateway, s.job_id, s.id, "enough"});
  s.on(ResolveActor{kGateway, s.job_id, s.id});
  CHECK(s.told().life == ActorLife::kRestarts);
  s.dies(2);
  CHECK(s.told().life == ActorLife::kEnded);
}

TEST_CASE("a node dies: its actor lives on, on another") {
  Restarting s;
  const NodeId before = s.at;
  s.on(NodeLeft{before, "it left"});
  CHECK(s.told().life == ActorLife::kRestarts);
  s.lives_again();
  CHECK(s.at != before);
  s.on(NodeLeft{s.at, "it left"});
  s.arguments();
  s.pass(1, {kGateway});
  CHECK(s.get<StartActor>() == nullptr);  // it waits for room, as any spawn
  CHECK(s.head->waiting().size() == 1);
  CHECK(s.get<SpawnWaits>() == nullptr);  // its spawn was answered long ago
  s.on(ResolveActor{kGateway, s.job_id, s.id});
  CHECK_THAT(s.told().reason, Catch::Contains("its next life waits: no node is left"));
  s.node(3, 1);
  CHECK(s.the<StartActor>().incarnation == 3);
}

TEST_CASE(
    "one that dies again and again starts ever more slowly, and at once after it has lived for a while") {
  Restarting s(-1);
  std::uint32_t life = 1;
  Duration waited{0};
  for (; life <= 12; ++life) {
    s.dies(life);
    s.arguments();
    for (waited = Duration{0}; s.get<StartActor>() == nullptr && waited < seconds(30);
         waited += milliseconds(50)) {
      s.now += milliseconds(50);
      for (const std::uint64_t node : {1, 2, 100}) s.on(Heartbeat{NodeId{node}});
      s.on(Tick{});
    }
    REQUIRE(s.get<StartActor>() != nullptr);
    if (life == 1) CHECK(waited == Duration{0});
    if (life == 4) CHECK(waited == milliseconds(400));
    s.at = s.the<StartActor>().node;
    s.on(ActorStarted{s.at, s.id, ProcessId{10}, life + 1});
  }
  CHECK(waited == seconds(10));
  s.pass(61, {NodeId{1}, NodeId{2}, kGateway});
  s.dies(life);
  s.arguments();
  CHECK(s.get<StartActor>() != nullptr);
}

TEST_CASE("it keeps its name, and is found while it has no life") {
  Restarting s(2, "it");
  s.dies(1);
  s.on(LookupActor{{kDriver, 7}, s.job_id, "it"});
  CHECK(s.the<NameAnswered>().ok);
  CHECK(s.the<NameAnswered>().actor == s.id);
  s.spawn(s.job_id, 2, "it");
  CHECK_FALSE(s.the<SpawnAnswered>().ok);
}

TEST_CASE("a head that starts again goes on with what restarts, and asks for the arguments anew") {
  Restarting s;
  SECTION("it had no life") {
    s.dies(1);
  }
  SECTION("its start may not have been heard") {
    s.dies(1);
    s.arguments();
    REQUIRE(s.record().state == ActorState::kStarting);
  }
  SECTION("its node is dead, and that alone was recorded") {
    const std::string key = "actor/" + to_string(s.id);
    const Record before = s.store.at(key);
    s.on(NodeLeft{s.at, "it left"});
    s.store.insert_or_assign(key, before);
  }
  const std::uint32_t life = s.record().incarnation;
  const bool starts = s.record().state == ActorState::kStarting;
  s.restart();
  s.gateway();
  CHECK((s.get<ArgumentsWanted>() != nullptr) != starts);  // its node may have it
  s.on(ResolveActor{kGateway, s.job_id, s.id});
  CHECK(s.told().life == ActorLife::kRestarts);
  int asked = 0;
  for (const std::uint64_t node : {1, 2}) {
    s.node(node, 1);
    const auto unheard = s.get<KillActor>() == nullptr ? KillActor{} : *s.get<KillActor>();
    if (unheard.actor) s.on(ActorFailed{unheard.node, s.id, {}, unheard.incarnation, true});
    asked += s.get<ArgumentsWanted>() != nullptr ? 1 : 0;
  }
  s.pass(1, {});
  CHECK(asked == (starts ? 1 : 0));
  CHECK(s.record().restarts == 1);
  s.arguments();
  CHECK(s.the<StartActor>().incarnation >= life);
  s.on(ActorStarted{s.the<StartActor>().node, s.id, ProcessId{10}, s.the<StartActor>().incarnation});
  CHECK(s.told().life == ActorLife::kLives);
}

// A further life was told up before that was recorded, the head died, and the life with it: the next head
// took it for one that had not begun, and gave the actor a life more than max_restarts.
TEST_CASE("a life that was told up and ended while no head was there counts") {
  Restarting s(1);
  s.dies(1);
  s.arguments();
  const auto before = s.store;
  s.at = s.the<StartActor>().node;
  s.on(ActorStarted{s.at, s.id, ProcessId{10}, 2});
  REQUIRE(s.told().life == ActorLife::kLives);
  s.store = before;
  s.restart();
  s.gateway();
  s.on(ResolveActor{kGateway, s.job_id, s.id});
  s.node(s.at.value, 1);
  CHECK(s.the<KillActor>().incarnation == 2);
  s.dies(2);  // as its node repeats it, or answers
  CHECK(s.told().life == ActorLife::kEnded);
  CHECK(s.record().state == ActorState::kDead);
  s.on(ActorFailed{s.at, s.id, {}, 2, true});
  CHECK(s.record().state == ActorState::kDead);
}

// Was: the spawn's request, whose answer was lost with the head, had the life started that its node was being
// asked about. That had not begun, by then: two lives at once.
TEST_CASE("a life that its node is asked about is not started when its request is repeated") {
  Restarting s(1);
  s.dies(1);
  s.arguments();
  const NodeId at = s.the<StartActor>().node;
  s.restart();
  s.gateway();
  s.node(at.value, 1);
  REQUIRE(s.get<KillActor>() != nullptr);
  ActorSpec spec = s.record().spec;
  spec.payload = "arguments";
  s.on(SpawnRequested{{kDriver, 1}, spec});
  CHECK(s.get<StartActor>() == nullptr);
  s.on(ActorFailed{at, s.id, {ErrorCode::kActorDied, "", "no such actor here", ""}, 2, true});
  CHECK_THAT(s.actor().reason, Catch::Contains("T (actor ") && Catch::Contains(") died: no such actor here"));
  s.arguments();
  s.pass(1, {at, kGateway});
  CHECK(s.the<StartActor>().incarnation == 3);
}
