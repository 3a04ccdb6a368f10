// Submitted jobs in the head's machine: who starts when, what runs once, and what becomes of it when head or
// node die.
#include "tests/scheduler/cluster/script.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::test;
using namespace std::chrono_literals;

namespace {

using State = SubmissionState;

struct Jobs : Script {
  using Script::Script;
  void submit(const std::string& id, int cpus, int retries = 0, int priority = 0, int gpus = 0) {
    SubmissionSpec spec;
    spec.priority = priority;
    spec.gpu_e4 = gpus * kGpu;
    spec.id = id;
    spec.program = {"sleep", "1"};
    spec.cpu_e4 = cpus * kCpu;
    spec.retries = retries;
    on(SubmissionRequested{spec});
  }
  void joins(std::uint64_t id, int cpus, std::vector<HeldDriver> drivers = {}) {
    NodeJoined joined{{NodeId{id}, "n" + std::to_string(id), "", "", cpus * kCpu, false}, {}, {}, {}};
    joined.drivers = std::move(drivers);
    on(joined);
  }
  void ends(const StartDriver& start, DriverEnd end) {
    on(DriverEnded{start.node, start.spec.id, start.attempt, end});
  }
  StartDriver started() {
    REQUIRE(get<StartDriver>() != nullptr);
    return *get<StartDriver>();
  }
  const SubmissionRecord& record(const std::string& id) { return *head->submissions().find(id); }
  std::string why(const std::string& id) { return head->why(record(id)); }
};

const DriverEnd kGood{.ran = true, .exit_code = 0, .how = "exit code 0"};
const DriverEnd kBad{.ran = true, .exit_code = 3, .how = "exit code 3"};

}  // namespace

TEST_CASE("jobs start first come, first served, out of the same CPUs as actors, and say why they wait") {
  Jobs s;
  s.submit("early", 1);
  CHECK(s.why("early") == "no node has joined yet");
  s.gateway();
  s.joins(1, 4);
  const StartDriver early = s.started();
  CHECK(s.record("early").state == State::kStarting);
  const JobId job = s.job().job;
  const ActorId actor = s.up(job, 1);  // holds a CPU of the same node
  s.submit("large", 4);
  s.submit("small", 1);
  s.submit("never", 64);
  s.submit("last", 1);
  CHECK(s.record("small").state == State::kQueued);  // it would fit: the large one came first
  const std::string held =
      "no node has 4 CPU free: n1 has 2 of 4; room is held by 1 actor (T) of job main (1 CPU), until they "
      "end or "
      "their program lets go of them (of a training run: takes its result)";
  CHECK(s.why("large") == held);
  CHECK(s.why("small") ==
        "the room that there is on n1 is kept for job large, which starts before it: no node has 4 CPU free: "
        "n1 "
        "has 2 of 4");
  CHECK(s.why("never") == "no node has 64 CPU at all: the largest has 4; it waits for a node that has it");
  CHECK(s.why("last").starts_with("the room that there is on n1 is kept for job large"));
  s.submit("large-too", 4);
  CHECK(s.why("large-too").ends_with(held + "; job large starts before it"));
  s.on(SubmissionStopRequested{"large-too"});

  s.ends(early, kGood);
  CHECK(s.record("early").state == State::kSucceeded);
  CHECK(s.get<StartDriver>() == nullptr);
  s.on(ActorDown{NodeId{1}, actor, "it ended"});
  const StartDriver large = s.started();
  CHECK(large.spec.id == "large");
  s.ends(large, {.ran = true, .exit_code = 0, .signal = 11, .how = "killed by signal 11 (SIGSEGV)"});
  CHECK(s.record("large").state == State::kFailed);
  CHECK(s.record("large").exit_code == 139);
  const auto both = s.all<StartDriver>();
  REQUIRE(both.size() == 2);  // and what no node can hold holds up nobody
  CHECK((both[0].spec.id == "small" && both[1].spec.id == "last"));
  s.joins(2, 64);
  CHECK(s.started().spec.id == "never");
}

