// Deaths: who asked is told exactly once, and what can be started again is.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <thread>

#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/other_node.hpp"
#include "tests/e2e/support.hpp"

namespace deaths_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

struct Mortal {
  int same(int n) { return n; }
  int pid() { return ::getpid(); }
  /// Of a child that lives on.
  int fork_child() {
    const pid_t child = ::fork();
    if (child != 0) return child;
    for (;;) ::pause();
  }
  /// Of a grandchild in a session of its own, whose parent has ended.
  int daemon() {
    int ends[2], daemon = 0;
    if (::pipe2(ends, O_CLOEXEC) != 0) return 0;
    const pid_t child = ::fork();
    if (child == 0) {
      ::setsid();
      daemon = ::fork();
      if (daemon != 0) {
        [[maybe_unused]] const auto written = ::write(ends[1], &daemon, sizeof daemon);
        ::_exit(0);
      }
      for (;;) ::pause();
    }
    ::waitpid(child, nullptr, 0);
    [[maybe_unused]] const auto got = ::read(ends[0], &daemon, sizeof daemon);
    ::close(ends[0]);
    ::close(ends[1]);
    return daemon;
  }
  int exit(int code) { std::exit(code); }
  int slow() {
    std::this_thread::sleep_for(1min);
    return 0;
  }
  /// Answers if the file is there, which the first one who is asked writes.
  int second_time(const std::string& file) {
    if (::access(file.c_str(), F_OK) == 0) return ::getpid();
    write_file(file, std::to_string(::getpid()));
    for (;;) ::pause();
  }
};

/// In a process of its own: calls an actor that moves.
struct Caller {
  ActorHandle<Mortal> whom;
  Task<int> pid() { co_return co_await whom.call<&Mortal::pid>(); }
};

/// Monitors from another process, and tells how often it was told.
struct Watcher {
  int watch(ActorHandle<Mortal> whom) {
    auto& mine = times.emplace_back(std::make_shared<int>(0));
    this_actor().session().monitor(whom, [mine](const std::string&) { ++*mine; });
    return static_cast<int>(times.size()) - 1;
  }
  int told(int which) { return *times.at(static_cast<std::size_t>(which)); }
  std::vector<std::shared_ptr<int>> times;
};

bool is_gone(pid_t pid) {
  for (int i = 0; i < 1000 && ::kill(pid, 0) == 0; ++i) std::this_thread::sleep_for(10ms);
  return ::kill(pid, 0) != 0;
}

/// How often each of many monitors was told.
struct Told {
  explicit Told(std::size_t size) : times(size) {}
  OnDown callback(std::size_t which) {
    return [this, which](const std::string&) { ++times[which]; };
  }
  std::size_t with(int often) const {
    std::size_t found = 0;
    for (const auto& t : times) found += t.load() == often;
    return found;
  }
  std::vector<std::atomic<int>> times;
};

/// Spawns until it works: while a node is started again, errors of a type are allowed.
std::string spawn_again(const Session& session, Duration timeout, ActorOptions options = {.isolated = true}) {
  std::string last = "nothing was tried";
  eventually(
      [&] {
        try {
          auto fresh = session.spawn<Mortal>(options);
          if (fresh.template call<&Mortal::same>(3).get(20s) == 3) last = "it works";
          return true;
        } catch (const Timeout& error) {
          last = std::string("unanswered: ") + error.what();
          return true;
        } catch (const Error& error) {
          last = error.what();
          return false;
        }
      },
      timeout);
  return last;
}

}  // namespace

namespace {

/// The process of its present life: a call that a death hit says that it may be called again.
template <class Actor, class Method>
int pid_now(const Actor& actor, Method method) {
  int pid = 0;
  eventually(
      [&] {
        try {
          return (pid = method(actor).get(30s)) != 0;
        } catch (const Error& error) {
          return error.code() != ErrorCode::kUnavailable;
        }
      },
      60s);
  return pid;
}

}  // namespace

