/// The head's machine as scripts: nodes that join, die, meet each other, and a head that starts again.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::cluster;
using std::chrono::seconds;
using troupe::test::kDriver;
using troupe::test::kGateway;
using troupe::test::Script;

TEST_CASE("a node is a member when it is accepted, and known to the store before") {
  Script s;
  s.node(1, 1);
  CHECK(s.index<Persist>() < s.index<NodeAccepted>());
  CHECK(s.last.size() == 2);
  s.node(1, 1);
  CHECK(s.get<Persist>() == nullptr);
  CHECK(s.the<NodeAccepted>().node == NodeId{1});
}

TEST_CASE("a dead node takes its actors with it, and is refused when it comes back") {
  Script s;
  const JobId job = s.job_on({1});
  const ActorId actor = s.up(job, 1);
  s.on(PeerWanted{kGateway, NodeId{1}});
  s.on(Tick{});
  s.pass(6, {kGateway});
  CHECK(s.the<NodeDead>().node == NodeId{1});
  CHECK(s.the<NodeDead>().to == kGateway);
  CHECK(s.index<Persist>() < s.index<NodeDead>());
  CHECK(s.head->actors().at(actor).record.state == ActorState::kDead);
  s.on(Heartbeat{NodeId{1}});
  CHECK(s.get<RefuseNode>() != nullptr);
  s.restart();
  s.node(1, 1);
  CHECK(s.get<RefuseNode>() != nullptr);
}

// Was: nobody knew that it lives, and it held its room until its job ended.
TEST_CASE("what starts elsewhere for a process of a dead node ends: nobody waits for it any more") {
  Script s;
  const JobId job = s.job_on({1, 1, 1});
  const ActorId worker = s.up(job, 1);
  const NodeId dies = s.head->actors().at(worker).record.node;
  s.on(SpawnRequested{{{dies, ProcessId{9}}, 1}, {job, "T", "", "arguments", {kCpu, true, {}}}});
  const StartActor late = *s.get<StartActor>();
  s.on(SpawnRequested{{{dies, ProcessId{9}}, 2}, {job, "T", "", "arguments", {kCpu, true, {}}}});
  const StartActor early = *s.get<StartActor>();
  s.on(ActorStarted{early.node, early.actor, ProcessId{9}});
  s.on(NodeLeft{dies, "power loss"});
  const auto killed = s.all<KillActor>();
  REQUIRE(killed.size() == 1);
  CHECK(killed[0].actor == late.actor);
  CHECK_THAT(killed[0].reason, Catch::Contains("whoever asked for it is gone"));
  CHECK(s.head->actors().at(early.actor).record.state == ActorState::kAlive);  // it may have been told of
  s.on(ActorStarted{late.node, late.actor, ProcessId{9}});
  CHECK(s.the<KillActor>().actor == late.actor);
}

TEST_CASE("two nodes are introduced to each other, the asked one first") {
  Script s;
  s.node(1, 1);
  s.node(2, 1);
  s.node(3, 1);
  s.on(PeerWanted{NodeId{1}, NodeId{2}});
  REQUIRE(s.last.size() == 2);
  CHECK(std::get<ExpectPeer>(s.last[0]).to == NodeId{2});
  CHECK(std::get<ExpectPeer>(s.last[0]).peer.id == NodeId{1});
  CHECK(std::get<PeerAnswered>(s.last[1]).peer.id == NodeId{2});

  SECTION("each hears of the other's death, and nobody else does") {
    s.on(NodeLeft{NodeId{2}, "bye"});
    REQUIRE(s.all<NodeDead>().size() == 1);
    CHECK(s.the<NodeDead>().to == NodeId{1});
    s.on(NodeLeft{NodeId{1}, "bye"});
    CHECK(s.get<NodeDead>() == nullptr);
  }
  SECTION("the asked one hears of the asking one's death") {
    s.on(NodeLeft{NodeId{1}, "bye"});
    CHECK(s.the<NodeDead>().to == NodeId{2});
  }
  SECTION("a dead, an unknown and its own id are answered with the reason") {
    s.on(NodeLeft{NodeId{2}, "bye"});
    s.on(PeerWanted{NodeId{1}, NodeId{2}});
    CHECK(s.last.size() == 1);
    CHECK_FALSE(s.the<PeerAnswered>().ok);
    CHECK(s.the<PeerAnswered>().reason == "node 2 was declared dead (bye); one in its place has another id");
    s.on(PeerWanted{NodeId{1}, NodeId{77}});
    CHECK(s.the<PeerAnswered>().reason == "node 4d is not a live node of this cluster");
    s.on(PeerWanted{NodeId{1}, NodeId{1}});
    CHECK_FALSE(s.the<PeerAnswered>().ok);
  }
  SECTION("a restarted head learns from them who is linked with whom") {
    s.restart();
    s.node(1, 1, {}, {}, {NodeId{2}});
    s.node(2, 1);
    CHECK(s.the<ExpectPeer>().peer.id == NodeId{1});  // in case it did not hear before
    s.on(NodeLeft{NodeId{2}, "bye"});
    CHECK(s.the<NodeDead>().to == NodeId{1});
  }
  SECTION("a head that died before it told the asked one tells it when the asking one registers") {
    // Story: 2 was back first, was told of nobody and refused 1's connection for ever. (Found by the
    // simulator.)
    s.restart();
    s.node(2, 1);
    s.node(1, 1, {}, {}, {NodeId{2}});
    const auto told = s.all<ExpectPeer>();
    CHECK(std::any_of(told.begin(), told.end(), [](const auto& expect) {
      return expect.to == NodeId{2} && expect.peer.id == NodeId{1};
    }));
  }
  SECTION("a death that was missed is told at the next registration") {
    s.on(NodeLeft{NodeId{2}, "bye"});
    s.node(1, 1, {}, {}, {NodeId{2}});
    CHECK(s.the<NodeDead>().node == NodeId{2});
  }
}