TEST_CASE("the highest priority starts first, then who came first, over restarts of the head") {
  Jobs s;
  s.joins(1, 1);
  s.submit("now", 1);
  const StartDriver now = s.started();
  s.submit("low", 1, 0, -1);
  s.submit("plain", 1);
  s.submit("high", 1, 0, 5);
  s.submit("high-too", 1, 0, 5);
  CHECK(s.why("low").ends_with("job high starts before it"));
  s.restart();
  s.joins(1, 1, {{"now", 1, HeldDriver::State::kRuns, {}}});
  StartDriver last = now;
  for (const char* id : {"high", "high-too", "plain", "low"}) {
    s.ends(last, kGood);
    last = s.started();
    CHECK(last.spec.id == id);
  }
}

TEST_CASE("a job starts before one that waits where it takes nothing from it") {
  Jobs s;
  s.joins(1, 4);
  s.joins(2, 2);
  NodeJoined gpu{{NodeId{3}, "n3", "", "", 1 * kCpu, false}, {}, {}, {}};
  gpu.node.gpus = {"0"};
  s.on(gpu);
  s.submit("half", 3);
  CHECK(s.started().node == NodeId{1});
  s.submit("first", 4);
  for (const std::uint64_t node : {2, 3, 2}) {
    s.submit("small-" + std::to_string(s.head->submissions().all().size()), 1);
    CHECK(s.started().node == NodeId{node});
  }
  s.submit("kept", 1);
  CHECK(s.record("kept").state == State::kQueued);
  CHECK(s.why("kept") ==
        "the room that there is on n1 is kept for job first, which starts before it: no node has 4 CPU free: "
        "n1 "
        "has 1 of 4, n2 has 0 of 2, n3 has 0 of 1");
  s.submit("nothing", 0);  // asks for nothing that another waits for
  CHECK(s.get<StartDriver>() != nullptr);
  s.submit("gpu", 0, 0, 0, 1);
  CHECK(s.started().node == NodeId{3});

  const auto report = s.head->explain(s.record("first"));
  CHECK(report.verdict == WaitReport::Verdict::kWaits);
  CHECK((report.position == 1 && report.ahead.empty()));
  REQUIRE(report.resources.size() == 1);
  const auto& cpu = report.resources[0];
  CHECK((cpu.name == "CPU" && cpu.need_e4 == 4 * kCpu && cpu.most_e4 == 4 * kCpu));
  CHECK((cpu.most_free_e4 == kCpu && cpu.free_e4 == kCpu && cpu.total_e4 == 7 * kCpu));
  REQUIRE(report.nodes.size() == 3);
  CHECK((report.nodes[0].name == "n1" && report.nodes[0].lacks.at(0) == "3 CPU: 1 of 4 is free"));
  CHECK((report.nodes[1].name == "n2" && report.nodes[1].lacks.at(0) == "4 CPU, and has 2 in all"));
  REQUIRE(report.holders.size() == 4);
  CHECK((report.holders[0].id == "half" && report.holders[0].cpu_e4 == 3 * kCpu));
  const auto held = s.head->explain(s.record("kept"));
  CHECK((held.verdict == WaitReport::Verdict::kHeld && held.position == 2));
  CHECK(held.ahead == std::vector<std::string>{"first"});
  CHECK(held.nodes[0].lacks.empty());
  s.submit("never", 64);
  CHECK(s.head->explain(s.record("never")).verdict == WaitReport::Verdict::kNever);
  CHECK(s.head->explain(s.record("half")).verdict == WaitReport::Verdict::kDoesNotWait);
}

