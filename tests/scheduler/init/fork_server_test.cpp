// The fork server with real processes: this executable again, which supervisor_test.cpp gives its roles.
#include "runtime/node/fork_server.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/link/socket/first_exchange.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

/// The parent's pid, and the title, as /proc has them.
std::pair<pid_t, std::string> parent_and_title(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/stat"),
      line("/proc/" + std::to_string(pid) + "/cmdline");
  std::string text, title;
  std::getline(status, text);
  std::getline(line, title, '\0');
  return {std::atoi(text.c_str() + text.rfind(')') + 4), title.substr(0, title.find(' '))};
}

/// This process's fork server, once it is executed.
pid_t server_pid() {
  pid_t server = 0;
  const bool found = troupe::test::eventually([&] {
    for (const auto& process : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(process.path().filename().c_str());
      if (pid > 0 && parent_and_title(pid) == std::pair(::getpid(), std::string("troupe-fork-server")))
        server = pid;
    }
    return server != 0;
  });
  if (!found) throw std::runtime_error("this process has no fork server");
  return server;
}

}  // namespace

TEST_CASE("a copy is a child of who asked, in its role, and ends as a child does", "[fork_server]") {
  auto server = ForkServer::execute();
  REQUIRE(server);
  for (int i = 0; i < 3; ++i) {
    auto child = server->start({.role = "stays", .capture_output = i == 2});
    REQUIRE(child);
    const auto ready = receive_control(child->link, 30s);
    REQUIRE(ready);
    CHECK(std::holds_alternative<wire::Ready>(ready->message));
    CHECK(parent_and_title(child->pid) == std::pair(::getpid(), std::string("troupe-stays")));
    CHECK(reap(*child).empty());
    signal_child(*child, SIGKILL);
    REQUIRE(wait_ended(*child, 30s));
    CHECK(reap(*child) == "killed by signal 9 (SIGKILL)");
  }
}

TEST_CASE("a server that was killed starts nobody, says so, and leaves nobody behind", "[fork_server]") {
  auto server = ForkServer::execute();
  REQUIRE(server);
  auto child = server->start({.role = "dies"});
  REQUIRE(child);
  REQUIRE(wait_ended(*child, 30s));
  CHECK(reap(*child) == "exit code 3");
  ::kill(server_pid(), SIGKILL);
  const auto refused = server->start({.role = "stays"});
  REQUIRE_FALSE(refused);
  // Was: "raise the limit on processes", and a zombie for as long as the server's object lived.
  CHECK_THAT(refused.error().message(), Catch::Contains("killed by signal 9") && !Catch::Contains("limit"));
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child, nor a zombie of one
}

TEST_CASE("a server that is stopped starts nobody, says so, and is ended", "[fork_server]") {
  auto server = ForkServer::execute();
  REQUIRE(server);
  const bool loaded = GENERATE(true, false);
  if (loaded) {
    auto child = server->start({.role = "dies"});
    REQUIRE(child);
    REQUIRE(wait_ended(*child, 30s));
    CHECK(reap(*child) == "exit code 3");
  }
  ::kill(server_pid(), SIGSTOP);
  const auto refused = server->start({.role = "stays"});
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().message(), Catch::Contains("SIGSTOP") && !Catch::Contains("limit"));
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("a server that is killed at any moment of a start leaves a child of ours, or nothing",
          "[fork_server]") {
  for (int i = 0; i < 40; ++i) {
    auto server = ForkServer::execute();
    REQUIRE(server);
    auto first = server->start({.role = "stays"});
    REQUIRE(first);
    const pid_t pid = server_pid();
    std::thread killer([pid, delay = std::chrono::microseconds(100 * i)] {
      std::this_thread::sleep_for(delay);
      ::kill(pid, SIGKILL);
    });
    auto child = server->start({.role = "stays"});
    killer.join();
    INFO("killed after " << 100 * i << " us: " << (child ? "it started" : child.error().message()));
    if (!child) CHECK_THAT(child.error().message(), Catch::Contains("killed by signal 9"));
    for (auto* one : {&first, &child}) {
      if (!*one) continue;
      CHECK(parent_and_title((*one)->pid).first == ::getpid());
      signal_child(**one, SIGKILL);
      REQUIRE(wait_ended(**one, 30s));
      CHECK(reap(**one) == "killed by signal 9 (SIGKILL)");
    }
    server->end();
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  }
}

TEST_CASE("a program with a thread before main is not copied", "[fork_server]") {
  ::setenv("TROUPE_TEST_THREAD", "1", 1);
  auto server = ForkServer::execute();
  ::unsetenv("TROUPE_TEST_THREAD");
  REQUIRE(server);
  CHECK_FALSE(server->start({.role = "stays"}));
}