TEST_CASE("an actor with max_restarts lives on when its process is killed, and its node", "[deaths]") {
  auto session = init(0, nullptr, {.nodes = 2});
  const TempFolder folder;
  const NodeId far = other_node(session);
  ActorHandle<Mortal> actor;
  for (int i = 0; i < 8 && actor.address().node != far; ++i)
    actor = session.spawn<Mortal>({.isolated = true, .max_restarts = 3, .max_task_retries = 1});
  REQUIRE(actor.address().node == far);
  const auto caller = session.spawn<Caller>({}, actor);
  const auto own = [](const ActorHandle<Mortal>& of) { return of.call<&Mortal::pid>(); };
  const auto other = [](const ActorHandle<Caller>& of) { return of.call<&Caller::pid>(); };
  std::atomic<int> restarts{0}, ends{0};
  session.monitor(actor, [&](const Death& death) { ++(death.restarts ? restarts : ends); });
  const int first = pid_now(actor, own);
  CHECK(pid_now(caller, other) == first);

  ::kill(first, SIGKILL);
  CHECK(eventually([&] { return pid_now(actor, own) != first; }));
  const int second = pid_now(actor, own);
  CHECK(pid_now(caller, other) == second);
  CHECK(restarts == 1);

  // What it works on when its node dies is done by the next life: on the other node, if this one is not back.
  const auto again = actor.call<&Mortal::second_time>(folder.path() + "/asked");
  REQUIRE(eventually([&] { return ::access((folder.path() + "/asked").c_str(), F_OK) == 0; }));
  ::kill(session.embedded()->node_pids().at(1), SIGKILL);
  const int third = again.get(60s);
  CHECK(third != second);
  CHECK(pid_now(actor, own) == third);
  CHECK(pid_now(caller, other) == third);
  CHECK(restarts == 2);

  session.kill(actor);
  CHECK(eventually([&] { return ends == 1; }));
  CHECK(code_of([&] { actor.call<&Mortal::pid>().get(30s); }) == "actor died");
  CHECK(code_of([&] { caller.call<&Caller::pid>().get(30s); }) == "actor died");
  CHECK(restarts == 2);
  CHECK(code_of([&] { session.spawn<Mortal>({.max_restarts = 1}); }) == "bad config");
}

namespace {

/// Goes on from what it saved.
struct Ledger {
  int add(int n) { return sum += n; }
  int pid() const { return ::getpid(); }
  int save() const { return sum; }
  void load(int saved) { sum = saved; }
  int sum = 0;
};

}  // namespace

TEST_CASE("no answered call of an actor that saves is lost when its process is killed, or its node",
          "[deaths]") {
  auto session = init(0, nullptr, {.nodes = 2});
  const NodeId far = other_node(session);
  ActorHandle<Ledger> ledger;
  for (int i = 0; i < 8 && ledger.address().node != far; ++i)
    ledger = session.spawn<Ledger>({.isolated = true, .max_restarts = -1});
  REQUIRE(ledger.address().node == far);
  const auto pid = [](const ActorHandle<Ledger>& of) { return of.call<&Ledger::pid>(); };
  int asked = 0, answered = 0;  // of those that are asked for and not answered, any may be in the sum
  for (int round = 0; round < 6; ++round) {
    const int victim = round == 5 ? session.embedded()->node_pids().at(1) : pid_now(ledger, pid);
    std::vector<Future<int>> calls;
    for (int i = 0; i < 400; ++i) {
      calls.push_back(ledger.call<&Ledger::add>(1));
      if (i != 200) continue;
      CHECK(code_of([&] { calls[100].get(60s); }) == "nothing");
      ::kill(victim, SIGKILL);  // what it does now it has not answered
    }
    for (const auto& call : calls) {
      ++asked;
      int sum = 0;
      if (code_of([&] { sum = call.get(60s); }) != "nothing") continue;
      ++answered;
      CHECK(sum > 0);
      CHECK(sum >= answered);
      CHECK(sum <= asked);
    }
  }
  CHECK(answered > 6 * 100);
}