TEST_CASE("whatever comes after it, the job that waits first starts: nothing new runs on its node") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    Jobs s;
    const int nodes = 1 + static_cast<int>(random.next() % 4);
    for (int id = 1; id <= nodes; ++id) s.joins(static_cast<std::uint64_t>(id), 4);
    std::vector<StartDriver> running;
    const auto take = [&] {
      for (const StartDriver& start : s.all<StartDriver>()) running.push_back(start);
    };
    int number = 0, overtook = 0, ended = 0;
    const auto small = [&] {
      s.submit("s" + std::to_string(++number), 1);
      take();
    };
    for (int i = 0; i < 4 * nodes; ++i) small();
    REQUIRE(running.size() == static_cast<std::size_t>(4 * nodes));
    s.submit("first", 4);
    const auto starts = [&] { return s.record("first").state != State::kQueued; };
    for (; !starts() && ended < 1000; ++ended) {  // more come than end, for ever
      small();
      small();
      const std::size_t at = random.next() % running.size();
      const StartDriver gone = running[at];
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
      s.ends(gone, kGood);
      overtook += static_cast<int>(s.all<StartDriver>().size());
      take();
      s.head->check_invariants();
    }
    CHECK(starts());
    CHECK((nodes == 1 || overtook > 0));  // and the other nodes were not idle meanwhile
  }
}

TEST_CASE("a job is recorded before its node is told, and runs once wherever the head dies") {
  // The head dies after each of its steps, and its node says again what it knows.
  for (int died_after = 0; died_after < 6; ++died_after) {
    CAPTURE(died_after);
    Jobs s;
    s.joins(1, 4);
    int starts = 0;
    const auto tally = [&] {
      for (const auto& action : s.last) starts += std::holds_alternative<StartDriver>(action) ? 1 : 0;
    };
    const auto step = [&](int number, const HeldDriver& held) {
      tally();
      if (number != died_after) return;
      s.restart();
      s.joins(1, 4, {held});
      tally();
    };
    using Held = HeldDriver::State;
    s.submit("once", 1);
    CHECK(s.index<Persist>() < s.index<StartDriver>());
    if (died_after == 0) {  // the node never heard: it is told again, which is the first it hears
      s.restart();
      s.joins(1, 4);
      tally();
    } else {
      step(1, {"once", 1, Held::kStarts, {}});
    }
    s.submit("once", 1);  // its client did not hear the answer
    step(2, {"once", 1, Held::kStarts, {}});
    s.on(DriverStarted{NodeId{1}, "once", 1});
    step(3, {"once", 1, Held::kRuns, {}});
    CHECK(s.record("once").state == State::kRunning);
    if (died_after == 4) {  // it ended while the head was away
      s.restart();
      s.joins(1, 4, {{"once", 1, Held::kEnded, kGood}});
    } else {
      s.on(DriverEnded{NodeId{1}, "once", 1, kGood});
    }
    CHECK(s.record("once").state == State::kSucceeded);
    CHECK(s.index<Persist>() < s.index<DriverSettled>());
    step(5, {"once", 1, Held::kEnded, kGood});  // the node did not hear that it is settled
    if (died_after == 5) CHECK(s.get<DriverSettled>() != nullptr);
    s.submit("once", 1);
    CHECK(s.get<StartDriver>() == nullptr);
    CHECK(s.record("once").state == State::kSucceeded);
    CHECK(starts == 1);
  }
}

TEST_CASE("one id is one job: the same spec again is the same job, another is refused with both") {
  Jobs s;
  SubmissionSpec spec{.id = "a", .name = "train", .program = {"sleep", "1"}};
  s.on(SubmissionRequested{spec});
  CHECK_FALSE(s.head->submission_refused(spec));
  SubmissionSpec other = spec;
  other.program[1] = "2";
  const auto refused = s.head->submission_refused(other);
  REQUIRE(refused);
  CHECK(refused->why == "the id a is that of another job: 'sleep 1', and this is 'sleep 2'");
  other.id = "b";  // another id, and the name of one that has not ended
  const auto named = s.head->submission_refused(other);
  REQUIRE(named);
  CHECK(named->why == "job a has the name train and is QUEUED");
  s.on(SubmissionStopRequested{"a"});
  CHECK_FALSE(s.head->submission_refused(other));
}

