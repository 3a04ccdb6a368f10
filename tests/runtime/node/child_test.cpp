/// Reaping children, real ones.

#include "runtime/node/child.hpp"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

using namespace troupe;
using namespace std::chrono_literals;

TEST_CASE("Reaping never waits: a child that goes on is none to reap") {
  Child child;
  child.pid = ::fork();
  if (child.pid == 0) {
    while (true) ::pause();
  }
  child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  CHECK(reap(child).empty());
  signal_child(child, SIGKILL);
  REQUIRE(wait_ended(child, 60s));
  CHECK(reap(child) == "killed by signal 9 (SIGKILL)");
  CHECK(reap(child) == "it was reaped elsewhere");
}
