// Runs of Ray Tune's and Optuna's schedulers, recorded, decided again.
#include "bench/tune/replay.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

using namespace troupe::tune;

namespace {

std::filesystem::path folder_of_traces() {
  const char* data = std::getenv("TROUPE_DATA_DIR");
  if (data && std::filesystem::exists(std::string(data) + "/tune")) return std::string(data) + "/tune";
  return std::filesystem::path(TROUPE_SOURCE_FOLDER).parent_path() / "shared/data/tune";
}

Replayed replay_text(const std::string& trace, std::string* printed = nullptr) {
  std::istringstream in(trace);
  std::ostringstream out;
  const Replayed result = replay(in, out);
  if (printed) *printed = out.str();
  return result;
}

const std::string kHeader =
    R"({"event":"config","family":"asha","class":"AsyncHyperBandScheduler","config":{"mode":"max","max_t":9,)"
    R"("grace_period":1,"reduction_factor":3,"brackets":1,"stop_last_trials":true}})"
    "\n";
const std::string kEvents =
    R"({"event":"add","trial":0,"bracket":0,"u":0.5})"
    "\n"
    R"({"event":"result","trial":0,"t":1,"metric":0.5,"decision":"CONTINUE","why":{"rung":1,"n":0,"cutoff":null}})"
    "\n";

}  // namespace

TEST_CASE("every recorded run of a scheduler that is here is decided alike", "[tune]") {
  const auto folder = folder_of_traces();
  if (!std::filesystem::exists(folder)) {
    std::cout << "skipped: no recorded runs in " << folder << ": set TROUPE_DATA_DIR\n";
    return;
  }
  int same = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".jsonl") continue;
    std::ifstream trace(entry.path());
    std::ostringstream out;
    const Replayed result = replay(trace, out);
    same += result == Replayed::kSame;
    INFO(entry.path() << "\n"
                      << out.str().substr(out.str().size() - std::min<std::size_t>(out.str().size(), 1000)));
    CHECK(result != Replayed::kDiffers);
  }
  std::cout << same << " recorded runs decided alike\n";
  CHECK(same >= 177);
}

TEST_CASE("a replay tells a decision that differs and a scheduler that is not there", "[tune]") {
  CHECK(replay_text(kHeader + kEvents + "{\"event\":\"end\"}\n") == Replayed::kSame);
  CHECK(replay_text(kHeader + kEvents) == Replayed::kDiffers);  // cut off

  std::string wrong = kEvents;
  wrong.replace(wrong.find("CONTINUE"), 8, "STOP");
  std::string printed;
  CHECK(replay_text(kHeader + wrong + "{\"event\":\"end\"}\n", &printed) == Replayed::kDiffers);
  CHECK(printed.find(R"(ours     {"decision":"CONTINUE")") != std::string::npos);
  CHECK(printed.find(R"(recorded {"decision":"STOP")") != std::string::npos);

  std::string unknown = kHeader;
  unknown.replace(unknown.find("asha"), 4, "none");
  CHECK(replay_text(unknown + kEvents) == Replayed::kNotThere);
}
