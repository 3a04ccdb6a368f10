// What becomes of a run, event by event.
#include "scheduler/launch/run_machine.hpp"

#include <catch2/catch.hpp>
#include <csignal>
#include <optional>

using namespace troupe;
using namespace troupe::launch;
using namespace std::chrono_literals;

namespace {

/// A machine that is told events by hand.
struct Script {
  explicit Script(RunConfig config = {}) : machine(config) {}
  RunMachine machine;
  Instant now{};
  std::vector<RunAction> last;
  std::uint32_t attempt = 0;  ///< of the last port that was asked for

  void on(const RunEvent& event) {
    last = machine.step(event, now);
    for (const auto& take : all<TakePort>()) attempt = take.attempt;
  }
  template <class T>
  std::vector<T> all() const {
    std::vector<T> found;
    for (const auto& action : last) {
      if (const auto* one = std::get_if<T>(&action)) found.push_back(*one);
    }
    return found;
  }
  /// The action of this kind, of which there is one.
  template <class T>
  T only() const {
    const auto found = all<T>();
    REQUIRE(found.size() == 1);
    return found[0];
  }
  std::string said() const {
    std::string text;
    for (const auto& say : all<Say>()) text += say.text + "\n";
    return text;
  }
  bool says(const std::string& part) const { return said().find(part) != std::string::npos; }
  std::optional<int> code() const {
    const auto ends = all<EndRun>();
    return ends.empty() ? std::nullopt : std::optional<int>(ends.front().code);
  }
  void port() { on(PortTaken{attempt, "10.0.0.1", static_cast<std::uint16_t>(4000 + attempt)}); }
  void ended(std::uint32_t node, std::uint32_t local_rank, int exit_code, int signal = 0) {
    on(WorkerEnded{attempt, node, local_rank, {100, exit_code, signal, "", ""}});
  }
  void sleep_until_told() {
    REQUIRE(machine.wakes_at().has_value());
    now = *machine.wakes_at();
    on(Tick{});
  }
  /// One node with two ranks that run.
  void run_two() {
    on(NodeCame{0, "", 2});
    REQUIRE(all<TakePort>().size() == 1);
    port();
    REQUIRE(all<StartWorkers>().size() == 1);
  }
  /// Nodes a, b, ... with a rank each that run.
  void run_nodes(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) on(NodeCame{i, std::string(1, static_cast<char>('a' + i)), 1});
    if (all<TakePort>().empty()) sleep_until_told();
    port();
    REQUIRE(all<StartWorkers>().size() == count);
  }
};

}  // namespace

TEST_CASE("ranks that all end well end the run with 0") {
  Script run;
  run.run_two();
  const auto start = run.only<StartWorkers>();
  CHECK(start.plan.world == 2);
  CHECK(start.plan.processes == 2);
  CHECK(start.plan.master_port == 4000);
  run.ended(0, 1, 0);
  CHECK_FALSE(run.code());
  run.ended(0, 0, 0);
  CHECK(run.code() == 0);
  CHECK(run.said().empty());
}

TEST_CASE("a rank that fails is named, the others are ended, and the run ends with 1 when they have") {
  Script run;
  run.run_two();
  run.ended(0, 1, 3);
  CHECK(run.says("rank 1, process 100: exit code 3"));
  CHECK(run.only<SignalWorkers>().signal == SIGTERM);
  CHECK_FALSE(run.code());
  run.ended(0, 0, 0, SIGTERM);  // that is not another cause
  CHECK(run.said().empty());
  CHECK(run.code() == 1);
}

TEST_CASE("the code of the first rank that failed, when asked for") {
  Script code({.exit_code_first = true});
  code.run_two();
  code.ended(0, 1, 3);
  code.ended(0, 0, 7);
  CHECK(code.code() == 3);
  Script signal({.exit_code_first = true});
  signal.run_two();
  signal.ended(0, 0, 0, SIGSEGV);
  signal.ended(0, 1, 0);
  CHECK(signal.code() == 128 + SIGSEGV);
}

TEST_CASE("a rank that does not end when told is killed after the timeout") {
  Script run({.shutdown_timeout = 7s});
  run.run_two();
  run.ended(0, 1, 1);
  CHECK(run.machine.wakes_at() == run.now + 7s);
  run.sleep_until_told();
  CHECK(run.only<SignalWorkers>().signal == SIGKILL);
  run.ended(0, 0, 0, SIGKILL);
  CHECK(run.code() == 1);
}

