/// A limit on CPU time, as containers have it, counts as fewer cores.

#include "collectives/native/cpu_quota.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "collectives/native/region.hpp"
#include "tests/collectives/ranks.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::testing;

namespace {

/// A control group of version 1 with a limit. There is none without root.
class Limited {
 public:
  explicit Limited(long quota_us) : at_("/sys/fs/cgroup/cpu/troupe_test_" + std::to_string(::getpid())) {
    std::error_code failed;
    made_ = std::filesystem::create_directory(at_, failed) &&
            !(std::ofstream(at_ / "cpu.cfs_quota_us") << quota_us << std::flush).fail();
  }
  ~Limited() {
    std::error_code failed;
    std::filesystem::remove(at_, failed);
  }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;
  /// Moves this process there.
  bool enter() const {
    return made_ && !(std::ofstream(at_ / "cgroup.procs") << ::getpid() << std::flush).fail();
  }
  bool made() const { return made_; }

 private:
  std::filesystem::path at_;
  bool made_ = false;
};

}  // namespace

/// Was: with `docker run --cpus=1` both of two ranks spun until they were throttled, since each may run on
/// any core.
TEST_CASE("ranks under a CPU quota of one core count one core") {
  const Limited limited(100'000);
  if (!limited.made()) {
    WARN("skipped: no control group of version 1 can be made here");
    return;
  }
  auto options = options_of(1);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!limited.enter()) ::_exit(99);
    const Region region =
        Region::attach(options[0].region, {.local_ranks = {0}, .data_bytes = 1 << 20}, {1, 1}).value();
    region.add_cores();
    ::_exit(static_cast<int>(region.cores()));
  }
  CHECK(exit_of(child) == 1);
}

TEST_CASE("CPU quotas: whole cores, the least of all groups above, of either version") {
  const test::TempFolder folder;
  const std::filesystem::path mounts(folder / "cgroup"), self(folder / "self");
  const auto write = [](const std::filesystem::path& file, std::string_view text) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  CHECK_FALSE(cpu_quota(mounts, self).has_value());

  write(self, "0::/a/job\n");
  write(mounts / "a/job/cpu.max", "max 100000\n");
  CHECK_FALSE(cpu_quota(mounts, self).has_value());
  write(mounts / "a/cpu.max", "350000 100000\n");
  CHECK(cpu_quota(mounts, self) == 3U);
  write(mounts / "cpu.max", "20000 100000\n");
  CHECK(cpu_quota(mounts, self) == 1U);  // less than a core is one
  write(mounts / "cpu.max", "nonsense");
  CHECK(cpu_quota(mounts, self) == 3U);

  write(self, "5:memory:/a\n4:cpu,cpuacct:/a/job\n3:cpuset:/\nnonsense\n");
  CHECK_FALSE(cpu_quota(mounts, self).has_value());
  write(mounts / "cpu,cpuacct/a/job/cpu.cfs_quota_us", "-1\n");
  write(mounts / "cpu,cpuacct/a/job/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(cpu_quota(mounts, self).has_value());
  write(mounts / "cpu/a/cpu.cfs_quota_us", "200000\n");
  write(mounts / "cpu/a/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(mounts, self) == 2U);
}
