// Limits of control groups, as containers and batch systems have them.
#include "runtime/core/control_groups.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "runtime/core/thread_limit.hpp"
#include "tests/support/files.hpp"

using namespace troupe;

TEST_CASE("usable memory is the least of the host's and of all groups above, of either version") {
  const test::TempFolder folder;
  const std::filesystem::path mounts(folder / "cgroup"), self(folder / "self");
  const auto write = [](const std::filesystem::path& file, std::string_view text) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  const auto host = usable_memory(mounts, self);
  REQUIRE(host);
  CHECK(*host >= 64U << 20);

  write(self, "0::/a/job\n");
  write(mounts / "a/job/memory.max", "max\n");
  CHECK(usable_memory(mounts, self) == host);
  write(mounts / "a/memory.max", "33554432\n");
  CHECK(usable_memory(mounts, self) == 32U << 20);
  write(mounts / "memory.max", "16777216\n");
  CHECK(usable_memory(mounts, self) == 16U << 20);
  write(mounts / "memory.max", "nonsense");
  CHECK(usable_memory(mounts, self) == 32U << 20);

  write(self, "5:memory:/b/job\n4:cpu,cpuacct:/a/job\nnonsense\n");
  CHECK(usable_memory(mounts, self) == host);
  write(mounts / "memory/b/job/memory.limit_in_bytes", "9223372036854771712\n");  // it has none
  CHECK(usable_memory(mounts, self) == host);
  write(mounts / "memory/b/memory.limit_in_bytes", "8388608\n");
  CHECK(usable_memory(mounts, self) == 8U << 20);
}

TEST_CASE("kills for want of memory are those of the group that this process is in, of either version") {
  const test::TempFolder folder;
  const std::filesystem::path mounts(folder / "cgroup"), self(folder / "self");
  const auto write = [](const std::filesystem::path& file, std::string_view text) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  write(self, "0::/a/job\n");
  CHECK_FALSE(oom_kills(mounts, self));
  write(mounts / "a/memory.events", "low 0\noom 9\noom_kill 5\noom_group_kill 0\n");
  CHECK(oom_kills(mounts, self) == 5U);
  write(mounts / "a/job/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n");
  CHECK(oom_kills(mounts, self) == 2U);
  write(self, "5:memory:/b\n0::/\n");
  write(mounts / "memory/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  CHECK(oom_kills(mounts, self) == 1U);
}

TEST_CASE(
    "available memory is what is left of the host's and of every group's, files that are cached apart") {
  const test::TempFolder folder;
  const std::filesystem::path mounts(folder / "cgroup"), self(folder / "self"), host(folder / "meminfo");
  const auto write = [](const std::filesystem::path& file, std::string_view text) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  write(self, "0::/a/job\n");
  CHECK_FALSE(available_memory(mounts, self, host));
  write(host, "MemTotal: 4096 kB\nMemAvailable: 1024 kB\n");
  CHECK(available_memory(mounts, self, host) == 1U << 20);
  write(mounts / "a/memory.max", "1000000\n");
  write(mounts / "a/memory.current", "900000\n");
  write(mounts / "a/memory.stat", "anon 600000\nfile 300000\ninactive_file 200000\n");
  CHECK(available_memory(mounts, self, host) == 300'000);
  write(mounts / "a/memory.current", "2000000\n");
  CHECK(available_memory(mounts, self, host) == 0U);
  write(self, "5:memory:/b\n");
  write(mounts / "memory/b/memory.limit_in_bytes", "500000\n");
  write(mounts / "memory/b/memory.usage_in_bytes", "400000\n");
  write(mounts / "memory/b/memory.stat", "total_inactive_file 50000\n");
  CHECK(available_memory(mounts, self, host) == 150'000);
}

// Was: a container's limit on processes was not seen, and programs ended there by SIGSEGV or std::terminate.
TEST_CASE("room for processes is that of the group that leaves the fewest, of either version") {
  const test::TempFolder folder;
  const std::filesystem::path mounts(folder / "cgroup"), self(folder / "self");
  const auto write = [](const std::filesystem::path& file, std::string_view text) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  CHECK_FALSE(process_room(mounts, self));
  write(self, "4:pids:/a/job\n0::/\n");
  write(mounts / "pids/a/job/pids.max", "max\n");
  write(mounts / "pids/a/job/pids.current", "7\n");
  CHECK_FALSE(process_room(mounts, self));
  CHECK(check_process_room(100, process_room(mounts, self)).ok());
  write(mounts / "pids/a/pids.max", "30\n");
  write(mounts / "pids/a/pids.current", "12\n");
  write(mounts / "pids.max", "40\n");
  write(mounts / "pids.current", "11\n");
  const auto room = process_room(mounts, self);
  REQUIRE(room);
  CHECK(room->left() == 18);
  CHECK(check_process_room(18, room).ok());
  const auto refused = check_process_room(19, room);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message() == "cannot start 19 threads: the control group " +
                                         (mounts / "pids/a").string() +
                                         " may have 30 processes and threads (pids.max), and has 12 (raise "
                                         "that: of a container --pids-limit; or end what runs beside this)");
  write(mounts / "pids.current", "41\n");  // it was lowered
  CHECK(process_room(mounts, self)->left() == 0);
}