TEST_CASE("whoever asks for the nodes gets the live ones") {
  Script s;
  s.node(1, 1);
  s.node(2, 1);
  s.gateway();
  s.on(NodeLeft{NodeId{2}, "bye"});
  s.on(NodesWanted{{kDriver, 4}});
  CHECK(s.the<NodesAnswered>().nodes.size() == 1);  // and none that only carries a program
  CHECK(s.the<NodesAnswered>().to.request == 4);
}

TEST_CASE("a spawn that no node will ever hold is told what would help") {
  // Was: "ask for less, or add a node that has it" of a node that has died.
  Script s;
  const JobId job = s.job_on({4, 4});
  const auto todo = [&](std::uint64_t request, int cpus, NodeId only) {
    s.on(SpawnRequested{{kDriver, request}, {job, "T", "", "arguments", {cpus * kCpu, true, only}}});
    return s.the<SpawnAnswered>().error.todo;
  };
  CHECK(todo(2, 5, {}) == "ask for less, or add a node that has it");
  CHECK(todo(3, 5, NodeId{1}) == "ask for less, or name another node or none");
  s.on(NodeLeft{NodeId{2}, "bye"});
  CHECK(todo(4, 1, NodeId{2}) == "name a live node (Session::nodes() lists them), or none");
}

/// An actor that node 1 is starting, and a smaller node 2.
struct OneStarts {
  Script s;
  JobId job{};
  StartActor first;

  OneStarts() {
    s.node(1, 2);
    s.node(2, 1);
    s.gateway();
    job = s.job().job;
    s.spawn(job, 1);
    first = *s.get<StartActor>();
    REQUIRE(first.node == NodeId{1});
  }
};

// A node that was killed in the first seconds of a job failed the job: "did not come up".
TEST_CASE_METHOD(OneStarts, "a start is placed again when its node dies before it is up") {
  SECTION("on another node") {
    s.on(NodeLeft{NodeId{1}, "killed"});
    CHECK(s.the<StartActor>().node == NodeId{2});
    CHECK(s.the<StartActor>().spec.payload == "arguments");
    CHECK(s.get<SpawnAnswered>() == nullptr);
    s.on(ActorStarted{NodeId{2}, s.the<StartActor>().actor, ProcessId{4}});
    CHECK(s.the<SpawnAnswered>().ok);
  }
  SECTION("on one that comes in its place, if no other could hold it") {
    s.on(SpawnCancelled{{kDriver, 1}});
    s.on(ActorDown{NodeId{1}, first.actor, ""});
    s.spawn(job, 2, {}, 2);
    s.on(NodeLeft{NodeId{1}, "killed"});
    CHECK(s.get<SpawnAnswered>() == nullptr);
    s.spawn(job, 3, {}, 2);
    CHECK(s.get<SpawnAnswered>() == nullptr);
    s.spawn(job, 4, {}, 3);  // no node had as much
    CHECK(s.the<SpawnAnswered>().error.code == ErrorCode::kRefused);
    SECTION("it comes") {
      s.pass(59, {NodeId{2}, kGateway});
      s.node(3, 4);
      CHECK(s.all<StartActor>().size() == 2);
    }
    SECTION("it does not") {
      s.pass(59, {NodeId{2}, kGateway});
      CHECK(s.get<SpawnAnswered>() == nullptr);
      s.pass(1, {NodeId{2}, kGateway});
      CHECK(s.all<SpawnAnswered>().size() == 2);
    }
  }
  SECTION("but three nodes at most: it may be why they die") {
    s.node(3, 1);
    s.node(4, 1);
    int nodes = 1;
    while (s.get<SpawnAnswered>() == nullptr) {
      NodeId at{};
      for (const auto& [id, actor] : s.head->actors())
        if (actor.record.state == ActorState::kStarting) at = actor.record.node;
      s.on(NodeLeft{at, "out of memory"});
      if (s.get<SpawnAnswered>() == nullptr) ++nodes;
    }
    CHECK(nodes == 3);
    CHECK(s.the<SpawnAnswered>().error.code == ErrorCode::kActorDied);
  }
  SECTION("unless it asked for that node") {
    s.on(SpawnRequested{{kDriver, 2}, {job, "T", "", "", {kCpu, true, NodeId{1}}}});
    s.on(SpawnRequested{{kDriver, 3}, {job, "T", "", "", {kCpu, true, NodeId{1}}}});
    CHECK(s.head->waiting().size() == 1);
    s.on(NodeLeft{NodeId{1}, "killed"});
    const auto answers = s.all<SpawnAnswered>();
    REQUIRE(answers.size() == 2);
    CHECK(answers[0].to.request == 2);
    CHECK(answers[1].to.request == 3);
    for (const auto& answered : answers) CHECK(answered.error.code == ErrorCode::kActorDied);
  }
  SECTION("unless nobody waits for it any more") {
    s.on(NodeLeft{kGateway, "killed"});
    s.on(NodeLeft{NodeId{1}, "killed"});
    CHECK(s.get<StartActor>() == nullptr);
  }
}

