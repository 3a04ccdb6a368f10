// What has waited long for room that workers of tasks hold: some of those are given back for it, just enough.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

constexpr ProcessAddress kOther{kGateway, ProcessId{8}};

/// A driver whose process, and another one, lease workers of one CPU.
struct Turns : Script {
  explicit Turns(int cpus) {
    job = job_on({cpus});
    now = 1s;
  }
  void ask(const ProcessAddress& owner, double cpus = 1) { ask(owner, demand(cpus)); }
  void ask(const ProcessAddress& owner, const ActorDemand& wanted) {
    on(SpawnRequested{{owner, ++request}, {job, std::string(kWorkerOfTasks), "", "arguments", wanted}});
    note();
  }
  /// An actor.
  Requester wants(double cpus) { return wants(demand(cpus)); }
  Requester wants(const ActorDemand& wanted) {
    on(SpawnRequested{{kDriver, ++request}, {job, "T", "", "arguments", wanted}});
    note();
    return {kDriver, request};
  }
  GroupId group(const std::vector<BundleDemand>& bundles) {
    on(GroupRequested{
        {kDriver, 900}, job, GroupVerb::kMake, {}, {{}, "", PlacementStrategy::kStrictPack, bundles}});
    return the<GroupAnswered>().status.record.group;
  }
  /// The same demand in that group's bundle.
  static ActorDemand inside(GroupId group, ActorDemand demand, std::int32_t bundle = -1) {
    demand.group = group, demand.bundle = bundle;
    return demand;
  }
  static ActorDemand demand(double cpus) { return {static_cast<std::int64_t>(cpus * kCpu), true, {}}; }
  /// What it started comes up, what it told is kept.
  void note() {
    std::vector<StartActor> starts = all<StartActor>();
    for (const ActorLeaves& leaves : all<ActorLeaves>()) {
      CHECK(leaves.for_others);
      CHECK_FALSE(leaves.stays);
      told.push_back(leaves.actor);
      why = leaves.reason;
    }
    for (const StartActor& start : starts) {
      started.push_back(start.actor);
      on(ActorStarted{start.node, start.actor, ProcessId{9}});
      REQUIRE(all<StartActor>().empty());
    }
  }
  /// As the head's shell does.
  void pass(Duration time) {
    for (const Instant until = now + time; now < until;) {
      now += 250ms;
      for (const auto& [id, node] : std::map(head->nodes())) on(Heartbeat{id}), note();
      on(Tick{}), note();
    }
  }
  /// Its task has ended, and its process gives it back.
  void gives_back(ActorId worker) {
    on(KillRequested{kGateway, job, worker, "its lease ended"}), note();
    on(ActorDown{head->actors().at(worker).record.node, worker, "killed"}), note();
  }
  const Requester& whose(ActorId actor) const { return head->actors().at(actor).record.requester; }
  /// Workers of tasks that live there.
  int held_by(const ProcessAddress& owner) const {
    int count = 0;
    for (const auto& [id, actor] : head->actors()) {
      const ActorRecord& record = actor.record;
      count += record.state == ActorState::kAlive && record.spec.is_worker_of_tasks() &&
               record.requester.from == owner;
    }
    return count;
  }
  /// Tasks end soon: who is told gives back at once. Each process has more to do, always.
  void run(Duration time, const std::vector<ProcessAddress>& owners) {
    for (const Instant until = now + time; now < until;) {
      pass(250ms);
      for (const ActorId worker : std::exchange(told, {})) {
        const ProcessAddress owner = whose(worker).from;
        gives_back(worker);
        ask(owner);
      }
      for (const ProcessAddress& owner : owners) most[owner] = std::max(most[owner], held_by(owner));
    }
  }

  JobId job{};
  std::uint64_t request = 10;
  std::vector<ActorId> told, started;
  std::string why;
  std::map<ProcessAddress, int> most;
};

}  // namespace

