// `troupe flight-recorder`, as a person runs it.

#include <sys/wait.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "collectives/flight/dump_files.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/files.hpp"
#include "tests/support/shell.hpp"

using namespace troupe;
using namespace troupe::collectives;
using namespace troupe::collectives::flight;
using troupe::test::contains;
using troupe::test::TempFolder;

namespace {

using test::Ran;

Ran run(const std::string& words, const std::string& environment = {}) {
  return test::shell(environment + " " TROUPE_CLI " flight-recorder " + words);
}

/// Rank `rank` of two after a barrier and `second`.
void leave_dump(const std::string& folder, std::uint32_t generation, int rank, OpKind second) {
  Dump dump{.group = "run-1f", .generation = {1, generation}, .backend = "native", .rank = rank, .size = 2};
  dump.host = "one";
  dump.formed_ns = dump.dumped_ns = 1'700'000'000'000'000'000 + generation;
  dump.reason = "asked";
  dump.launched = dump.collectives = 2;
  for (std::uint64_t n = 1; n <= 2; ++n) {
    Operation op{.number = n, .state = State::kCompleted, .launched_ns = dump.dumped_ns - 9};
    op.call = {.kind = n == 1 ? OpKind::kBarrier : second, .count = 8, .sequence = n};
    dump.operations.push_back(op);
  }
  write_dump(folder, dump).value();
}

}  // namespace

TEST_CASE("flight-recorder says who diverged, and its exit code too") {
  const TempFolder folder;
  leave_dump(folder.path(), 3, 0, OpKind::kAllReduce);
  leave_dump(folder.path(), 3, 1, OpKind::kBroadcast);
  leave_dump(folder.path(), 4, 0, OpKind::kAllReduce);
  leave_dump(folder.path(), 4, 1, OpKind::kAllReduce);

  const Ran newest = run(folder.path());
  CAPTURE(newest.output);
  CHECK(newest.code == 0);
  CHECK(contains(newest.output, "run-1f generation 1.4, 2 ranks, native\n  all ranks agree through #2\n"));
  CHECK(contains(newest.output, "run-1f 1.3: ranks 0, 1 called something else at #2"));

  const Ran all = run("--all " + folder.path());
  CHECK(all.code == 1);
  const Ran files = run(folder / "run-1f-g1.3/rank-0.flight" + " " + folder / "run-1f-g1.3/rank-1.flight");
  CAPTURE(files.output);
  CHECK(files.code == 1);
  CHECK(contains(files.output,
                 "at #2 rank 0 called all_reduce(sum, 8 x f32) and rank 1 broadcast(8 x f32, root 0)"));
  CHECK(contains(files.output, "#1  barrier() completed"));
  CHECK_FALSE(contains(run("--last 1 " + folder / "run-1f-g1.3").output, "#1  barrier"));
  const Ran one = run(folder / "run-1f-g1.4/rank-1.flight");
  CHECK(one.code == 1);
  CHECK(contains(one.output, "there is no dump of rank 0"));

  const auto json = nlohmann::json::parse(run("--json --all " + folder.path()).output);
  REQUIRE(json.size() == 2);
  CHECK(json[0]["diverged"] == false);
  CHECK(json[1]["findings"][0]["kind"] == "mismatch");
  CHECK(json[1]["findings"][0]["sequence"] == 2);

  const Ran from_environment = run("", "TROUPE_FLIGHT_FOLDER=" + folder.path());
  CHECK(from_environment.output == newest.output);
}

TEST_CASE("flight-recorder refuses what it cannot read with one line") {
  const TempFolder folder;
  leave_dump(folder.path(), 3, 0, OpKind::kAllReduce);
  const std::string broken = folder / "broken.flight";
  std::ofstream(broken) << "troupe-flight 1\ngroup a\ngeneration x\n";
  const auto refuses = [](const Ran& ran, const std::string& why) {
    CAPTURE(ran.output);
    CHECK(ran.code == 2);
    CHECK(contains(ran.output, why));
    CHECK(std::count(ran.output.begin(), ran.output.end(), '\n') == 1);
  };
  refuses(run(folder.path()), broken + ": line 3: incarnation is not a number");
  refuses(run(folder / "nothing"), "there is no " + folder / "nothing");
  std::ofstream(broken, std::ios::trunc) << "";
  refuses(run(broken), "line 1: the file is cut short");
  refuses(run("", "TROUPE_FLIGHT_FOLDER="), "name the folder or the files");
  CHECK(run("--last 0").code == 2);
  const Ran help = run("--help");
  CHECK(help.code == 0);
  CHECK(contains(help.output, "TROUPE_FLIGHT_FOLDER"));
}