TEST_CASE("a job is stopped: while it waits, while it starts, while it runs") {
  Jobs s;
  s.submit("waits", 1);
  s.on(SubmissionStopRequested{"waits"});
  CHECK(s.record("waits").state == State::kStopped);
  CHECK(s.record("waits").exit_code == -1);
  s.joins(1, 1);
  CHECK(s.get<StartDriver>() == nullptr);

  s.submit("starts", 1);
  s.on(SubmissionStopRequested{"starts"});
  CHECK(s.index<Persist>() < s.index<StopDriver>());
  CHECK(s.the<StopDriver>().grace_s == 10);
  s.restart();  // and the node is told again by the head that comes after
  s.joins(1, 1, {{"starts", 1, HeldDriver::State::kRuns, {}}});
  REQUIRE(s.get<StopDriver>() != nullptr);
  s.submit("next", 1);
  CHECK(s.get<StartDriver>() == nullptr);  // what stops still holds its CPU
  s.on(
      DriverEnded{NodeId{1}, "starts", 1, {.ran = true, .signal = 9, .how = "killed by signal 9 (SIGKILL)"}});
  CHECK(s.record("starts").state == State::kStopped);
  CHECK(s.record("starts").exit_code == 137);
  CHECK(s.started().spec.id == "next");
  s.on(SubmissionStopRequested{"starts"});  // it has ended: nothing follows
  CHECK(s.last.empty());
}

TEST_CASE(
    "a driver that fails is started again as often as asked, each time later, and its node's death counts") {
  Jobs s;
  s.joins(1, 1);
  s.submit("again", 1, 2);
  s.ends(s.started(), kBad);
  CHECK(s.record("again").state == State::kQueued);
  CHECK(s.why("again") == "attempt 1 of 3: exit code 3; it is tried again");
  s.pass(1, {NodeId{1}});
  const StartDriver second = s.started();
  CHECK(second.attempt == 2);
  s.joins(2, 1);
  s.on(NodeLeft{NodeId{1}, "killed"});
  s.pass(2, {NodeId{2}});
  const StartDriver third = s.started();
  CHECK((third.attempt == 3 && third.node == NodeId{2}));
  s.on(DriverEnded{NodeId{1}, "again", 2, kGood});  // of an attempt that is over: it changes nothing
  CHECK(s.record("again").state == State::kStarting);
  s.on(NodeLeft{NodeId{2}, "killed"});
  CHECK(s.record("again").state == State::kFailed);
  CHECK(s.record("again").message == "attempt 3 of 3: its node n2 is dead: killed");
}

TEST_CASE("a clock that jumps changes the times that are shown, and nothing else") {
  ClusterConfig config;
  Jobs s(config);
  constexpr std::int64_t kYear_ms = 365LL * 24 * 3600 * 1000, kNow_ms = 50 * kYear_ms;
  s.head->set_wall_clock(kNow_ms);
  s.joins(1, 1);
  s.submit("job", 1, 1);
  const StartDriver first = s.started();
  s.on(DriverStarted{NodeId{1}, "job", 1});
  s.submit("next", 1);
  s.head->set_wall_clock(kNow_ms + 10 * kYear_ms);  // forth: no delay, no silence and no history is over
  s.on(Tick{});
  CHECK(s.last.empty());
  s.ends(first, kBad);
  CHECK(s.started().spec.id == "next");
  s.ends(s.started(), kGood);
  CHECK(s.record("job").state == State::kQueued);
  CHECK(s.record("next").ended_ms == kNow_ms + 10 * kYear_ms);
  s.head->set_wall_clock(1);  // back: nothing waits ten years
  s.pass(1, {NodeId{1}});
  CHECK(s.started().attempt == 2);
  s.ends(s.started(), kGood);
  CHECK(s.record("job").ended_ms == 1);
  s.pass(60, {NodeId{1}});
  CHECK(s.store.contains("submission/next"));
  s.restart();
  CHECK(s.record("job").state == State::kSucceeded);
}

TEST_CASE("a node that leaves before it started a job gives it back, and the retries are not touched") {
  Jobs s;
  s.joins(1, 1);
  s.submit("job", 1);
  const StartDriver first = s.started();
  s.joins(2, 1);
  s.on(NodeLeaving{NodeId{1}, "drained"});
  s.ends(first, {.again = true, .how = "its node leaves: drained"});
  const StartDriver second = s.started();
  CHECK((second.node == NodeId{2} && second.attempt == 1));
}

