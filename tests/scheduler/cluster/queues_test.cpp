// Queues of submissions: quotas, shares, turns, and that nobody starves.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

using State = SubmissionState;

struct Queues : Script {
  explicit Queues(ClusterConfig with = {}) : Script(with) { gateway(); }
  void set(const std::string& name, int cpus, int weight = 1) {
    on(QueueChanged{{name, cpus < 0 ? -1 : cpus * kCpu, -1, weight * 10'000LL}});
  }
  void submit(const std::string& id, const std::string& queue, int cpus, int priority = 0) {
    SubmissionSpec spec;
    spec.id = id;
    spec.program = {"x"};
    spec.cpu_e4 = cpus * kCpu;
    spec.queue = queue;
    spec.priority = priority;
    on(SubmissionRequested{spec});
  }
  void ends(const std::string& id) {
    const SubmissionRecord& one = *head->submissions().find(id);
    on(DriverEnded{one.node, id, one.attempt, {.ran = true, .exit_code = 0, .how = "exit code 0"}});
  }
  bool holds(const std::string& id) const {
    const State state = head->submissions().find(id)->state;
    return state == State::kStarting || state == State::kRunning;
  }
  std::string why(const std::string& id) const { return head->why(*head->submissions().find(id)); }
  QueueStatus status(const std::string& name) const {
    for (const QueueStatus& one : head->queue_statuses())
      if (one.queue.name == name) return one;
    return {};
  }
  /// A program of that submission, which spawns.
  JobId program(const std::string& id, std::uint64_t request) {
    on(JobRegistered{"of-" + id, kDriver, request, id});
    return the<JobAnswered>().job;
  }
};

}  // namespace

TEST_CASE("a queue is set, known to a head that restarts, and removed when nobody is in it") {
  Queues s;
  s.node(1, 8);
  s.set("a", 4, 2);
  CHECK(s.store.contains("queue/a"));
  s.submit("one", "a", 1);
  REQUIRE(s.head->queue_refused({{"a"}, true}).has_value());
  CHECK(s.head->queue_refused({{"a"}, true})->why == "1 job of it waits or runs");
  s.on(QueueChanged{{"a"}, true});
  CHECK(s.store.contains("queue/a"));
  s.restart();
  s.gateway();
  s.on(NodeJoined{{NodeId{1}, "n1", "", "", 8 * kCpu, false},
                  {},
                  {},
                  {},
                  false,
                  {{"one", 1, HeldDriver::State::kRuns, {}}}});
  CHECK(s.status("a").queue == QueueRecord{"a", 4 * kCpu, -1, 20'000});
  CHECK(s.status("a").cpu_used_e4 == kCpu);
  CHECK(s.status("a").runs == 1);
  s.ends("one");
  s.on(QueueChanged{{"a"}, true});
  CHECK_FALSE(s.store.contains("queue/a"));
  CHECK(s.head->queue_refused({{"a"}, true})->why == "there is none of that name");
  SubmissionSpec spec;
  spec.id = "two";
  spec.program = {"x"};
  spec.queue = "a";
  CHECK(s.head->submission_refused(spec)->why == "there is no queue a, there is default");
  CHECK(s.head->queue_refused({{"no name", -1, -1, 10'000}})->code == ErrorCode::kBadInput);
  CHECK(s.head->queue_refused({{"b", -1, -1, 0}})->code == ErrorCode::kBadInput);
}

// Was: the end of an actor that held nothing made the queue anew, without a quota, until the head restarted.
TEST_CASE("a queue that was removed stays so when the last actors of its jobs end") {
  Queues s;
  s.node(1, 8);
  s.set("a", 4);
  s.submit("one", "a", 0);
  const JobId job = s.program("one", 1);
  s.spawn(job, 2, "", 0);
  const ActorId actor = s.the<StartActor>().actor;
  s.on(ActorStarted{NodeId{1}, actor, ProcessId{9}});
  s.ends("one");
  s.on(JobEnded{kGateway, job, "done"});
  s.on(QueueChanged{{"a"}, true});
  CHECK(s.status("a").queue.name.empty());
  s.on(ActorDown{NodeId{1}, actor, "killed"});
  CHECK(s.status("a").queue.name.empty());
}

TEST_CASE("jobs of a queue hold no more than its quota: programs, what these spawn, and groups") {
  Queues s;
  s.node(1, 16);
  s.set("a", 4);
  s.submit("one", "a", 1);
  s.submit("two", "a", 4);
  s.submit("other", "", 8);
  CHECK(s.holds("other"));
  CHECK(s.why("two") == "queue a holds 1 CPU of its quota of 4, and 4 more are too many");
  const WaitReport report = s.head->explain(*s.head->submissions().find("two"));
  CHECK(report.verdict == WaitReport::Verdict::kQuota);
  CHECK(report.queues.at(0).queue.name == "a");
  CHECK(report.queues.at(0).cpu_used_e4 == kCpu);

  s.on(DriverStarted{NodeId{1}, "one", 1});
  const JobId job = s.program("one", 1);
  s.spawn(job, 10, "", 2);
  const ActorId first = s.the<StartActor>().actor;
  s.on(ActorStarted{NodeId{1}, first, ProcessId{9}});
  s.spawn(job, 11, "", 2);  // the node has room, the queue has 1
  CHECK(s.the<SpawnWaits>().reason == "queue a holds 3 CPU of its quota of 4, and 2 more are too many");
  CHECK(s.why("one") == "it runs on n1; an actor of it waits: T: " + s.the<SpawnWaits>().reason);
  s.spawn(job, 12, "", 1);
  CHECK(s.get<StartActor>() != nullptr);
  const GroupSpec two{{}, "", PlacementStrategy::kPack, {{kCpu, 0}, {kCpu, 0}}};
  s.on(GroupRequested{{kDriver, 13}, job, GroupVerb::kMake, {}, two});
  CHECK(s.the<GroupAnswered>().status.reason ==
        "queue a holds 4 CPU of its quota of 4, and 2 more are too many");
  CHECK(s.status("a").cpu_used_e4 == 4 * kCpu);
  // What ends makes room for what waits, groups first.
  s.on(ActorDown{NodeId{1}, first, "killed"});
  CHECK(s.get<StartActor>() == nullptr);
  CHECK(s.head->groups().waiting().empty());
  CHECK(s.status("a").cpu_used_e4 == 4 * kCpu);
  // A quota that is raised does, too.
  s.set("a", 6);
  REQUIRE(s.get<StartActor>() != nullptr);
  CHECK(s.status("a").cpu_used_e4 == 6 * kCpu);
  // A program that nobody submitted is in no queue.
  const JobId alone = s.job(2, "alone").job;
  s.spawn(alone, 20, "", 2);
  CHECK(s.get<StartActor>() != nullptr);
  s.on(NodeLeft{NodeId{1}, "bye"});
  CHECK(s.status("a").cpu_used_e4 == 0);
}

TEST_CASE("a queue's quota of memory and custom resources holds programs, actors and groups") {
  Queues s;
  NodeInfo info{NodeId{1}, "n1", "", "", 16 * kCpu, false};
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  info.other = other_resources(16 * kGiB, {{"tpu", 8}}, {});
  s.on(NodeJoined{info, {}, {}, {}});
  const auto quota = [&](std::int64_t memory, std::int64_t tpus) {
    s.on(QueueChanged{{"a", -1, -1, 10'000, {{"memory", memory}, {"tpu", tpus * 10'000}}}});
  };
  const auto submit = [&](const char* id, std::int64_t memory, double tpus) {
    SubmissionSpec spec{.id = id, .name = {}, .program = {"x"}};
    spec.queue = "a";
    spec.other = other_resources(memory, {{"tpu", tpus}}, {});
    s.on(SubmissionRequested{spec});
  };
  quota(4 * kGiB, 2);
  submit("one", kGiB, 0);
  submit("two", 4 * kGiB, 0);
  CHECK(s.why("two") == "queue a holds 1 GiB of memory of its quota of 4 GiB, and 4 GiB more are too many");
  CHECK(s.head->explain(*s.head->submissions().find("two")).verdict == WaitReport::Verdict::kQuota);
  submit("three", 0, 3);
  CHECK(s.why("three") ==
        "queue a holds 0 tpu of its quota of 2, and 3 more never fit: ask for less, or raise the quota "
        "(troupe queue set a)");
  const auto want = [&](JobId job, std::uint64_t request, std::int64_t memory, double tpus) {
    const ActorDemand demand{0, true, {}, 0, {}, -1, other_resources(memory, {{"tpu", tpus}}, {})};
    s.on(SpawnRequested{{kDriver, request}, {job, "T", "", "arguments", demand}});
  };
  const JobId job = s.program("one", 1);
  want(job, 10, 0, 2);
  const ActorId first = s.the<StartActor>().actor;
  s.on(ActorStarted{NodeId{1}, first, ProcessId{9}});
  want(job, 11, 0, 1);
  CHECK(s.the<SpawnWaits>().reason == "queue a holds 2 tpu of its quota of 2, and 1 more are too many");
  const BundleDemand bundle{0, 0, other_resources(2 * kGiB, {}, {})};
  s.on(GroupRequested{
      {kDriver, 12}, job, GroupVerb::kMake, {}, {{}, "", PlacementStrategy::kPack, {bundle, bundle}}});
  CHECK(
      s.the<GroupAnswered>().status.reason ==
      "queue a holds 1 GiB of memory of its quota of 4 GiB, and 4 GiB more are too many; programs of its "
      "jobs "
      "hold 1 GiB of memory of that themselves, beside which these never fit: stop a job of it, or raise the "
      "quota");
  CHECK(s.status("a").other_used == ResourceAmounts{{"memory", kGiB}, {"tpu", 20'000}});
  CHECK(s.status("a").share_e4 == 2'500);
  // What is given back makes room, as does a higher quota; both are known to a head that starts again.
  s.on(ActorDown{NodeId{1}, first, "killed"});
  REQUIRE(s.get<StartActor>() != nullptr);
  quota(5 * kGiB, 3);
  CHECK(s.head->groups().waiting().empty());
  CHECK(s.status("a").other_used == ResourceAmounts{{"memory", 5 * kGiB}, {"tpu", 10'000}});
  s.restart();
  CHECK(s.status("a").queue.other == ResourceAmounts{{"memory", 5 * kGiB}, {"tpu", 30'000}});
  for (const ResourceAmounts& wrong : {ResourceAmounts{{"tpu", -1}},
                                       {{"b", 1}, {"a", 1}},
                                       {{"a", 1}, {"a", 1}},
                                       {{"cpu", 1}},
                                       {{"", 1}},
                                       {{"memory", kMaxMemoryBytes + 1}}}) {
    CAPTURE(wrong.front().name);
    const auto refused = s.head->queue_refused({{"b", -1, -1, 10'000, wrong}});
    REQUIRE(refused.has_value());
    CHECK((refused->code == ErrorCode::kBadInput && refused->why.starts_with("its quota: ")));
  }
}

// Was: "no node has 2 CPU free: n1 has 0 of 2" alone, whoever held them, as the trainers of a run that was
// over.
TEST_CASE("who waits for what actors hold is told whose they are, and what frees it") {
  Queues s;
  s.node(1, 2);
  s.submit("one", "", 0);
  s.on(DriverStarted{NodeId{1}, "one", 1});
  const JobId job = s.program("one", 1);
  for (std::uint64_t request = 10; request < 12; ++request) {
    s.spawn(job, request);
    s.on(ActorStarted{NodeId{1}, s.the<StartActor>().actor, ProcessId{request}});
  }
  s.submit("two", "", 2);
  const std::string held =
      "; room is held by 2 actors (T) of job one (2 CPU), until they end or their program lets go of "
      "them "
      "(of a training run: takes its result)";
  CHECK(s.why("two").ends_with(held));
  const WaitReport report = s.head->explain(*s.head->submissions().find("two"));
  CHECK(report.sentence.ends_with(held));
  REQUIRE(report.holders.size() == 1);
  CHECK(report.holders[0].id == "one");
  CHECK(report.holders[0].node_name == "n1");
  CHECK(report.holders[0].cpu_e4 == 2 * kCpu);
  CHECK(report.holders[0].what == "2 actors, until they end or their program lets go of them");
  s.spawn(job, 12);  // an actor that waits in the same program, whose first ones are done
  CHECK(s.why("one") ==
        "it runs on n1; an actor of it waits: T: no node has 1 CPU free: n1 has 0 of 2" + held);
  // What asks for none of it is not named, nor are actors in a group: their group is.
  s.submit("gpu", "", 0);
  CHECK(s.holds("gpu"));
  for (const auto& [id, actor] : std::map(s.head->actors())) s.on(ActorDown{NodeId{1}, id, "ended"});
  const GroupSpec both{{}, "pair", PlacementStrategy::kPack, {{kCpu, 0}, {kCpu, 0}}};
  s.on(JobEnded{kGateway, job, "done"});
  for (const auto& [id, actor] : std::map(s.head->actors())) s.on(ActorDown{NodeId{1}, id, "ended"});
  const JobId alone = s.job(2, "alone").job;
  REQUIRE(s.holds("two"));
  s.ends("two");
  s.on(GroupRequested{{kDriver, 20}, alone, GroupVerb::kMake, {}, both});
  s.submit("three", "", 1);
  CHECK(s.why("three").ends_with("; room is held by placement group pair of job alone (2 CPU)"));
  const WaitReport third = s.head->explain(*s.head->submissions().find("three"));
  REQUIRE(third.holders.size() == 1);
  CHECK((third.holders[0].id == "alone" && third.holders[0].cpu_e4 == 2 * kCpu));
  CHECK(third.holders[0].what == "placement group pair, until it is removed or its program ends");
}

// Was: such a job waited for ever for trainers that its own program left no room for, and nobody said so.
TEST_CASE("actors that never fit beside the programs of their queue are told so") {
  Queues s;
  s.node(1, 16);
  s.set("a", 4);
  s.submit("one", "a", 3);
  s.on(DriverStarted{NodeId{1}, "one", 1});
  const JobId job = s.program("one", 1);
  s.spawn(job, 10, "", 2);
  const std::string over = "queue a holds 3 CPU of its quota of 4, and 2 more are too many";
  const std::string stuck =
      "; programs of its jobs hold 3 CPU of that themselves, beside which these never fit: stop a job of it, "
      "or "
      "raise the quota";
  CHECK(s.the<SpawnWaits>().reason == over + stuck);
  CHECK(s.why("one").ends_with(stuck));
  const GroupSpec two{{}, "", PlacementStrategy::kPack, {{kCpu, 0}, {kCpu, 0}}};
  s.on(GroupRequested{{kDriver, 13}, job, GroupVerb::kMake, {}, two});
  CHECK(s.the<GroupAnswered>().status.reason == over + stuck);
  s.ends("one");  // and gives it back
  CHECK(s.head->groups().waiting().empty());
  CHECK(s.status("a").cpu_used_e4 == 4 * kCpu);
  s.submit("two", "a", 0);
  s.spawn(s.program("two", 2), 20, "", 1);
  CHECK(s.the<SpawnWaits>().reason == "queue a holds 4 CPU of its quota of 4, and 1 more are too many");
}

// Was: a drain ended it, and what waited for the queue's quota took what it gave back.
TEST_CASE("a drain moves no actor that would not get its queue's quota back") {
  const auto lives = [](Queues& s, JobId job, std::uint64_t request) {
    s.on(SpawnRequested{{kDriver, request}, {job, "T", "", "arguments", {kCpu, true, {}}, 3, 0}});
    const StartActor start = *s.get<StartActor>();
    s.on(ActorStarted{start.node, start.actor, ProcessId{9}, 1});
    return start.actor;
  };
  enum class Waits { kNobody, kActor, kProgram };
  for (const Waits waits : {Waits::kNobody, Waits::kActor, Waits::kProgram}) {
    CAPTURE(static_cast<int>(waits));
    Queues s;
    s.node(1, 8);
    s.set("a", 1);
    s.submit("one", "a", 0);
    const JobId job = s.program("one", 1);
    lives(s, job, 10);
    if (waits == Waits::kActor) s.spawn(job, 11);
    if (waits == Waits::kProgram) s.submit("two", "a", 1);
    s.node(2, 8);
    s.on(DrainRequested{NodeId{1}, 30'000, "by hand", false});
    s.on(Tick{});
    CHECK(static_cast<bool>(s.head->nodes().at(NodeId{1}).drain->moving) == (waits == Waits::kNobody));
  }
  Queues s;  // below what is held
  s.node(1, 8);
  s.set("a", 1);
  s.submit("one", "a", 0);
  lives(s, s.program("one", 1), 10);
  s.set("a", 0);
  s.node(2, 8);
  s.on(DrainRequested{NodeId{1}, 30'000, "by hand", false});
  CHECK_FALSE(s.head->nodes().at(NodeId{1}).drain->moving);
}

// Was: "no node has 1 CPU free: the largest has 8, and the most that are free on one are 8".
TEST_CASE("what calls of an actor wait for whose next life its queue stops") {
  Queues s;
  s.node(1, 8);
  s.set("a", 1);
  s.submit("one", "a", 0);
  const JobId job = s.program("one", 1);
  s.on(SpawnRequested{{kDriver, 2}, {job, "T", "", "arguments", {kCpu, true, {}}, 1, 0}});
  const ActorId actor = s.the<StartActor>().actor;
  s.on(ActorStarted{NodeId{1}, actor, ProcessId{9}});
  s.on(ResolveActor{kGateway, job, actor});
  s.set("a", 0);
  s.on(ActorDown{NodeId{1}, actor, "signal 9", 1});
  s.on(ActorArguments{{kDriver, 2}, actor, true, "arguments"});
  CHECK(s.get<StartActor>() == nullptr);
  CHECK(s.the<ActorPlaced>().place.reason ==
        "signal 9; its next life waits: queue a holds 0 CPU of its quota of 0, and 1 more never fit: ask for "
        "less, or raise the quota (troupe queue set a)");
}

TEST_CASE("actors that start together are counted as one") {
  Queues s;
  s.node(1, 8);
  s.set("a", 2);
  s.submit("one", "a", 0);
  const JobId job = s.program("one", 1);
  const GroupSpec spec{{}, "", PlacementStrategy::kPack, {{kCpu, 0}, {kCpu, 0}, {kCpu, 0}}, true};
  s.on(GroupRequested{{kDriver, 2}, job, GroupVerb::kMake, {}, spec});
  const GroupId group = s.the<GroupAnswered>().status.record.group;
  for (std::int32_t i = 0; i < 3; ++i)
    s.on(SpawnRequested{{kDriver, 10 + static_cast<std::uint64_t>(i)},
                        {job, "T", "", "", {kCpu, true, {}, 0, group, i}}});
  CHECK(s.get<StartActor>() == nullptr);
  CHECK(s.head->groups().find(group)->reason ==
        "queue a holds 0 CPU of its quota of 2, and 3 more never fit: ask for less, or raise the quota "
        "(troupe queue set a)");
  s.set("a", 3);
  CHECK(s.all<StartActor>().size() == 3);
  CHECK(s.status("a").cpu_used_e4 == 3 * kCpu);
}

// The one that was tried the longest time ago was over its quota, and stayed the one: no other had its turn.
TEST_CASE("a group over its quota does not take the turn of those whose search takes long") {
  ClusterConfig config;
  config.group_looks = 0;  // every search in vain does
  Queues s(config);
  s.node(1, 2);
  s.set("a", -1);
  s.submit("one", "a", 0);
  const JobId of_queue = s.program("one", 1);
  const JobId alone = s.job(2, "alone").job;
  const ActorId busy = s.up(alone, 3);
  const auto make = [&](JobId job, std::uint64_t request) {
    const GroupSpec spec{{}, "", PlacementStrategy::kPack, {BundleDemand{2 * kCpu, 0}}};
    s.on(GroupRequested{{kDriver, request}, job, GroupVerb::kMake, {}, spec});
    return s.the<GroupAnswered>().status.record.group;
  };
  const GroupId first = make(of_queue, 4), second = make(alone, 5);
  s.set("a", 0);
  s.on(ActorDown{NodeId{1}, busy, "killed"});
  s.pass(3, {NodeId{1}, kGateway});
  CHECK(s.head->groups().find(first)->record.state == GroupState::kWaiting);
  CHECK(s.head->groups().find(second)->record.state == GroupState::kReady);
}

TEST_CASE("of queues that wait the one with the least dominant share goes first, by weight") {
  Queues s;
  s.set("a", -1, 2);
  s.set("b", -1);
  // Twelve of one CPU in each, on six CPUs: 4 of a's and 2 of b's, though all of b's came first.
  for (const char* queue : {"b", "a"})
    for (int i = 0; i < 12; ++i) s.submit(queue + std::to_string(i), queue, 1);
  s.node(1, 6);
  const auto running = [&](const std::string& queue) {
    int count = 0;
    for (int i = 0; i < 12; ++i) count += s.holds(queue + std::to_string(i)) ? 1 : 0;
    return count;
  };
  CHECK(running("a") == 4);
  CHECK(running("b") == 2);
  // b's waited first when both had the same, and keeps its turn; then a has less.
  s.ends("a0");
  CHECK(running("b") == 3);
  s.ends("b0");
  CHECK(running("a") == 4);
  CHECK(running("b") == 2);
  // Within a queue its order holds.
  CHECK(s.holds("a4"));
  CHECK(s.holds("b2"));
  CHECK_FALSE(s.holds("a5"));
  const WaitReport report = s.head->explain(*s.head->submissions().find("b5"));
  CHECK(report.queues.size() == 2);
  CHECK(report.position > 1);
}

// Shares change with everything that ends: without a turn that is kept, the room that was kept for the large
// one went to whoever had less just then, for ever.
TEST_CASE("a large job starts, whatever small ones come in other queues and in its own") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    const auto below = [&](std::uint64_t n) { return random.next() % n; };
    Queues s;
    for (const char* name : {"a", "b", "c"}) s.set(name, -1, static_cast<int>(1 + below(3)));
    s.node(1, 4);
    s.node(2, 4);
    std::vector<std::string> small;
    int last = 0;
    const auto more = [&] {
      for (const char* queue : {"a", "b", "c"}) {
        std::size_t waits = 0;
        for (const auto& [place, id] : s.head->submissions().queue())
          waits += queue_of(s.head->submissions().find(id)->spec) == queue ? 1U : 0U;
        for (; waits < 3; ++waits) {
          const std::string id = "s" + std::to_string(++last);
          s.submit(id, queue, static_cast<int>(1 + below(2)), static_cast<int>(below(2)) - 1);
          small.push_back(id);
        }
      }
    };
    more();
    s.submit("large", "a", 4);
    int ended = 0;
    while (!s.holds("large")) {
      REQUIRE(++ended < 60);
      std::vector<std::string> running;
      for (const std::string& id : small)
        if (s.holds(id)) running.push_back(id);
      REQUIRE_FALSE(running.empty());
      s.ends(running[below(running.size())]);
      more();
    }
  }
}

TEST_CASE("why a job waits names the queue whose turn it is, and both shares") {
  Queues s;
  s.set("a", -1);
  s.set("b", -1);
  s.node(1, 4);
  s.submit("busy", "a", 2);
  s.submit("large", "b", 4);
  s.submit("small", "a", 1);
  CHECK(s.why("small") ==
        "the room that there is on n1 is kept for job large, which starts before it (it is the turn of its "
        "queue: of the cluster, by weight, b has 0 %, a has 50 %): no node has 4 CPU free: n1 has 2 of 4");
  CHECK(s.head->explain(*s.head->submissions().find("small")).ahead == std::vector<std::string>{"large"});
}
