// The fork server with real processes: this executable again, which supervisor_test.cpp gives its roles.
#include "runtime/node/fork_server.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/link/socket/descriptors.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace std::chrono_literals;

/// In place of libc's: with TROUPE_TEST_STOPS a copy stops once it has left its server's group.
extern "C" int setpgid(pid_t pid, pid_t group) noexcept {
  const auto done = ::syscall(SYS_setpgid, pid, group);
  if (std::getenv("TROUPE_TEST_STOPS") != nullptr) ::raise(SIGSTOP);
  return static_cast<int>(done);
}

#ifndef __SANITIZE_THREAD__  // whose own thread keeps a program from being copied: there is no fork server

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

// It was in no group that anybody ended, and had not said yet who it is: it was left, and so was, as a
// zombie, who had forked it.
TEST_CASE("a copy that stops before it is settled is ended with its server", "[fork_server]") {
  auto server = ForkServer::execute({"TROUPE_TEST_STOPS=1"});
  REQUIRE(server);
  const auto refused = server->start({.role = "stays"});
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().message(), Catch::Contains("a copy that is stopped (SIGSTOP)"));
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

namespace {

/// Asks a server of ours for a copy that does not become our child, as if we had died. Returns once it has
/// ended.
void ask_as_the_dead_do() {
  auto server = start_child({.role = kForkServerRole}).value();
  int ends[2];
  if (::pipe(ends) != 0) ::_exit(1);
  std::string text("stays\0\0", 7);
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  attach_descriptors(message, control, std::span(&ends[1], 1));
  if (::sendmsg(server.link.fd(), &message, 0) < 0) ::_exit(1);
  ::close(ends[1]);
  char none = 0;
  ::_exit(::read(ends[0], &none, 1) == 0 ? 0 : 1);
}

}  // namespace

// Was: it looked 20,000 times for a parent that was dead, for ten seconds on a busy machine, after its
// program.
TEST_CASE("a copy whose asker died before it was its child ends, and looks for it no longer",
          "[fork_server]") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // the copy is this process's then, and its asker is a child of ours
  if (::fork() == 0) ask_as_the_dead_do();
  std::vector<long> looks;
  int status = 0;
  rusage usage{};
  while (::wait4(-1, &status, 0, &usage) > 0) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) looks.push_back(usage.ru_nvcsw);
    CHECK((!WIFEXITED(status) || WEXITSTATUS(status) != 1));  // its asker could not ask
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  REQUIRE(looks.size() == 1);
  CHECK(looks[0] < 10'000);
}

TEST_CASE("a program with a thread before main is not copied", "[fork_server]") {
  ::setenv("TROUPE_TEST_THREAD", "1", 1);
  auto server = ForkServer::execute();
  ::unsetenv("TROUPE_TEST_THREAD");
  REQUIRE(server);
  CHECK_FALSE(server->start({.role = "stays"}));
}

#endif
