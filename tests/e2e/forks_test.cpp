// Forks: of user code, and of the server that processes of the cluster are copies of.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/support.hpp"

namespace forks_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

/// Forks a child that comes back, with an answer or an exception, and returns the child's exit code.
int fork_and_return(bool throws) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (throws) throw std::runtime_error("thrown by the child");
    return -1;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

struct Forker {
  Forker() = default;
  explicit Forker(bool throws) : code(fork_and_return(throws)) {}
  int fork(bool throws) { return fork_and_return(throws); }
  Task<int> fork_in_task(bool throws) {
    co_await this_actor().self<Forker>().call<&Forker::same>(1);
    co_return fork_and_return(throws);
  }
  Future<int> fork_in_callback(bool throws) {
    Promise<int> promise;
    this_actor().run([promise, throws]() mutable { promise.set(fork_and_return(throws)); });
    return promise.future();
  }
  int same(int n) { return n; }
  int of_constructor() { return code; }
  int pid() { return ::getpid(); }
  int code = 0;
};

/// The servers of this program and of its nodes.
std::vector<pid_t> fork_servers(const std::vector<pid_t>& nodes) {
  std::vector<pid_t> servers = children(::getpid(), "troupe-fork");
  for (const pid_t node : nodes) {
    if (node <= 0) continue;
    for (const pid_t server : children(node, "troupe-fork")) servers.push_back(server);
  }
  return servers;
}

/// Whether this process has a child that ended and that nobody has waited for.
bool has_zombie() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

}  // namespace

// The child answered its parent's call, or jammed the worker: it stayed in the mailbox of its parent.
TEST_CASE("a child that a task forks and that comes back from it ends there", "[forks]") {
  auto session = init(0, nullptr);
  for (int i = 0; i < 4; ++i) {
    for (const bool throws : {false, true}) CHECK(session.submit<&fork_and_return>(throws).get(20s) == 1);
  }
}

TEST_CASE("a child that an actor forks and that comes back from it ends there", "[forks]") {
  auto session = init(0, nullptr);
  for (const bool isolated : {false, true}) {
    for (const bool throws : {false, true}) {
      INFO((isolated ? "isolated" : "light") << (throws ? ", the child throws" : ""));
      const auto actor = session.spawn<Forker>({.isolated = isolated}, throws);
      CHECK(actor.call<&Forker::of_constructor>().get(20s) == 1);
      CHECK(actor.call<&Forker::fork>(throws).get(20s) == 1);
      CHECK(actor.call<&Forker::fork_in_task>(throws).get(20s) == 1);
      if (!throws) CHECK(actor.call<&Forker::fork_in_callback>(throws).get(20s) == 1);
      CHECK(actor.call<&Forker::same>(5).get(20s) == 5);
      CHECK(children(pid_t(actor.call<&Forker::pid>().get(20s))).empty());
    }
  }
}

TEST_CASE("a driver's fork server that is killed is reaped at once, and its cluster goes on", "[forks]") {
  auto session = init(0, nullptr);
  const auto servers = children(::getpid(), "troupe-fork");
  REQUIRE(servers.size() == 1);
  ::kill(servers[0], SIGKILL);
  // Was: a zombie until the program's end.
  CHECK(eventually([&] { return ::kill(servers[0], 0) != 0; }, 10s));
  const pid_t node = session.embedded()->node_pids().at(0);
  ::kill(node, SIGKILL);
  CHECK(eventually([&] { return session.embedded()->node_pids().at(0) != node; }, 40s));
  CHECK(eventually(
      [&] {
        return code_of([&] { session.spawn<Forker>({.isolated = true}).call<&Forker::pid>().get(20s); }) ==
               "nothing";
      },
      60s));
}

TEST_CASE("workers start while their fork server is killed, or stopped", "[forks]") {
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  const int delay_us = GENERATE(0, 1'000, 3'000, 10'000);
  INFO("signal " << signal << " after " << delay_us << " us");
  auto session = init(0, nullptr, {.nodes = 2});
  const auto servers = fork_servers(session.embedded()->node_pids());
  std::vector<Future<ActorHandle<Forker>>> starting;
  for (int i = 0; i < 8; ++i) starting.push_back(session.spawn_async<Forker>({.isolated = true}));
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  for (const pid_t server : servers) ::kill(server, signal);
  for (int i = 0; i < 4; ++i) starting.push_back(session.spawn_async<Forker>({.isolated = true}));
  for (const auto& actor : starting) CHECK(actor.get(30s).call<&Forker::same>(3).get(20s) == 3);
  CHECK(eventually([] { return !has_zombie(); }, 10s));
}

TEST_CASE("a cluster starts while its fork servers are killed, or stopped", "[forks]") {
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  INFO("signal " << signal);
  for (int round = 0; round < 3; ++round) {
    std::atomic<bool> stop{false};
    std::thread killer([&] {
      while (!stop) {
        for (const pid_t server : fork_servers(children(::getpid()))) ::kill(server, signal);
        std::this_thread::sleep_for(1ms);
      }
    });
    std::string end = "it works";
    try {
      auto session = init(0, nullptr);
      end =
          session.spawn<Forker>({.isolated = true}).call<&Forker::same>(3).get(20s) == 3 ? "it works" : "no";
      stop = true;
    } catch (const std::exception& error) {
      end = error.what();
    }
    stop = true;
    killer.join();
    CHECK(end == "it works");
    CHECK(children(::getpid()).empty());
    CHECK_FALSE(has_zombie());
  }
}

}  // namespace forks_test