TEST_CASE("a node ends what the head does not know, and history is bounded") {
  ClusterConfig config;
  config.max_ended_submissions = 2;
  Jobs s(config);
  s.joins(1, 1, {{"stranger", 1, HeldDriver::State::kRuns, {}}, {"files", 0, HeldDriver::State::kFiles, {}}});
  CHECK(s.the<StopDriver>().id == "stranger");
  CHECK(s.all<ForgetSubmission>().size() == 2);
  for (const char* id : {"a", "b", "c"}) {
    s.submit(id, 1);
    s.ends(s.started(), kGood);
  }
  CHECK(s.the<ForgetSubmission>().id == "a");
  CHECK_FALSE(s.store.contains("submission/a"));
  CHECK(s.store.contains("submission/c"));
}

TEST_CASE("a package is named as long as a record names it, over restarts of the head") {
  ClusterConfig config;
  config.max_ended_submissions = 1;
  Jobs s(config);
  const std::string package(64, 'a');
  const auto named = [&] { return s.head->submissions().names_package(package); };
  s.joins(1, 1);
  for (const char* id : {"a", "b"}) {
    SubmissionSpec spec{.id = id, .program = {"./x"}};
    spec.package = package;
    s.on(SubmissionRequested{spec});
    CHECK(named());
    CHECK(s.started().spec.package == package);
    s.ends(s.started(), kGood);
    CHECK(named());  // by what has ended, too
  }
  s.restart();
  CHECK(named());
  s.joins(1, 1);
  s.submit("c", 1);
  s.ends(s.started(), kGood);
  CHECK_FALSE(named());
}

TEST_CASE("bad submissions are refused with what is wrong") {
  const auto why = [](SubmissionSpec spec) {
    const auto wrong = check_submission(spec);
    return wrong ? wrong->why : "nothing";
  };
  const SubmissionSpec good{.id = "a", .program = {"x"}};
  CHECK(why(good) == "nothing");
  const auto with = [&](auto&& change) {
    SubmissionSpec spec = good;
    change(spec);
    return why(spec);
  };
  for (const char* id : {"", "..", ".a", "-a", "a/b", "a b", "\n"})
    CHECK(with([&](auto& s) { s.id = id; }).starts_with("its id is not"));
  CHECK(with([](auto& s) { s.program.clear(); }) == "no program is given");
  CHECK(with([](auto& s) { s.name = "a\x1b[2J"; }) == "its name has a control character");
  CHECK(with([](auto& s) { s.name = std::string(257, 'n'); }).starts_with("its name has 257 bytes"));
  CHECK(with([](auto& s) {
          s.program.push_back(std::string("a\0b", 3));
        }).starts_with("a word has a zero byte"));
  CHECK(with([](auto& s) {
          s.program.push_back(std::string(1 << 20, 'x'));
        }).starts_with("its arguments and environment"));
  CHECK(with([](auto& s) { s.environment = {"=x"}; }).ends_with("is no NAME=VALUE"));
  CHECK(with([](auto& s) { s.folder = "here"; }).starts_with("its working directory is no absolute path"));
  const std::string digest(64, 'a');
  CHECK(with([&](auto& s) { s.package = digest; }) == "nothing");
  CHECK(with([&](auto& s) { s.package = s.executable = digest; }) == "nothing");
  for (const char* id : {"../../etc", "AA", "a"})
    CHECK(with([&](auto& s) { s.package = id; }).starts_with("its package is none"));
  CHECK(with([&](auto& s) {
          s.package = digest;
          s.folder = "/f";
        }).starts_with("its package is none, or it runs in a folder"));
  CHECK(with([&](auto& s) { s.executable = digest; }) == "the digest of its program is none");
  CHECK(with([](auto& s) { s.cpu_e4 = -1; }).ends_with("CPUs are not between 0 and 100000"));
  CHECK(with([](auto& s) { s.gpu_e4 = 15000; }).starts_with("1.5 GPUs are neither"));
  CHECK(with([](auto& s) { s.priority = 2'000'000; }).starts_with("the priority 2000000 is not between"));
  CHECK(with([](auto& s) { s.retries = -1; }).starts_with("-1 retries"));
}
