/// The bounds of a node on this machine.
#include "runtime/node/limits.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

using namespace troupe;

// Was: three quarters of the host. A node in a container of 8 GiB filled its store until the kernel killed
// it.
TEST_CASE("shared memory is bounded by the control group that the node is in") {
  constexpr std::uint64_t kLimit = 256U << 20;
  const std::filesystem::path group("/sys/fs/cgroup/memory/troupe_test_" + std::to_string(::getpid()));
  std::error_code failed;
  if (!std::filesystem::create_directory(group, failed) ||
      (std::ofstream(group / "memory.limit_in_bytes") << kLimit << std::flush).fail()) {
    std::filesystem::remove(group, failed);
    WARN("skipped: no control group of version 1 can be made here");
    return;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    if ((std::ofstream(group / "cgroup.procs") << ::getpid() << std::flush).fail()) ::_exit(99);
    const auto limits = node::limits_of_this_machine();
    ::_exit(limits && limits->regions_bytes == kLimit / 4 * 3 && limits->region_bytes == kLimit / 2 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  std::filesystem::remove(group, failed);
}