// A node that was told to end was given actors until it had gone: replacements waited for it, and with the
// head killed meanwhile a job went on with one trainer of three.
TEST_CASE_METHOD(OneStarts,
                 "a node that leaves gets nothing new, and what starts there starts elsewhere at once") {
  SECTION("on a node that stays") {
    s.on(NodeLeaving{NodeId{1}, "told to end"});
    CHECK(s.the<StartActor>().node == NodeId{2});
    CHECK(s.the<StartActor>().spec.payload == "arguments");
    // It had started it all the same.
    s.on(ActorStarted{NodeId{1}, first.actor, ProcessId{3}});
    CHECK(s.the<KillActor>().actor == first.actor);
    CHECK(s.get<SpawnAnswered>() == nullptr);
  }
  SECTION("it leaves often, and no start is lost for that") {
    NodeId at{1};
    for (std::uint64_t next = 3; next < 9; ++next) {
      s.on(NodeLeft{at == NodeId{1} ? NodeId{2} : NodeId{}, ""});
      s.node(next, 2);
      s.on(NodeLeaving{at, "told to end"});
      CHECK(s.the<StartActor>().node == NodeId{next});
      at = NodeId{next};
    }
  }
  SECTION("what lives there ends with it") {
    s.on(ActorStarted{NodeId{1}, first.actor, ProcessId{3}});
    s.on(NodeLeaving{NodeId{1}, "told to end"});
    CHECK(s.last.empty());
    s.on(NodeLeft{NodeId{1}, "it left"});
    CHECK(s.head->actors().at(first.actor).record.state == ActorState::kDead);
  }
  SECTION("a head that did not hear of it, or forgot it, hears it when the node registers again") {
    const bool forgot = GENERATE(false, true);
    if (forgot) {
      s.restart();
      s.gateway();
      s.node(2, 1);
    }
    NodeJoined again{s.head->nodes().at(NodeId{1}).info, {{first.actor, {}}}, {}, {}, true};
    s.on(std::move(again));
    CHECK(s.the<KillActor>().actor == first.actor);
    if (forgot) s.spawn(job, 1);  // its requester repeats it
    s.spawn(job, 2);
    std::size_t on_the_other = 0;
    for (const auto& [id, actor] : s.head->actors()) on_the_other += actor.record.node == NodeId{2} ? 1U : 0U;
    CHECK(on_the_other == 1);
    CHECK(s.head->waiting().size() == 1);
  }
  SECTION("what waits for that node alone is told") {
    s.on(SpawnRequested{{kDriver, 2}, {job, "T", "", "", {2 * kCpu, true, NodeId{1}}}});
    CHECK(s.head->waiting().size() == 1);
    s.on(NodeLeaving{NodeId{1}, "told to end"});
    CHECK(s.the<SpawnAnswered>().error.message().find("leaves the cluster") != std::string::npos);
  }
}

TEST_CASE("a spawn that came before any node is not refused because a small one comes first") {
  Script s;
  s.gateway();
  const JobId job = s.job().job;
  s.spawn(job, 1, {}, 4);
  s.node(1, 1);
  CHECK(s.get<SpawnAnswered>() == nullptr);
  s.node(2, 4);
  CHECK(s.the<StartActor>().node == NodeId{2});
}

