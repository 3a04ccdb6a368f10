/// The head's machine as scripts: events in, actions out.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>

#include "scheduler/cluster/cluster_machine.hpp"

using namespace troupe;
using namespace troupe::cluster;
using std::chrono::seconds;

namespace {

/// The first live node with room; the real policy is tested in tests/scheduler.
Placement first_fit(const std::vector<NodeView>& nodes, const ActorDemand& demand) {
  for (const NodeView& node : nodes) {
    if (!node.suspect && node.cpu_e4 - node.cpu_used_e4 >= demand.cpu_e4) {
      return {PlacementVerdict::kPlaced, node.id, "room on " + node.name};
    }
  }
  return {PlacementVerdict::kWait, {}, "no room"};
}

constexpr NodeId kGateway{100};
constexpr ProcessAddress kDriver{kGateway, ProcessId{7}};

/// A head with a store that survives it.
struct Script {
  SeededRandom ids{5};
  std::map<std::string, Record> store;
  std::unique_ptr<ClusterMachine> head = std::make_unique<ClusterMachine>(ClusterConfig{}, first_fit, ids);
  Instant now{};
  std::vector<ClusterAction> last;

  const std::vector<ClusterAction>& on(const ClusterEvent& event) {
    last = head->on(event, now);
    for (const ClusterAction& action : last) {
      if (const auto* p = std::get_if<Persist>(&action)) store.insert_or_assign(p->key, p->record);
      if (const auto* e = std::get_if<Erase>(&action)) store.erase(e->key);
    }
    return last;
  }
  void node(std::uint64_t id, int cpus, std::vector<LiveActor> actors = {}) {
    on(NodeJoined{{NodeId{id}, "n" + std::to_string(id), "", "", cpus * kCpu, false}, std::move(actors), {}});
  }
  void gateway() { on(NodeJoined{{kGateway, "driver", "", "", 0, true}, {}, {}}); }
  JobAnswered job(std::uint64_t request = 1) {
    on(JobRegistered{"main", kDriver, request});
    return *get<JobAnswered>();
  }
  void spawn(JobId job, std::uint64_t request, std::string name = {}) {
    on(SpawnRequested{{kDriver, request}, {job, "T", std::move(name), "", {kCpu, true, {}}}});
  }
  template <class A>
  const A* get() const {
    for (const ClusterAction& action : last) {
      if (const auto* found = std::get_if<A>(&action)) return found;
    }
    return nullptr;
  }
  template <class A>
  std::ptrdiff_t index() const {
    return std::find_if(last.begin(), last.end(),
                        [](const auto& a) { return std::holds_alternative<A>(a); }) -
           last.begin();
  }
  void restart() {
    head = std::make_unique<ClusterMachine>(ClusterConfig{}, first_fit, ids);
    Restored restored;
    for (const auto& [key, record] : store) restored.records.push_back(record);
    on(restored);
  }
};

}  // namespace

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
}

TEST_CASE("a judge that was stopped itself declares nobody dead for it") {
  Membership members({});
  members.join(NodeId{1}, seconds(0));
  CHECK(members.tick(seconds(0)).empty());
  CHECK(members.tick(seconds(60)).empty());
  CHECK(members.liveness(NodeId{1}) == Liveness::kAlive);
}

TEST_CASE("an actor is persisted, started, and acknowledged once it is up") {
  Script s;
  s.node(1, 1);
  s.gateway();
  const JobId job = s.job().job;
  CHECK(s.index<Persist>() < s.index<JobAnswered>());
  s.spawn(job, 1);
  REQUIRE(s.get<StartActor>() != nullptr);
  CHECK(s.index<Persist>() < s.index<StartActor>());
  CHECK(s.get<SpawnAnswered>() == nullptr);
  const ActorId actor = s.get<StartActor>()->actor;
  s.on(ActorStarted{NodeId{1}, actor, ProcessId{9}});
  REQUIRE(s.get<SpawnAnswered>() != nullptr);
  CHECK(s.get<SpawnAnswered>()->address == ProcessAddress{NodeId{1}, ProcessId{9}});
  CHECK(s.index<Persist>() < s.index<SpawnAnswered>());

  SECTION("a request sent again is the same request") {
    s.spawn(job, 1);
    CHECK(s.get<StartActor>() == nullptr);
    CHECK(s.get<SpawnAnswered>()->actor == actor);
  }
  SECTION("a spawn without room waits until an actor ends") {
    s.spawn(job, 2);
    CHECK(s.last.empty());
    REQUIRE(s.head->pending().size() == 1);
    CHECK(s.head->pending()[0].reason == "no room");
    s.on(ActorDown{NodeId{1}, actor, "signal 9"});
    CHECK(s.get<StartActor>() != nullptr);
  }
  SECTION("watchers hear why it ended, also those who ask later") {
    s.on(WatchActor{kGateway, actor});
    s.on(ActorDown{NodeId{1}, actor, "signal 9"});
    CHECK(s.get<NotifyDown>()->reason == "actor " + to_string(actor) + " died: signal 9");
    s.on(WatchActor{NodeId{1}, actor});
    CHECK(s.get<NotifyDown>()->to == NodeId{1});
  }
  SECTION("its CPUs are free only when its node says that it is gone") {
    s.on(KillRequested{actor, "fenced"});
    CHECK(s.get<KillActor>() != nullptr);
    s.spawn(job, 2);
    CHECK(s.get<StartActor>() == nullptr);
  }
}

