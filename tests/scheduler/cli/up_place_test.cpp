// Which host of a run this is, from launchers' environments; how hosts find each other in a folder.

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <thread>

#include "scheduler/cli/up/meeting.hpp"
#include "scheduler/cli/up/place.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::cli;
using namespace std::chrono_literals;

namespace {

Result<std::optional<Place>> place_in(const std::map<std::string, std::string>& environment) {
  return place_from([&](const char* name) {
    const auto at = environment.find(name);
    return at == environment.end() ? std::nullopt : std::optional(at->second);
  });
}

}  // namespace

TEST_CASE("launchers say which host this is") {
  CHECK_FALSE(place_in({}).value());
  CHECK_FALSE(place_in({{"HOSTNAME", "trainer-2"}}).value());  // no Kubernetes
  struct Row {
    std::map<std::string, std::string> environment;
    Place place;
  };
  const std::vector<Row> rows = {
      {{{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}},
       {3, 4, "77-0", "Slurm"}},
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "prterun-a@1/x"}},
       {0, 2, "prterun-a_1_x", "Open MPI"}},
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, {1, 2, "", "PMI"}},
      {{{"JOB_COMPLETION_INDEX", "2"}}, {2, 1, "", "a Kubernetes Job"}},
      {{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"HOSTNAME", "my-trainer-12"}},
       {12, 1, "my-trainer", "a Kubernetes StatefulSet"}}};
  for (const Row& row : rows) {
    const auto place = place_in(row.environment).value();
    REQUIRE(place);
    CHECK(place->rank == row.place.rank);
    CHECK(place->hosts == row.place.hosts);
    CHECK(place->run == row.place.run);
    CHECK(place->launcher == row.place.launcher);
  }
  CHECK_FALSE(place_in({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"HOSTNAME", "deployment-7f9c"}}).value());
}

TEST_CASE("Slurm says what of a host a job has, and its tasks there share that") {
  const auto slurm = [](std::map<std::string, std::string> more) {
    more["SLURM_PROCID"] = "0";
    return *place_in(more).value();
  };
  CHECK_FALSE(slurm({}).cpus);
  CHECK_FALSE(slurm({}).memory_bytes);
  CHECK(slurm({{"SLURM_CPUS_ON_NODE", "8"}}).cpus == 8.0);
  CHECK(slurm({{"SLURM_CPUS_ON_NODE", "8"}, {"SLURM_NTASKS_PER_NODE", "2"}}).cpus == 4.0);
  CHECK(slurm({{"SLURM_CPUS_ON_NODE", "8"}, {"SLURM_CPUS_PER_TASK", "3"}}).cpus == 3.0);
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  CHECK(slurm({{"SLURM_MEM_PER_NODE", "4096"}}).memory_bytes == 4 * kGiB);
  CHECK(slurm({{"SLURM_MEM_PER_NODE", "4096"}, {"SLURM_NTASKS_PER_NODE", "2"}}).memory_bytes == 2 * kGiB);
  CHECK(slurm({{"SLURM_MEM_PER_CPU", "1024"}, {"SLURM_CPUS_ON_NODE", "8"}}).memory_bytes == 8 * kGiB);
  for (const char* none : {"0", "-1", "x", ""}) {  // all of it, as Slurm says it, or nothing
    CHECK_FALSE(slurm({{"SLURM_MEM_PER_NODE", none}}).memory_bytes);
    CHECK_FALSE(slurm({{"SLURM_CPUS_ON_NODE", none}}).cpus);
  }
}

TEST_CASE("what a launcher says and is no number is refused") {
  CHECK_FALSE(place_in({{"SLURM_PROCID", "-1"}}).ok());
  CHECK_FALSE(place_in({{"SLURM_PROCID", "1x"}}).ok());
  CHECK_FALSE(place_in({{"SLURM_PROCID", "99999999999999999999"}}).ok());
  CHECK_FALSE(place_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}}).ok());
}

TEST_CASE("hosts meet in a folder") {
  const test::TempFolder where;
  const std::string folder = where.path() + "/a/77";
  MeetingGuest guest(folder, "0123456789abcdef");
  CHECK_FALSE(guest.ask());  // there is no folder yet
  auto host = MeetingHost::open(folder).value();
  CHECK(guest.ask());
  CHECK(guest.ask());
  CHECK(host.waiting() == std::vector<std::string>{"0123456789abcdef"});
  CHECK_FALSE(guest.token());
  host.answer("0123456789abcdef", "secret").value();
  CHECK(host.waiting().empty());
  REQUIRE(guest.token());
  CHECK(test::read_file(*guest.token()) == "secret\n");
  struct stat info {};
  REQUIRE(::stat(guest.token()->c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK_FALSE(guest.ended());
  std::thread ending([&] { host.end(7); });
  while (!guest.ended()) std::this_thread::yield();
  CHECK(guest.ended() == 7);
  guest.leave();
  ending.join();
  CHECK_FALSE(std::filesystem::exists(folder));

  // Names that are no host's, and what an earlier run left.
  host = MeetingHost::open(folder).value();
  std::ofstream(folder + "/want-xyz").flush();
  std::ofstream(folder + "/want-0123456789ABCDEF").flush();
  CHECK(host.waiting().empty());
  CHECK(guest.ask());
  std::ofstream(folder + "/somebody's").flush();
  host = MeetingHost::open(folder).value();
  CHECK(host.waiting().empty());
  host.end(0);
  CHECK(std::filesystem::exists(folder + "/somebody's"));
  CHECK_FALSE(std::filesystem::exists(folder + "/want-0123456789abcdef"));
}

TEST_CASE("a folder that others may look into is no place to meet") {
  const test::TempFolder where;
  const std::string folder = where.path() + "/77";
  REQUIRE(::mkdir(folder.c_str(), 0755) == 0);
  CHECK_FALSE(MeetingHost::open(folder).ok());
  REQUIRE(::symlink(where.path().c_str(), (where.path() + "/link").c_str()) == 0);
  CHECK_FALSE(MeetingHost::open(where.path() + "/link").ok());
}

TEST_CASE("the first host is missed by what it does not change") {
  const test::TempFolder where;
  const std::string folder = where.path() + "/77";
  auto host = MeetingHost::open(folder).value();
  MeetingGuest guest(folder, "0123456789abcdef");
  const Instant begin = Instant{} + 1h;  // whatever the hosts' clocks say
  CHECK(guest.silence(begin) == 0s);
  host.beat().value();
  CHECK(guest.silence(begin + 10s) == 0s);
  CHECK(guest.silence(begin + 30s) == 20s);
  host.beat().value();
  CHECK(guest.silence(begin + 40s) == 0s);
}