// Was: no deadline and no word until SIGCONT. Before that: the driver stayed with the node that had left.
TEST_CASE("a driver whose own node hangs is told, and goes to the next one", "[deaths]") {
  auto session = init(0, nullptr);
  const auto actor = session.spawn<Mortal>({.isolated = true});
  const pid_t node = session.embedded()->node_pids().at(0), worker = actor.call<&Mortal::pid>().get(20s);
  const auto incarnation = session.incarnation();
  std::this_thread::sleep_for(2s);  // it has given a sign of life
  REQUIRE(stand_still(node));
  const auto code = code_of([&] { actor.call<&Mortal::slow>().get(50s); });
  CHECK((code == error_code_name(ErrorCode::kActorDied) || code == error_code_name(ErrorCode::kUnavailable)));
  CHECK(eventually([&] { return session.incarnation() > incarnation; }, 60s));
  CHECK(is_gone(node));
  CHECK(is_gone(worker));
  CHECK(spawn_again(session, 60s) == "it works");
}

TEST_CASE("an embedded head that hangs is killed and started again", "[deaths]") {
  // Was: a spawn waited 120 s and looked for free room.
  auto session = init(0, nullptr);
  const auto actor = session.spawn<Mortal>({.isolated = true});
  const pid_t head = session.embedded()->head_pid();
  REQUIRE(stand_still(head));
  CHECK(spawn_again(session, 100s) == "it works");
  CHECK(session.embedded()->head_pid() != head);
  CHECK(is_gone(head));
  CHECK(actor.call<&Mortal::same>(3).get(20s) == 3);
}

TEST_CASE("what an actor left in a session of its own ends with the cluster", "[deaths]") {
  std::optional<DriverSession> session = init(0, nullptr);
  const int daemon = session->spawn<Mortal>({.isolated = true}).call<&Mortal::daemon>().get(20s);
  CHECK(is_alive(daemon));
  session.reset();
  CHECK(is_gone(daemon));
}

TEST_CASE("an actor that calls exit has died, also with 0, and whoever waits is told so", "[deaths]") {
  auto session = init(0, nullptr);
  for (const bool isolated : {true, false}) {
    for (const int code : {0, 3}) {
      const auto actor = session.spawn<Mortal>({.isolated = isolated});
      Promise<std::string> told;
      session.monitor(actor, [told](const std::string& why) mutable { told.set(why); });
      const auto ends = actor.call<&Mortal::exit>(code);
      const auto behind = actor.call<&Mortal::same>(1);
      const std::string how = "exit code " + std::to_string(code);
      CHECK_THAT(message_of<ActorDied>([&] { ends.get(20s); }), Catch::Contains(how));
      CHECK_THAT(message_of<ActorDied>([&] { behind.get(20s); }), Catch::Contains(how));
      CHECK_THAT(told.future().get(20s), Catch::Contains(how));
    }
  }
}

// It lived on without a parent, with the memory of its worker.
TEST_CASE("what an actor has forked ends with its process", "[deaths]") {
  auto session = init(0, nullptr);
  const auto killed = session.spawn<Mortal>({.isolated = true});
  const int orphan = killed.call<&Mortal::fork_child>().get(20s);
  session.kill(killed);
  CHECK(is_gone(orphan));
  const auto crashed = session.spawn<Mortal>({.isolated = true});
  const int other = crashed.call<&Mortal::fork_child>().get(20s);
  ::kill(crashed.call<&Mortal::pid>().get(20s), SIGKILL);
  CHECK(is_gone(other));
}