TEST_CASE("a silent node gets nothing new, until it is heard again") {
  Script s;
  const JobId job = s.job_on({1});
  s.on(Tick{});
  s.pass(3, {kGateway});
  s.spawn(job, 1);
  CHECK(s.get<StartActor>() == nullptr);
  s.on(Heartbeat{NodeId{1}});
  CHECK(s.get<StartActor>() != nullptr);
}

TEST_CASE("a restarted head asks its nodes what runs there, and believes them") {
  Script s;
  const JobId job = s.job_on({3});
  std::vector<ActorId> actors;
  for (std::uint64_t request = 1; request <= 3; ++request) {
    s.spawn(job, request);
    actors.push_back(s.the<StartActor>().actor);
  }
  for (std::size_t i = 0; i < 2; ++i) s.on(ActorStarted{NodeId{1}, actors[i], ProcessId{9}});
  s.restart();
  s.on(Heartbeat{NodeId{1}});
  CHECK(s.get<RequestRegistration>() != nullptr);
  // One lives, one has died meanwhile, one never heard of its start, and one is nobody's.
  s.node(1, 3, {{actors[0], ProcessId{9}}, {ActorId{77}, ProcessId{1}}});
  CHECK(s.head->actors().at(actors[0]).record.state == ActorState::kAlive);
  CHECK(s.head->actors().at(actors[1]).record.state == ActorState::kDead);
  CHECK(s.the<KillActor>().actor == ActorId{77});
  CHECK(s.head->nodes().at(NodeId{1}).cpu_used_e4 == 2 * kCpu);
  // The head never stored what the third is constructed with: its request, which is repeated, brings it.
  CHECK(s.get<StartActor>() == nullptr);
  s.gateway();
  s.spawn(job, 3);
  CHECK(s.the<StartActor>().actor == actors[2]);
  CHECK(s.the<StartActor>().spec.payload == "arguments");
  s.spawn(job, 3);
  CHECK(s.get<StartActor>() == nullptr);
  s.node(1, 3, {{actors[0], ProcessId{9}}});  // its link broke, and the start was lost with it
  CHECK(s.the<StartActor>().actor == actors[2]);
}

TEST_CASE("a request that is repeated before its node is back starts there when the node is") {
  Script s;
  const JobId job = s.job_on({1});
  s.spawn(job, 1);
  s.restart();
  s.gateway();
  s.spawn(job, 1);
  CHECK(s.last.empty());
  SECTION("back") {
    s.node(1, 1);
    CHECK(s.get<StartActor>() != nullptr);
  }
  SECTION("dead, so it goes elsewhere") {
    s.node(2, 1);
    s.on(NodeLeft{NodeId{1}, "killed"});
    CHECK(s.the<StartActor>().node == NodeId{2});
  }
}

TEST_CASE("a start whose node dies before its request is repeated begins anew with the request") {
  Script s;
  const JobId job = s.job_on({1, 1});
  s.spawn(job, 1, "ps");
  const NodeId at = s.the<StartActor>().node;
  s.restart();
  s.on(NodeLeft{at, "killed"});
  s.node(at == NodeId{1} ? 2 : 1, 1);
  s.gateway();
  s.spawn(job, 1, "ps");
  CHECK(s.get<StartActor>() != nullptr);
}

// The simulator found this one (seed 10 of its first version): the head recorded that a newer driver had
// superseded a job, died before it told the nodes, came back, and left the old job's workers running for
// good.
TEST_CASE("a head that died between recording a job's end and telling the nodes ends its actors later") {
  Script s;
  const JobId job = s.job_on({1});
  const ActorId actor = s.up(job, 1);
  auto before = s.store;
  s.on(JobEnded{kGateway, job, "done"});
  const Record ended = s.store.at("job/main");
  s.store = before;
  s.store.insert_or_assign("job/main", ended);  // this much reached the disk, nothing reached a node
  s.restart();
  s.node(1, 1, {{actor, ProcessId{9}}}, {job});
  CHECK(s.the<KillActor>().actor == actor);
  CHECK(s.the<EndJob>().to == NodeId{1});
}

TEST_CASE("a store of a build that took what this one refuses is no reason to die") {
  Script s;
  s.store["node/9"] = NodeRecord{{NodeId{9}, "n", "", "", INT64_MIN, false}, false};
  s.store["actor/3"] =
      ActorRecord{ActorId{3}, {JobId{4}, "T", "", "", {-5, true, {}}}, {kDriver, 1}, NodeId{9}, {}, {}};
  s.restart();
  CHECK(s.store.empty());
}