TEST_CASE("a dead node takes its actors with it, and is refused when it comes back") {
  Script s;
  s.node(1, 1);
  s.gateway();
  const JobId job = s.job().job;
  s.spawn(job, 1);
  const ActorId actor = s.get<StartActor>()->actor;
  s.on(ActorStarted{NodeId{1}, actor, ProcessId{9}});
  s.on(WatchActor{kGateway, actor});
  s.on(Tick{});
  for (int t = 1; t <= 6; ++t) {
    s.now = seconds(t);
    s.on(Heartbeat{kGateway});
    s.on(Tick{});
  }
  CHECK(s.get<NodeDead>()->node == NodeId{1});
  CHECK(s.get<NotifyDown>()->actor == actor);
  s.on(Heartbeat{NodeId{1}});
  CHECK(s.get<RefuseNode>() != nullptr);
  s.restart();
  s.node(1, 1);
  CHECK(s.get<RefuseNode>() != nullptr);
}

TEST_CASE("a driver that registers again outranks the one before it, also after a head restart") {
  Script s;
  s.gateway();
  const JobAnswered first = s.job(1);
  CHECK(first.incarnation == 1);
  CHECK(s.job(1).job == first.job);
  const JobAnswered second = s.job(2);
  CHECK(second.incarnation == 2);
  CHECK(s.get<EndJob>()->job == first.job);
  s.restart();
  CHECK(s.job(3).incarnation == 3);
}

TEST_CASE("a restarted head asks its nodes what runs there, and believes them") {
  Script s;
  s.node(1, 3);
  s.gateway();
  const JobId job = s.job().job;
  std::vector<ActorId> actors;
  for (int request = 1; request <= 3; ++request) {
    s.spawn(job, request);
    actors.push_back(s.get<StartActor>()->actor);
  }
  for (int i = 0; i < 2; ++i) s.on(ActorStarted{NodeId{1}, actors[i], ProcessId{9}});
  s.restart();
  s.on(Heartbeat{NodeId{1}});
  CHECK(s.get<RequestRegistration>() != nullptr);
  // One lives, one has died meanwhile, one never heard of its start, and one is nobody's.
  s.node(1, 3, {{actors[0], ProcessId{9}}, {ActorId{77}, ProcessId{1}}});
  CHECK(s.head->actors().at(actors[0]).record.state == ActorState::kAlive);
  CHECK(s.head->actors().at(actors[1]).record.state == ActorState::kDead);
  CHECK(s.get<StartActor>()->actor == actors[2]);
  CHECK(s.get<KillActor>()->actor == ActorId{77});
  CHECK(s.head->nodes().at(NodeId{1}).cpu_used_e4 == 2 * kCpu);
}

// The simulator found this one (seed 10 of its first version): the head recorded that a newer driver had
// superseded a job, died before it told the nodes, came back, and left the old job's workers running for
// good.
TEST_CASE("a head that died between recording a job's end and telling the nodes ends its actors later") {
  Script s;
  s.node(1, 1);
  s.gateway();
  const JobId job = s.job().job;
  s.spawn(job, 1);
  const ActorId actor = s.get<StartActor>()->actor;
  s.on(ActorStarted{NodeId{1}, actor, ProcessId{9}});
  auto before = s.store;
  s.on(JobEnded{job, "done"});
  const Record ended = s.store.at("job/main");
  s.store = before;
  s.store.insert_or_assign("job/main", ended);  // this much reached the disk, nothing reached a node
  s.restart();
  s.node(1, 1, {{actor, ProcessId{9}}});
  REQUIRE(s.get<KillActor>() != nullptr);
  CHECK(s.get<KillActor>()->actor == actor);
}

TEST_CASE("a name belongs to one living actor") {
  Script s;
  s.node(1, 2);
  s.gateway();
  const JobId job = s.job().job;
  s.spawn(job, 1, "ps");
  const ActorId actor = s.get<StartActor>()->actor;
  s.on(ActorStarted{NodeId{1}, actor, ProcessId{9}});
  s.spawn(job, 2, "ps");
  CHECK(s.get<SpawnAnswered>()->error.code == ErrorCode::kRefused);
  s.on(LookupActor{{kDriver, 3}, "ps"});
  CHECK(s.get<NameAnswered>()->actor == actor);
  s.on(ActorDown{NodeId{1}, actor, "exit"});
  s.on(LookupActor{{kDriver, 4}, "ps"});
  CHECK_FALSE(s.get<NameAnswered>()->ok);
}