TEST_CASE("a monitor set around the death of its actor is told exactly once", "[deaths]") {
  // Was: one set while the actor died was never told.
  constexpr std::size_t kActors = 400;
  Told early(kActors), late(kActors), after(kActors);
  auto session = init(0, nullptr, {.nodes = 2});
  const NodeId far = other_node(session);
  std::vector<ActorHandle<Mortal>> actors;
  for (std::size_t i = 0; i < kActors; ++i)
    actors.push_back(session.spawn<Mortal>({.node = i % 2 == 0 ? session.node() : far}));
  for (std::size_t i = 0; i < kActors; ++i) {
    session.monitor(actors[i], early.callback(i));
    session.kill(actors[i], "the test");
    session.monitor(actors[i], late.callback(i));
  }
  CHECK(eventually([&] { return early.with(1) == kActors && late.with(1) == kActors; }, 30s));
  for (std::size_t i = 0; i < kActors; ++i) session.monitor(actors[i], after.callback(i));
  CHECK(eventually([&] { return after.with(1) == kActors; }, 30s));
  std::this_thread::sleep_for(300ms);  // a second telling would come now
  CHECK(early.with(1) == kActors);
  CHECK(late.with(1) == kActors);
  CHECK(after.with(1) == kActors);
}

TEST_CASE("a process that started after a death is told of it by its monitor", "[deaths]") {
  // Was: deaths were announced once to who was there; a monitor set by a later process waited for ever.
  std::atomic<int> gone{0};
  auto session = init(0, nullptr, {.nodes = 2});
  for (const NodeId node : {session.node(), other_node(session)}) {
    auto neighbour = session.spawn<Mortal>({.node = node});  // keeps the process
    auto light = session.spawn<Mortal>({.node = node});
    auto isolated = session.spawn<Mortal>({.isolated = true, .node = node});
    gone = 0;
    session.monitor(light, [&](const std::string&) { ++gone; });
    session.monitor(isolated, [&](const std::string&) { ++gone; });
    session.kill(light, "the test");
    session.kill(isolated, "the test");
    REQUIRE(eventually([&] { return gone == 2; }, 20s));
    auto watcher = session.spawn<Watcher>({.isolated = true, .node = session.node()});
    for (const auto& dead : {light, isolated}) {
      const int which = watcher.call<&Watcher::watch>(dead).get(20s);
      CHECK(eventually([&] { return watcher.call<&Watcher::told>(which).get(20s) == 1; }, 20s));
      CHECK(code_of([&] { dead.call<&Mortal::same>(1).get(20s); }) == error_code_name(ErrorCode::kActorDied));
    }
    CHECK(neighbour.call<&Mortal::same>(1).get(20s) == 1);
  }
}

TEST_CASE("monitors over two nodes are told when the node is killed", "[deaths]") {
  constexpr std::size_t kActors = 200;
  Told told(kActors);
  auto session = init(0, nullptr, {.nodes = 2});
  const NodeId far = other_node(session);
  std::vector<ActorHandle<Mortal>> actors;
  std::vector<Future<int>> calls;
  for (std::size_t i = 0; i < kActors; ++i) {
    actors.push_back(session.spawn<Mortal>({.node = far}));
    session.monitor(actors[i], told.callback(i));
  }
  for (std::size_t i = 0; i < kActors; ++i)
    calls.push_back(actors[i].call<&Mortal::same>(static_cast<int>(i)));
  ::kill(session.embedded()->node_pids().at(1), SIGKILL);
  Tally tally;
  const Instant deadline = MonotonicClock().now() + 30s;
  for (std::size_t i = 0; i < kActors; ++i)
    tally.take(calls[i], deadline, [&](int got) { return got == static_cast<int>(i); });
  INFO(tally.to_string());
  CHECK(tally.wrong == 0);
  CHECK(tally.unanswered == 0);
  CHECK(eventually([&] { return told.with(1) == kActors; }, 30s));
  CHECK(code_of([&] { actors[0].call<&Mortal::same>(1).get(20s); }) ==
        error_code_name(ErrorCode::kActorDied));
}

