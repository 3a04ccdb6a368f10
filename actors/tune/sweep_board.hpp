/// A sweep in TensorBoard: the experiment in its folder, a session in a folder of it for each config that a
/// trial ran with. `tensorboard --logdir FOLDER` shows them as HPARAMS.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/report/tensorboard_hparams.hpp"
#include "actors/report/tensorboard_log.hpp"
#include "actors/tune/sweep_machine.hpp"

namespace troupe::tune {

/// Not thread-safe.
class SweepBoard {
 public:
  struct Of {
    std::string name;  ///< of the sweep
    std::vector<Parameter> parameters;
    std::string metric;
    int repeats = 1;
    bool writes_scalars = false;  ///< of what trials report: nobody else does
  };
  /// Makes the folder. Error (kIo).
  static Result<SweepBoard> open(std::string folder, Of of, report::TensorBoardLog::WallTime wall_time);

  /// "trial-3", or "trial-3.1" since it copied another's state, with a config of its own.
  static std::string session_of(const Trial& trial);

  // Errors (kIo): a session's folder or file cannot be written.

  /// It runs, or is about to. One that runs again goes on. Before its own run writes to the same folder:
  /// TensorBoard reads a folder's files by their names' order, and leaves each behind for the next.
  Result<void> begin(const Trial& trial);
  /// It does not run for now: its file is closed, since more trials may be paused than files be open.
  void pause(int trial);
  /// The first report says which metrics there are.
  Result<void> report(const Trial& trial, int epoch, const report::Metrics& metrics);
  Result<void> end(const Trial& trial);

 private:
  SweepBoard(report::TensorBoardFile file, std::string folder, Of of,
             report::TensorBoardLog::WallTime wall_time);
  struct Session {
    std::string name;
    std::optional<report::TensorBoardFile> file{};  ///< none: it is paused, or its run writes
  };
  Result<void> end(int trial, report::SessionStatus status);
  Result<void> write(Session& session, std::string_view event);

  report::TensorBoardFile file_;
  std::string folder_;
  Of of_;
  report::TensorBoardLog::WallTime wall_time_;
  bool has_experiment_ = false;
  std::map<int, Session> sessions_;  ///< of trials that have begun and not ended
};

}  // namespace troupe::tune