TEST_CASE("all ranks start again after a failure, at a fresh port, as often as allowed") {
  Script run({.max_restarts = 1});
  run.run_two();
  run.ended(0, 1, 1);
  run.ended(0, 0, 0, SIGTERM);
  CHECK(run.says("restart 1 of 1"));
  REQUIRE(run.all<TakePort>().size() == 1);
  CHECK(run.attempt == 1);
  run.ended(0, 0, 0);  // nothing runs yet
  CHECK_FALSE(run.code());
  run.port();
  CHECK(run.only<StartWorkers>().plan.restarts == 1);
  CHECK(run.only<StartWorkers>().plan.master_port == 4001);
  run.on(WorkerEnded{0, 0, 0, {100, 1, 0, "", ""}});  // of the first attempt, late
  CHECK(run.last.empty());
  run.ended(0, 0, 0, SIGKILL);
  CHECK(run.says("killed by signal 9 (SIGKILL)"));
  run.ended(0, 1, 0, SIGTERM);
  CHECK(run.says("its one restart was used"));
  CHECK(run.code() == 1);
}

TEST_CASE("a run whose output nobody reads ends as SIGPIPE would, and lost output is no success") {
  Script unread;
  unread.run_two();
  unread.on(SignalCame{SIGPIPE});
  CHECK(unread.only<SignalWorkers>().signal == SIGTERM);
  CHECK(unread.says("nobody reads the output any more"));
  unread.on(SignalCame{SIGPIPE});  // of another stream
  CHECK(unread.all<SignalWorkers>().empty());
  unread.ended(0, 0, 0, SIGTERM);
  unread.ended(0, 1, 0, SIGTERM);
  CHECK(unread.code() == 128 + SIGPIPE);

  const OutputFailed failed{{ErrorCode::kIo, "output of a rank is lost", "No space left on device", ""}};
  Script full;
  full.run_two();
  full.ended(0, 0, 0);
  full.ended(0, 1, 0);
  CHECK(full.code() == 0);
  full.on(failed);  // the last of it is written when the ranks have ended
  CHECK(full.says("No space left on device"));
  CHECK(full.code() == 1);
  full.on(failed);
  CHECK(full.last.empty());

  Script trimmed;
  trimmed.run_two();
  trimmed.on(OutputTrimmed{0, "logs/attempt_0/0/stdout.log", 64 << 20});
  CHECK(trimmed.says("logs/attempt_0/0/stdout.log keeps the newest 64 MiB"));
  trimmed.on(OutputTrimmed{0, "logs/attempt_0/1/stdout.log", 64 << 20});  // said once
  CHECK(trimmed.last.empty());
  trimmed.ended(0, 0, 0);
  trimmed.ended(0, 1, 0);
  CHECK(trimmed.code() == 0);
}

TEST_CASE("a signal to the launcher goes to the ranks, and a second one kills them") {
  Script run({.max_restarts = 5});
  run.run_two();
  run.on(SignalCame{SIGINT});
  CHECK(run.only<SignalWorkers>().signal == SIGINT);
  run.ended(0, 0, 0);
  run.on(SignalCame{SIGINT});
  CHECK(run.only<SignalWorkers>().signal == SIGKILL);
  run.ended(0, 1, 0, SIGKILL);
  CHECK(run.code() == 1);
}

TEST_CASE("a node that cannot start its ranks ends the run: a restart would not help") {
  Script run({.min_nodes = 2, .max_nodes = 2, .max_restarts = 3});
  run.run_nodes(2);
  run.on(NotStarted{0, 1, {ErrorCode::kBadConfig, "cannot start ./x", "No such file", ""}});
  CHECK(run.only<SignalWorkers>().node == 0);
  run.ended(0, 0, 0, SIGTERM);
  CHECK(run.says("cannot start ./x"));
  CHECK(run.code() == 1);
}