TEST_CASE("SIGTERM to the head of a healthy job harms nobody", "[deaths]") {
  // Was: the head removed its own store before it went; the one started after it knew nobody, and the job
  // ended with "a newer driver took it over".
  auto session = init(0, nullptr);
  auto mortal = session.spawn<Mortal>();
  for (int round = 0; round < 2; ++round) {
    const pid_t head = session.embedded()->head_pid();
    std::vector<Future<int>> calls;
    std::vector<Future<ActorHandle<Mortal>>> spawns;
    for (int i = 0; i < 3000; ++i) {
      calls.push_back(mortal.call<&Mortal::same>(i));
      if (i % 500 == 0) spawns.push_back(session.spawn_async<Mortal>({.isolated = true}));
      if (i == 1500) ::kill(head, SIGTERM);
    }
    Tally tally;
    const Instant deadline = MonotonicClock().now() + 60s;
    for (int i = 0; i < 3000; ++i)
      tally.take(calls[static_cast<std::size_t>(i)], deadline, [&](int got) { return got == i; });
    for (const auto& spawn : spawns)
      tally.take(spawn, deadline,
                 [](const ActorHandle<Mortal>& h) { return h.call<&Mortal::same>(9).get(20s) == 9; });
    INFO(tally.to_string());
    CHECK(tally.right == 3006);
    CHECK(eventually([&] { return session.embedded()->head_pid() != head; }, 20s));
  }
  CHECK(mortal.call<&Mortal::same>(1).get(20s) == 1);
}

TEST_CASE("a head that is killed in its first second, and again when it is just back, hangs nobody",
          "[deaths]") {
  // Was: "did not come up", or a job that hung.
  auto session = init(0, nullptr);
  for (const auto life : {0ms, 1ms, 5ms, 20ms}) {
    const pid_t first = session.embedded()->head_pid();
    ::kill(first, SIGKILL);
    REQUIRE(eventually(
        [&] {
          const auto heads = children(::getpid(), "troupe-head");
          return heads.size() == 1 && heads[0] != first;
        },
        20s));
    std::this_thread::sleep_for(life);  // it may or may not have come up by then
    for (const pid_t head : children(::getpid(), "troupe-head")) ::kill(head, SIGKILL);
    CHECK(spawn_again(session, 40s) == "it works");
  }
}

TEST_CASE("a head or a node that is killed while the cluster starts is started again", "[deaths]") {
  // Was: "the head of the cluster did not come up", although the next try would have.
  for (const std::size_t victim : {0, 1}) {  // in the order in which they are started: the head, the node
    std::atomic<int> killed{0};
    for (int round = 0; round < 20 && killed == 0; ++round) {
      std::atomic<bool> stop{false};
      std::thread killer([&] {
        while (!stop && killed == 0) {
          auto started = children(::getpid());
          if (started.size() <= victim) continue;
          std::sort(started.begin(), started.end());
          ::kill(started[victim], SIGKILL);
          ++killed;
        }
      });
      std::string end;
      try {
        auto session = init(0, nullptr);
        stop = true;
        end = spawn_again(session, 40s);
      } catch (const Error& error) {
        end = error.what();
      }
      stop = true;
      killer.join();
      INFO((victim == 0 ? "the head" : "the node"));
      CHECK(end == "it works");
    }
    CHECK(killed == 1);
  }
}

TEST_CASE("the second node of an embedded cluster is killed: another takes its place", "[deaths]") {
  auto session = init(0, nullptr, {.nodes = 2});
  const NodeId first = session.node(), far = other_node(session);
  auto mortal = session.spawn<Mortal>({.isolated = true, .node = far});
  ::kill(session.embedded()->node_pids().at(1), SIGKILL);
  CHECK(code_of([&] {
          for (int i = 0; i < 1000; ++i) mortal.call<&Mortal::same>(1).get(20s);
        }) == error_code_name(ErrorCode::kActorDied));
  CHECK(eventually(
      [&] {
        for (const auto& node : session.nodes()) {
          if (node.id != first && node.id != far) return true;
        }
        return false;
      },
      30s));
  CHECK(spawn_again(session, 30s, {.isolated = true, .node = other_node(session)}) == "it works");
}

