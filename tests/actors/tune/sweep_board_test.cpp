#include "actors/tune/sweep_board.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::tune;
using troupe::test::read_file, troupe::test::TempFolder;

namespace {

/// What lies in a folder, by the names' order.
std::vector<std::string> files_in(const std::string& folder) {
  std::set<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.insert(entry.path().string());
  }
  std::vector<std::string> files;
  for (const std::string& path : paths) files.push_back(read_file(path));
  return files;
}

std::string figure(double seconds, int epoch, double loss) {
  return report::tf_record(report::tensorboard_event(seconds, {epoch, epoch, {{"loss", loss}}}));
}

}  // namespace

// A file was open for each trial that was paused: a sweep of a thousand had no descriptors left.
TEST_CASE("a trial that is paused has no file open, and goes on in its session") {
  const TempFolder folder;
  double seconds = 7;
  SweepBoard board = SweepBoard::open(folder.path(), {"digits", {}, "loss", 1, true}, [&seconds] {
                       return seconds;
                     }).value();
  Trial trial{.number = 3};
  REQUIRE(board.begin(trial).ok());
  REQUIRE(board.report(trial, 1, {{"loss", 0.5}}).ok());
  board.pause(3);
  seconds = 9;
  REQUIRE(board.begin(trial).ok());
  REQUIRE(board.report(trial, 2, {{"loss", 0.25}}).ok());
  trial.state = TrialState::kFinished;
  REQUIRE(board.end(trial).ok());
  REQUIRE(board.end(trial).ok());  // it has ended
  const auto files = files_in(folder / "trial-3");
  REQUIRE(files.size() == 2);
  CHECK(files[0] == report::tf_record(report::tensorboard_version(7)) +
                        report::tf_record(report::hparams_session_start(7, {})) + figure(7, 1, 0.5));
  CHECK(files[1] == report::tf_record(report::tensorboard_version(9)) + figure(9, 2, 0.25) +
                        report::tf_record(report::hparams_session_end(9, report::SessionStatus::kSuccess)));
}
