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

TEST_CASE(
    "flight-recorder --trace writes a process a rank, a row a group, and more where operations overlap") {
  const TempFolder folder;
  constexpr std::int64_t kBegin = 1'700'000'000'000'000'000;
  for (const int rank : {1, 0}) {
    Dump dump{.group = "run-1f", .generation = {1, 3}, .backend = "native", .rank = rank, .size = 2};
    dump.host = "one";
    dump.pid = 50 - rank;
    dump.dumped_ns = kBegin + 9'000;
    dump.launched = dump.collectives = 4;
    const auto add = [&](std::int64_t at, std::int64_t took, State state) {
      Operation op{.number = dump.operations.size() + 1, .state = state, .launched_ns = kBegin + at};
      op.took_ns = took;
      op.call = {.kind = OpKind::kAllReduce, .count = 8, .sequence = op.number};
      if (state == State::kFailed) op.error = "no rank \"came\"";
      dump.operations.push_back(op);
    };
    add(rank * 100, 2'000, State::kCompleted);
    add(1'000, 3'500, State::kCompleted);  // beside the first
    add(2'500, 500, State::kFailed);       // the first's row is free again
    add(5'000, 0, State::kWaiting);        // goes on at the dump
    write_dump(folder.path(), dump).value();
    dump.group = "half";  // a group of this rank alone: rank 0 in it, and still the same process
    dump.rank = 0;
    dump.size = 1;
    dump.operations.resize(1);
    dump.generation = {1, static_cast<std::uint32_t>(4 + rank)};
    dump.launched = dump.collectives = 1;
    write_dump(folder.path(), dump).value();
  }
  const std::string file = folder / "trace.json";
  const Ran ran = run(folder.path() + " --trace " + file);
  CHECK(ran.output == file + ": 10 operations of 4 dumps; open it in ui.perfetto.dev or chrome://tracing\n");
  CHECK(ran.code == 0);
  std::vector<std::string> names;
  std::vector<nlohmann::json> bars;
  const auto trace = nlohmann::json::parse(std::ifstream(file));
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["pid"] == 2) bars.push_back(event);  // rank 0, by its pid
    if (event["ph"] == "M" && event["name"] != "process_sort_index")
      names.push_back(std::to_string(event["pid"].get<int>()) + "." +
                      std::to_string(event["tid"].get<int>()) + " " +
                      event["args"]["name"].get<std::string>());
  }
  CHECK(names ==
        std::vector<std::string>{"1.0 rank 1 (one, pid 49)", "1.1 half 1.5, native", "1.2 run-1f 1.3, native",
                                 "1.3 run-1f 1.3, native (at the same time)", "2.0 rank 0 (one, pid 50)",
                                 "2.1 half 1.4, native", "2.2 run-1f 1.3, native",
                                 "2.3 run-1f 1.3, native (at the same time)"});
  REQUIRE(bars.size() == 5);
  const auto row = [&](std::size_t bar, int tid, double ts, double dur, const char* state) {
    CAPTURE(bars[bar].dump());
    CHECK(bars[bar]["name"] == "all_reduce(sum, 8 x f32)");
    CHECK(bars[bar]["tid"] == tid);
    CHECK(bars[bar]["ts"] == ts);
    CHECK(bars[bar]["dur"] == dur);
    CHECK(bars[bar]["args"]["state"] == state);
  };
  row(1, 2, 0, 2, "completed");
  row(2, 3, 1, 3.5, "completed");
  row(3, 2, 2.5, 0.5, "failed");
  row(4, 2, 5, 4, "waiting");
  CHECK(bars[3]["args"]["error"] == "no rank \"came\"");
  CHECK(bars[3]["args"]["sequence"] == 3);

  CHECK(run(folder.path() + " --json --trace " + file).code != 0);
  const Ran nowhere = run(folder.path() + " --trace " + folder / "no/trace.json");
  CHECK(nowhere.code == 2);
  CHECK(contains(nowhere.output, "cannot write " + folder / "no/trace.json"));
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