TEST_CASE("the only node of an embedded cluster is killed: typed errors at once, and a new node",
          "[deaths]") {
  // Was: 17 failures of "its node is gone", and no way on.
  auto session = init(0, nullptr);
  auto mortal = session.spawn<Mortal>({.isolated = true});
  const pid_t worker = mortal.call<&Mortal::pid>().get(20s);
  const Future<int> under_way = mortal.call<&Mortal::slow>();
  ::kill(session.embedded()->node_pids().at(0), SIGKILL);
  const auto code = code_of([&] { under_way.get(10s); });
  CHECK((code == error_code_name(ErrorCode::kActorDied) || code == error_code_name(ErrorCode::kUnavailable)));
  const auto next = code_of([&] { mortal.call<&Mortal::same>(1).get(10s); });
  CHECK((next == error_code_name(ErrorCode::kActorDied) || next == error_code_name(ErrorCode::kUnavailable)));
  CHECK(eventually([&] { return !is_alive(worker); }, 10s));
  CHECK(spawn_again(session, 40s) == "it works");
}

TEST_CASE("program: starts a cluster and waits", "[.program]") {
  auto session = init(0, nullptr);
  session.spawn<Mortal>({.isolated = true}).call<&Mortal::daemon>().get(20s);
  write_file(program_folder() + "/up", "");
  ::pause();
}

TEST_CASE("a driver that is killed while it starts leaves no process and no folder", "[deaths]") {
  // Was: its node waited for the head, and for nothing else, for 10 s; the folder of the head's store stayed.
  const auto folders = [](const std::string& in) {
    std::size_t found = 0;
    for (const auto& name : names_in(in)) found += name.starts_with("troupe-");
    return found;
  };
  using Reached = std::function<bool(pid_t driver, const std::string& folder)>;
  const std::pair<const char*, Reached> moments[] = {
      {"the head is forked", [](pid_t driver, const std::string&) { return !children(driver).empty(); }},
      {"the folder is there", [&](pid_t, const std::string& folder) { return folders(folder) != 0; }},
      {"the node is forked", [](pid_t driver, const std::string&) { return children(driver).size() > 1; }},
      {"the node runs",
       [](pid_t driver, const std::string&) { return !children(driver, "troupe-node").empty(); }},
      {"all is up", [](pid_t, const std::string& folder) { return names_in(folder).contains("up"); }},
  };
  for (const auto& [moment, reached] : moments) {
    for (int round = 0; round < 5; ++round) {
      INFO(moment);
      TempFolder folder;
      ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
      Program program("program: starts a cluster and waits", folder.path());
      ::unsetenv("XDG_RUNTIME_DIR");
      REQUIRE(eventually([&, r = reached] { return r(program.pid(), folder.path()); }, 30s));
      program.kill(SIGKILL);
      REQUIRE(program.wait(20s) == "killed by signal 9");
      CHECK(eventually([&] { return program.processes().empty(); }, 8s));
      INFO(read_file(folder.path() + "/err"));
      CHECK(folders(folder.path()) == 0);
    }
  }
}

TEST_CASE("the last one of a killed cluster removes its folder, whatever its head and its actors do",
          "[deaths]") {
  TempFolder folder;
  ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
  Program program("program: starts a cluster and waits", folder.path());
  ::unsetenv("XDG_RUNTIME_DIR");
  REQUIRE(eventually([&] { return names_in(folder.path()).contains("up"); }, 30s));
  const auto heads = children(program.pid(), "troupe-head");
  REQUIRE(heads.size() == 1);
  SECTION("the head died first") {
    program.kill(SIGSTOP);  // it starts no other head
    ::kill(heads[0], SIGKILL);
    REQUIRE(eventually([&] { return !is_alive(heads[0]); }, 20s));
  }
  SECTION("the head is stopped, and an actor left something behind") {
    REQUIRE(stand_still(heads[0]));
  }
  program.kill(SIGKILL);
  REQUIRE(program.wait(20s) == "killed by signal 9");
  CHECK(eventually([&] { return program.processes().empty(); }, 20s));
  for (const auto& name : names_in(folder.path())) CHECK_FALSE(name.starts_with("troupe-"));
}

}  // namespace deaths_test