TEST_CASE("ranks are numbered over the nodes by the numbers of these, whoever came first") {
  Script run({.min_nodes = 2, .max_nodes = 2});
  run.on(NodeCame{7, "two", 3});
  CHECK(run.last.empty());
  run.on(NodeCame{3, "one", 2});
  CHECK(run.only<TakePort>().node == 3);
  run.port();
  const auto starts = run.all<StartWorkers>();
  REQUIRE(starts.size() == 2);
  CHECK(starts[1].node == 7);
  CHECK(starts[1].plan.group_rank == 1);
  CHECK(starts[1].plan.group_world == 2);
  CHECK(starts[1].plan.first_rank == 2);
  CHECK(starts[1].plan.processes == 3);
  CHECK(starts[1].plan.world == 5);
}

TEST_CASE("a node that goes restarts the run with the survivors, and costs no restart") {
  Script run({.min_nodes = 1, .max_nodes = 2, .max_restarts = 0});
  run.run_nodes(2);
  run.on(NodeWent{1, "its process is gone"});
  REQUIRE(run.all<SignalWorkers>().size() == 1);
  run.ended(0, 0, 0, SIGTERM);
  CHECK(run.says("node b is gone: its process is gone"));
  run.port();
  CHECK(run.only<StartWorkers>().plan.world == 1);
  CHECK(run.only<StartWorkers>().plan.restarts == 0);
  run.ended(0, 0, 0);
  CHECK(run.code() == 0);
}

// A rank sees the end of its peer before the head sees that of the peer's node: its failure is no failure of
// its own.
TEST_CASE("a rank that fails because a node went costs no restart either") {
  Script run({.min_nodes = 1, .max_nodes = 2, .max_restarts = 0});
  run.run_nodes(2);
  run.ended(0, 0, 1);
  CHECK_FALSE(run.code());  // the other node has not said how its rank ended
  run.on(NodeWent{1, "silent"});
  CHECK(run.says("node b is gone"));
  CHECK_FALSE(run.code());
  CHECK(run.all<TakePort>().size() == 1);
}

TEST_CASE("too few nodes are waited for, and not forever") {
  Script run({.min_nodes = 2, .max_nodes = 2, .join_timeout = 100s});
  run.run_nodes(2);
  run.on(NodeWent{1, "gone"});
  run.ended(0, 0, 0, SIGTERM);
  CHECK(run.says("as soon as there are 2"));
  CHECK(run.all<TakePort>().empty());
  run.sleep_until_told();
  CHECK(run.says("waits for nodes: 1 of 2 have come"));
  CHECK(run.machine.wakes_at() == run.now + 97s);
  SECTION("another one comes") {
    run.on(NodeCame{5, "e", 1});
    CHECK(run.all<TakePort>().size() == 1);
  }
  SECTION("none comes") {
    run.sleep_until_told();
    CHECK(run.says("only 1 node came within 100 s, and 2 are needed"));
    CHECK(run.code() == 1);
  }
}

TEST_CASE("a run with fewer nodes than it may have grows when one comes") {
  Script run({.min_nodes = 1, .max_nodes = 2});
  run.run_nodes(1);
  run.on(NodeCame{1, "b", 1});
  CHECK(run.last.empty());  // others may come with it
  run.sleep_until_told();
  CHECK(run.says("a node came"));
  run.ended(0, 0, 0, SIGTERM);
  run.port();
  CHECK(run.all<StartWorkers>().size() == 2);
  CHECK(run.all<StartWorkers>()[0].plan.restarts == 0);
}

TEST_CASE("nodes that go again and again end the run") {
  Script run({.min_nodes = 1, .max_nodes = 2});
  run.run_nodes(2);
  for (std::uint32_t i = 1; !run.code(); ++i) {
    REQUIRE(i <= 20);
    run.on(NodeWent{i, "gone"});
    run.ended(0, 0, 0, SIGTERM);
    if (run.code()) break;
    run.on(NodeCame{i + 1, "x", 1});
    run.port();
    if (run.all<StartWorkers>().size() == 1) {
      run.sleep_until_told();
      run.ended(0, 0, 0, SIGTERM);
      run.port();
    }
  }
  CHECK(run.says("in a row that lost a node within a minute"));
  CHECK(run.code() == 1);
}

TEST_CASE("a port that is in use ends the run before anything starts") {
  Script run;
  run.on(NodeCame{0, "", 2});
  run.on(PortRefused{0, {ErrorCode::kUnavailable, "cannot use port 29500", "in use", "give another"}});
  CHECK(run.says("cannot use port 29500: in use (give another)"));
  CHECK(run.code() == 1);
}
