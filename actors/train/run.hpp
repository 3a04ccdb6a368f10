/// A training job under way, as the program that started it holds it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/checkpoint/folder_lock.hpp"
#include "actors/report/sink.hpp"
#include "actors/train/train_driver.hpp"
#include "scheduler/init/init.hpp"

namespace troupe::train {

/// Movable. Not thread-safe, except stop(). Events are handed on while somebody waits: in wait() or
/// next_event(); the newest 100,000 are kept until then.
class Run {
 public:
  /// What train::start gives it.
  struct Reporting {
    std::vector<std::unique_ptr<report::Sink>> sinks;
    std::function<void(const report::Event&)> on_event;
    bool handle_signals = true;
    bool return_weights = true;
    bool checkpoints = false;                      ///< whether a lost job can be resumed
    std::optional<checkpoint::FolderLock> folder;  ///< held until the job is over
    std::vector<report::Event> first;              ///< told before all others
  };
  Run(const DriverSession& session, RunOptions options, Reporting reporting);
  Run(Run&& other) noexcept;
  Run& operator=(Run&& other) noexcept;
  /// Ends the job if it is not over: its trainers and loaders are gone within seconds.
  ~Run();

  /// Waits until the job is over, and returns what came of it. Throws TaskFailed with the reason when the job
  /// fails (what the user's code or the dataset threw, or that trainers could not be kept alive), and what
  /// on_event threw. Throws BadConfig when called again.
  RunResult wait();
  /// The next event, after the sinks and on_event have been told of it; none when `timeout` is over first, or
  /// the job is (is_over).
  std::optional<report::Event> next_event(Duration timeout);
  /// Every event was given.
  bool is_over() const;
  /// Ends the job after the current step, with a checkpoint where those are kept; a second call ends it at
  /// once. Thread-safe; from on_event, too.
  void stop() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace troupe::train