// Three loops of short tasks held three CPUs for good: an actor of 0.1 CPU waited for two minutes, and was
// given up.
TEST_CASE(
    "an actor that waits gets the room of the worker that was leased first, before later asks of others") {
  Turns s(3);
  for (int i = 0; i < 3; ++i) s.ask(kDriver), s.now += 10ms;
  const std::vector<ActorId> workers = s.started;
  REQUIRE(workers.size() == 3);
  for (int i = 0; i < 4; ++i) s.ask(kDriver);  // as a process does that has many tasks
  s.pass(5s);
  CHECK(s.told.empty());  // nobody else waits
  const Requester actor = s.wants(0.1);
  s.pass(250ms);
  CHECK(s.told.empty());
  s.pass(250ms);
  CHECK(s.told == std::vector<ActorId>{workers[0]});
  CHECK(s.why == "given back: T of job main has waited 0.5 s for its room");
  s.pass(1s);
  CHECK(s.told.size() == 1);  // just enough
  SECTION("its task ends") {
    s.gives_back(workers[0]);
    REQUIRE(s.started.size() == 4);
    CHECK(s.whose(s.started[3]) == actor);  // not one of the four that came before it
  }
  SECTION("another one comes free") {
    s.gives_back(workers[1]);
    CHECK(s.whose(s.started[3]) == actor);
    s.gives_back(workers[0]);
    CHECK(s.held_by(kDriver) == 2);
  }
  SECTION("its task takes long: another one is asked for") {
    s.pass(1s);
    CHECK(s.told == std::vector<ActorId>{workers[0], workers[1]});
    s.gives_back(workers[1]);
    CHECK(s.whose(s.started[3]) == actor);
    s.pass(30s);
    CHECK(s.told.size() == 2);
  }
  SECTION("nobody wants the actor any more") {
    s.on(SpawnCancelled{actor});
    s.gives_back(workers[0]);
    CHECK(s.held_by(kDriver) == 3);
  }
  SECTION("the head starts again, and asks again") {
    s.told.clear();
    std::vector<LiveActor> lives;
    for (const ActorId worker : workers) lives.push_back({worker, ProcessId{9}});
    s.restart();
    s.node(1, 3, lives);
    s.gateway();
    s.wants(0.1);
    s.pass(500ms);
    CHECK(s.told.size() == 1);
  }
  SECTION("the link of its process breaks, and it is asked again") {
    s.gateway();
    s.pass(250ms);
    CHECK(s.told == std::vector<ActorId>{workers[0], workers[0]});
  }
  SECTION("its node drains") {
    s.told.clear();
    s.on(NodeDrains{NodeId{1}, 30'000, "by hand"});
    s.pass(5s);
    CHECK(s.told.empty());
  }
}

// A CPU was free for as long as another one's task ran: each of those that waited saw it kept for the other.
TEST_CASE("what comes free goes to the first whose turn it is, whoever was asked for it") {
  constexpr ProcessAddress kThird{kGateway, ProcessId{9}}, kFourth{kGateway, ProcessId{10}};
  Turns s(2);
  s.ask(kDriver), s.now += 10ms, s.ask(kOther), s.now += 10ms;
  const std::vector<ActorId> workers = s.started;
  s.ask(kThird), s.ask(kFourth);
  s.pass(1s);
  REQUIRE(s.told == workers);
  s.gives_back(workers[1]);  // the other one's task takes long
  CHECK(s.held_by(kThird) == 1);
  CHECK(s.held_by(kFourth) == 0);
  s.gives_back(workers[0]);
  CHECK(s.held_by(kFourth) == 1);
}

// Another part of it was given away as soon as one came free, and the actor waited for ever.
TEST_CASE("parts of a GPU that come free are kept until they make a whole one") {
  Turns s(1);
  s.node_with_gpus(2, 1);
  const auto gpus = [](double count) {
    ActorDemand demand = Turns::demand(0.1);
    demand.gpu_e4 = static_cast<std::int64_t>(count * kGpu);
    return demand;
  };
  s.ask(kDriver, gpus(0.5)), s.now += 10ms, s.ask(kDriver, gpus(0.5));
  const std::vector<ActorId> workers = s.started;
  REQUIRE(workers.size() == 2);
  s.ask(kDriver, gpus(0.5));
  const Requester actor = s.wants(gpus(1));
  s.pass(1s);
  REQUIRE(s.told == workers);
  s.gives_back(workers[0]);
  s.ask(kDriver, gpus(0.5));
  CHECK(s.started.size() == 2);
  s.gives_back(workers[1]);
  REQUIRE(s.started.size() == 3);
  CHECK(s.whose(s.started[2]) == actor);
}

// Room that was kept for it counted as its share, so that nobody else was asked for 10 s.
TEST_CASE("who has nothing gets the worker of another task where that of the first takes long") {
  Turns s(2);
  s.ask(kDriver), s.now += 10ms, s.ask(kDriver);
  const std::vector<ActorId> workers = s.started;
  s.ask(kOther);
  s.pass(1s);
  REQUIRE(s.told == std::vector<ActorId>{workers[0]});
  s.pass(3s);
  REQUIRE(s.told == workers);
  s.gives_back(workers[1]);
  CHECK(s.held_by(kOther) == 1);
}

// One whose only worker waited, its CPU lent to another process, counted as holding its share for good.
TEST_CASE("a worker whose task waits is nobody's share: its process gets another one in its turn") {
  Turns s(2);
  s.ask(kDriver), s.ask(kOther);
  REQUIRE(s.started.size() == 2);
  s.now += 10ms;
  s.on(ActorWaits{NodeId{1}, s.started[0], 1, true}), s.note();
  s.ask(kOther);
  REQUIRE(s.held_by(kOther) == 2);
  s.ask(kDriver);
  s.pass(1s);
  REQUIRE(s.told == std::vector<ActorId>{s.started[1]});
  s.gives_back(s.started[1]);
  CHECK(s.held_by(kDriver) == 2);
}

TEST_CASE("for a worker with the same demand its own process is not asked, and actors never are") {
  Turns s(2);
  s.ask(kDriver);
  s.wants(1);
  const ActorId worker = s.started[0];
  s.ask(kDriver);
  s.pass(5s);
  CHECK(s.told.empty());
  SECTION("of another demand it is") {
    s.ask(kDriver, 0.5);
    s.pass(500ms);
    CHECK(s.told == std::vector<ActorId>{worker});
  }
  SECTION("for another process it is") {
    s.ask(kOther);
    s.pass(500ms);
    CHECK(s.told == std::vector<ActorId>{worker});
  }
  SECTION("what workers cannot make room for asks nobody") {
    s.wants(2);
    s.pass(5s);
    CHECK(s.told.empty());
  }
}

TEST_CASE("processes that never stop share the CPUs, and take turns where there are too few") {
  SECTION("two of three") {
    Turns s(3);
    for (int i = 0; i < 7; ++i) s.ask(kDriver);
    for (int i = 0; i < 4; ++i) s.ask(kOther);
    s.run(5s, {kDriver, kOther});
    CHECK(s.held_by(kOther) == 1);
    CHECK(s.held_by(kDriver) == 2);
    const std::size_t swaps = s.started.size();
    s.run(60s, {kDriver, kOther});
    CHECK(s.started.size() == swaps);  // each exchange costs a process
  }
  SECTION("two of one") {
    Turns s(1);
    for (int i = 0; i < 5; ++i) s.ask(kDriver);
    for (int i = 0; i < 4; ++i) s.ask(kOther);
    s.run(5s, {kDriver, kOther});
    CHECK(s.most == std::map<ProcessAddress, int>{{kDriver, 1}, {kOther, 1}});
    CHECK(s.started.size() >= 5);
    CHECK(s.started.size() <= 11);  // none that was leased a moment ago is asked for
  }
}

// Else every smaller one that comes is faster.
TEST_CASE("what comes free is kept for a large one until it has all, but not for tasks that take long") {
  Turns s(4);
  for (int i = 0; i < 4; ++i) s.ask(kDriver), s.now += 10ms;
  const std::vector<ActorId> workers = s.started;
  s.pass(1s);
  for (int i = 0; i < 4; ++i) s.ask(kDriver);
  SECTION("an actor") {
    const Requester large = s.wants(4);
    s.pass(500ms);
    CHECK(s.told == workers);
    for (int i = 0; i < 3; ++i) s.gives_back(workers[static_cast<std::size_t>(i)]), s.pass(250ms);
    CHECK(s.started.size() == 4);
    SECTION("gets it") {
      s.gives_back(workers[3]);
      REQUIRE(s.started.size() == 5);
      CHECK(s.whose(s.started[4]) == large);
    }
    SECTION("waits for a task that takes long, and others do not") {
      s.pass(10s);
      CHECK(s.held_by(kDriver) == 4);
    }
  }
  SECTION("a placement group") {
    const int needed = GENERATE(3, 4);
    const GroupId group = s.group({{kCpu, 0}, {(needed - 1) * kCpu, 0}});
    s.pass(500ms);
    CHECK(s.told == std::vector<ActorId>(workers.begin(), workers.begin() + needed));
    CHECK(s.why.find("given back: placement group ") == 0);
    const auto is_ready = [&] { return s.head->groups().find(group)->record.state == GroupState::kReady; };
    for (int i = 0; i < needed; ++i) {
      CHECK_FALSE(is_ready());
      s.gives_back(workers[static_cast<std::size_t>(i)]);
      s.pass(250ms);
      CHECK(s.told.size() == static_cast<std::size_t>(needed));
    }
    CHECK(is_ready());
    CHECK(s.started.size() == 4);
  }
}

// Was: a thousand that wait were looked at in a tick, in rounds. Of 100,000 each had its turn looked at every
// 25 s.
TEST_CASE("what has its turn is looked at in each tick, however many wait behind it") {
  Turns s(2);
  for (int i = 0; i < 2; ++i) s.ask(kDriver), s.now += 10ms;
  const std::vector<ActorId> workers = s.started;
  s.pass(1s);
  s.wants(1);
  for (int i = 0; i < 2'500; ++i)  // three ticks are a round
    s.head->on(SpawnRequested{{kDriver, 1'000 + static_cast<std::uint64_t>(i)},
                              {s.job, std::string(kWorkerOfTasks), "", "arguments", Turns::demand(1)}},
               s.now);
  s.pass(500ms);
  CHECK(s.told == std::vector<ActorId>{workers[0]});
  for (int ticks = 0; ticks < 8; ++ticks) {
    CHECK(s.told.size() == 1);
    s.pass(250ms);
  }
  CHECK(s.told == workers);  // its task takes long: another one is asked for after 2 s
}

TEST_CASE("of workers with several resources those are asked for that have what is lacking") {
  Turns s(1);
  s.node_with_gpus(2, 1);
  for (int i = 0; i < 3; ++i) s.ask(kDriver);
  ActorDemand gpu = Turns::demand(0);
  gpu.gpu_e4 = kGpu;
  s.on(SpawnRequested{{kDriver, 500}, {s.job, std::string(kWorkerOfTasks), "", "arguments", gpu}}), s.note();
  REQUIRE(s.started.size() == 4);
  s.on(SpawnRequested{{kDriver, 501}, {s.job, "T", "", "arguments", gpu}}), s.note();
  s.pass(500ms);
  CHECK(s.told == std::vector<ActorId>{s.started[3]});
  s.gives_back(s.started[3]);
  REQUIRE(s.started.size() == 5);
  CHECK(s.whose(s.started[4]).request == 501);
}

// A worker that holds its GPU while its task waits is used again by its own process.
TEST_CASE("for a worker with the same demand its own process is not asked while a task of it waits") {
  Turns s(1);
  s.node_with_gpus(2, 1);
  ActorDemand gpu = Turns::demand(1);
  gpu.gpu_e4 = kGpu;
  s.ask(kDriver, gpu);
  REQUIRE(s.started.size() == 1);
  s.on(ActorWaits{NodeId{2}, s.started[0], 1, true}), s.note();
  s.ask(kDriver, gpu);
  s.pass(5s);
  CHECK(s.told.empty());
}

// A loop of tasks in a ready group held its bundle for good, and an actor that was spawned there waited until
// it was given up.
TEST_CASE("in a bundle that is full of workers what waits long for its room gets it from them") {
  Turns s(5);
  s.ask(kDriver), s.now += 10ms;  // outside: its room would not help
  const GroupId group = s.group({{2 * kCpu, 0}, {kCpu, 0}});
  const ActorDemand one = Turns::inside(group, Turns::demand(1));
  for (int i = 0; i < 3; ++i) s.ask(kDriver, one), s.now += 10ms;
  const std::vector<ActorId> workers = s.started;
  REQUIRE(workers.size() == 4);
  const auto bundle_of = [&](ActorId worker) { return s.head->actors().at(worker).record.bundle; };
  std::vector<ActorId> in_large;
  for (const ActorId worker : workers) {
    if (bundle_of(worker) == 0) in_large.push_back(worker);
  }
  REQUIRE(in_large.size() == 2);
  for (int i = 0; i < 3; ++i) s.ask(kDriver, one);  // as a process does that has many tasks
  s.pass(5s);
  CHECK(s.told.empty());
  SECTION("an actor anywhere in it: of the oldest lease in the group") {
    const Requester actor = s.wants(Turns::inside(group, Turns::demand(0.5)));
    s.pass(500ms);
    REQUIRE(s.told == std::vector<ActorId>{workers[1]});
    s.pass(1s);
    CHECK(s.told.size() == 1);
    SECTION("its task ends") {
      s.gives_back(workers[1]);
      REQUIRE(s.started.size() == 5);
      CHECK(s.whose(s.started[4]) == actor);  // not one of the three that came before it
      CHECK(bundle_of(s.started[4]) == bundle_of(workers[1]));
    }
    SECTION("the group is removed") {
      s.on(GroupRequested{{kDriver, 901}, s.job, GroupVerb::kRemove, group, {}}), s.note();
      for (const ActorId worker : {workers[1], workers[2], workers[3]}) s.gives_back(worker);
      s.pass(1s);
      CHECK(s.head->groups().all().empty());
      CHECK(s.told.size() == 1);
    }
    SECTION("its node leaves") {
      s.on(NodeLeft{NodeId{1}, "bye"}), s.note();
      s.pass(1s);
      CHECK(s.told.size() == 1);
    }
  }
  SECTION("an actor that names a bundle: of those there") {
    s.wants(Turns::inside(group, Turns::demand(1), 1));
    s.pass(500ms);
    REQUIRE(s.told.size() == 1);
    CHECK(bundle_of(s.told[0]) == 1);
  }
  SECTION("a large one: what comes free in its bundle is kept for it until it has all") {
    const Requester large = s.wants(Turns::inside(group, Turns::demand(2)));
    s.pass(500ms);
    CHECK(s.told == in_large);
    s.gives_back(in_large[0]);
    s.pass(250ms);
    CHECK(s.started.size() == 4);
    CHECK(s.told.size() == 2);
    s.gives_back(in_large[1]);
    REQUIRE(s.started.size() == 5);
    CHECK(s.whose(s.started[4]) == large);
  }
  SECTION("another process that has none, and then no more") {
    for (int i = 0; i < 4; ++i) s.ask(kOther, one);
    s.run(10s, {kOther});
    CHECK(s.held_by(kOther) == 1);  // of the three in it: what is outside is no share of it
    const std::size_t swaps = s.started.size();
    s.run(10s, {kOther});
    CHECK(s.started.size() == swaps);
  }
  SECTION("what is outside has none of it") {
    s.wants(3);
    s.pass(5s);
    CHECK(s.told.empty());
  }
}

TEST_CASE("of a bundle's workers those are asked for that hold its GPUs") {
  Turns s(1);
  s.node_with_gpus(2, 3);
  const auto gpus = [](int count) {
    ActorDemand demand = Turns::demand(0);
    demand.gpu_e4 = count * kGpu;
    return demand;
  };
  s.wants(gpus(1));  // GPU 0
  const GroupId group = s.group({{kCpu, 2 * kGpu}});
  s.ask(kDriver, Turns::inside(group, Turns::demand(1)));
  s.ask(kDriver, Turns::inside(group, gpus(1)));
  REQUIRE(s.started.size() == 3);
  const Requester actor = s.wants(Turns::inside(group, gpus(2)));
  s.pass(500ms);
  CHECK(s.told == std::vector<ActorId>{s.started[2]});
  s.gives_back(s.started[2]);
  REQUIRE(s.started.size() == 4);
  CHECK(s.whose(s.started[3]) == actor);
  CHECK(s.head->actors().at(s.started[3]).record.gpus == std::vector<std::uint32_t>{1, 2});
}

TEST_CASE("what was kept on one node is others' once the room is made on another") {
  Turns s(2);
  s.node(2, 2);
  for (int i = 0; i < 4; ++i) s.ask(kDriver), s.now += 10ms;
  REQUIRE(s.started.size() == 4);
  s.ask(kDriver);
  s.pass(500ms);
  s.wants(2);
  s.pass(500ms);
  REQUIRE(s.told.size() == 2);
  s.gives_back(s.told[0]);
  CHECK(s.started.size() == 4);
  s.pass(2s);  // the other's task takes longer
  CHECK(s.told.size() == 4);
  CHECK(s.started.size() == 5);
}

TEST_CASE("a worker whose process's node is gone is not asked for: nobody would give it back") {
  Turns s(1);
  s.node(2, 0);
  s.on(LeaseRequested{NodeId{2}, s.job});
  s.ask({NodeId{2}, ProcessId{8}});
  REQUIRE(s.started.size() == 1);
  s.on(NodeLeft{NodeId{2}, "bye"});
  s.wants(1);
  s.pass(1s);
  CHECK(s.told.empty());
}

namespace {

/// On one node: owners who make a group, use it for some time and make the next, for ever, and actors that
/// are spawned anew when they have ended. Tasks never end to come.
struct Loops : Turns {
  using Turns::Turns;
  struct Loop {
    std::vector<BundleDemand> bundles;  ///< of groups; none: actors
    double cpus = 0;                    ///< of an actor
    Duration lasts{};
    std::uint64_t request = 0;  ///< that waits, or has its room
    Instant asked{}, ends{};
    bool has_room = false;
    int rounds = 0;
    Duration longest{};  ///< wait, also one that has not ended
  };
  void ask_for(Loop& loop) {
    loop.request = ++request;
    loop.asked = now;
    loop.has_room = false;
    if (loop.bundles.empty()) {
      on(SpawnRequested{{kDriver, loop.request}, {job, "T", "", "arguments", demand(loop.cpus)}});
    } else {
      const GroupSpec spec{{}, "", PlacementStrategy::kPack, loop.bundles};
      on(GroupRequested{{kDriver, loop.request}, job, GroupVerb::kMake, {}, spec});
    }
    note();
  }
  const Group* group_of(const Loop& loop) const {
    for (const auto& [id, group] : head->groups().all()) {
      if (group.record.requester.request == loop.request) return &group;
    }
    return nullptr;
  }
  const Actor* actor_of(const Loop& loop) const {
    for (const auto& [id, actor] : head->actors()) {
      if (actor.record.requester == Requester{kDriver, loop.request}) return &actor;
    }
    return nullptr;
  }
  void go_on(Loop& loop) {
    const Group* group = group_of(loop);
    const Actor* actor = actor_of(loop);
    const bool has_room = group != nullptr ? group->record.state == GroupState::kReady : actor != nullptr;
    if (!loop.has_room) loop.longest = std::max(loop.longest, now - loop.asked);
    if (has_room && !std::exchange(loop.has_room, true)) ++loop.rounds, loop.ends = now + loop.lasts;
    if (!loop.has_room || now < loop.ends) return;
    if (group != nullptr) {
      on(GroupRequested{{kDriver, ++request}, job, GroupVerb::kRemove, group->record.group, {}}), note();
    } else {
      on(ActorDown{actor->record.node, actor->record.actor, "killed"}), note();
    }
    ask_for(loop);
  }
  /// In steps of a tick.
  void loop(std::vector<Loop>& loops, Duration time, const std::vector<ProcessAddress>& of_tasks = {}) {
    for (Loop& one : loops) ask_for(one);
    for (const ProcessAddress& owner : of_tasks) {
      for (int i = 0; i < 3; ++i) ask(owner);
      without[owner] = {};
    }
    for (const Instant until = now + time; now < until;) {
      run(250ms, of_tasks);
      for (Loop& one : loops) go_on(one);
      for (const ProcessAddress& owner : of_tasks) {
        without[owner] = held_by(owner) > 0 ? Duration{} : without[owner] + 250ms;
        longest_without[owner] = std::max(longest_without[owner], without[owner]);
      }
    }
  }
  std::map<ProcessAddress, Duration> without, longest_without;
};

}  // namespace

// Two programs that made and removed groups handed the room to each other: an actor was given up after two
// minutes, and tasks waited until those programs ended.
TEST_CASE("groups that come without end, actors and tasks have their room in turns") {
  const auto groups =
      GENERATE(std::vector<BundleDemand>{{2 * kCpu, 0}}, std::vector<BundleDemand>{{kCpu, 0}, {kCpu, 0}});
  Loops s(2);
  std::vector<Loops::Loop> loops{{groups, 0, 500ms}, {{{2 * kCpu, 0}}, 0, 500ms}, {{}, 1, 250ms}};
  s.loop(loops, 120s, {kOther});
  for (const Loops::Loop& one : loops) {
    CAPTURE(one.cpus, one.rounds, to_seconds(one.longest));
    CHECK(one.longest <= 15s);
    CHECK(one.rounds >= 12);
  }
  CHECK(s.longest_without[kOther] <= 15s);
}

TEST_CASE("of groups, small actors and large ones that come without end none keeps another from its room") {
  using Loop = Loops::Loop;
  const Loop small_group{{{kCpu, 0}}, 0, 700ms}, group{{{2 * kCpu, 0}}, 0, 700ms};
  const Loop actor{{}, 1, 500ms}, other_actor{{}, 1, 800ms}, large_actor{{}, 2, 500ms};
  std::vector<Loop> loops;
  SECTION("a group and two small actors") {
    loops = {actor, other_actor, group};
  }
  SECTION("a large actor and two small groups") {
    loops = {small_group, small_group, large_actor};
  }
  SECTION("a large actor and two large groups") {
    loops = {group, group, large_actor};
  }
  SECTION("a small actor and groups that last") {
    loops = {{{{2 * kCpu, 0}}, 0, 20s}, {{{2 * kCpu, 0}}, 0, 20s}, actor};
  }
  Loops s(2);
  s.loop(loops, 200s);
  for (const Loop& one : loops) {
    CAPTURE(one.cpus, one.bundles.size(), one.rounds, to_seconds(one.longest));
    CHECK(one.longest <= 45s);
    CHECK(one.rounds >= 3);
  }
}

TEST_CASE(
    "room that comes free goes to a spawn that has waited long before a group that came later, and not "
    "before one that came earlier") {
  Loops s(2);
  Loops::Loop before{{{2 * kCpu, 0}}, 0, 60s}, first{{{2 * kCpu, 0}}, 0, 60s};
  s.ask_for(before);
  const bool group_is_first = GENERATE(true, false);
  if (group_is_first) s.ask_for(first), s.pass(1s);
  const Requester actor = s.wants(1);
  s.pass(1s);
  if (!group_is_first) s.ask_for(first);
  const Duration waits = GENERATE(Duration(1s), Duration(11s));
  s.pass(waits);
  s.on(GroupRequested{
      {kDriver, ++s.request}, s.job, GroupVerb::kRemove, s.group_of(before)->record.group, {}});
  s.note();
  const bool has_actor = !s.started.empty() && s.whose(s.started[0]) == actor;
  CHECK(has_actor == (!group_is_first && waits > 3s));
  CHECK((s.group_of(first)->record.state == GroupState::kReady) == !has_actor);
}

// Room of which others were to go, and did not, was kept for it as long as it waited.
TEST_CASE("room is kept no longer than 10 s where those stay who hold the rest") {
  Turns s(3);
  s.pass(20s);
  for (int i = 0; i < 3; ++i) s.wants(1);
  REQUIRE(s.started.size() == 3);
  s.group({{3 * kCpu, 0}});
  s.pass(4s);
  s.on(ActorDown{NodeId{1}, s.started[2], "killed"}), s.note();
  const Requester later = s.wants(1);
  s.pass(5s);
  CHECK(s.started.size() == 3);  // the group is next
  s.pass(2s);
  REQUIRE(s.started.size() == 4);
  CHECK(s.whose(s.started[3]) == later);
}

// A spawn was given up after two minutes with the name of a group that had lived for one second of them.
TEST_CASE("what waits hears again what it waits for") {
  Loops s(2);
  s.wants(1);
  Loops::Loop first{{{kCpu, 0}}, 0, 60s}, second{{{kCpu, 0}}, 0, 60s}, waits{{{2 * kCpu, 0}}, 0, 60s};
  s.ask_for(first);
  s.wants(2);
  const Requester actor{kDriver, s.request};
  const std::string old = to_string(s.group_of(first)->record.group);
  s.ask_for(waits);
  CHECK(s.group_of(waits)->reason.find(old) != std::string::npos);
  s.on(
      GroupRequested{{kDriver, ++s.request}, s.job, GroupVerb::kRemove, s.group_of(first)->record.group, {}});
  s.ask_for(second);
  const std::string now_there = to_string(s.group_of(second)->record.group);
  std::string told;
  for (int ticks = 0; ticks < 60; ++ticks) {
    s.now += 250ms;
    for (const NodeId node : {NodeId{1}, kGateway}) s.on(Heartbeat{node});
    s.on(Tick{});
    for (const SpawnWaits& one : s.all<SpawnWaits>()) {
      if (one.to == actor) told = one.reason;
    }
  }
  CHECK(told.find(now_there) != std::string::npos);
  CHECK(told.find(old) == std::string::npos);
  CHECK(s.group_of(waits)->reason.find(now_there) != std::string::npos);
}
