/// Writes what workers print to the streams of their driver's program.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/wire/messages.hpp"

namespace troupe {

/// Thread-safe. Lines wait here in order and a thread of its own writes them: a stream that nobody reads
/// (Ctrl-S, a paused `less`) holds up that thread alone. Once 32 MiB wait, workers are held back until half
/// of it is written; what was on its way from them is kept, too.
class OutputPrinter {
 public:
  /// Holds the workers of this driver back, or lets them go on. Called under the printer's lock; must not
  /// wait.
  using HoldWorkers = std::function<void(bool on)>;
  struct Limits {
    std::size_t hold = std::size_t{32} << 20;   ///< bytes that wait when workers are held back
    std::size_t drop = std::size_t{256} << 20;  ///< bytes above which lines are dropped, and counted
  };
  struct Streams {
    int output = STDOUT_FILENO;
    int errors = STDERR_FILENO;
  };

  explicit OutputPrinter(HoldWorkers hold) : OutputPrinter(std::move(hold), Limits{}, Streams{}) {}
  OutputPrinter(HoldWorkers hold, Limits limits, Streams streams);
  ~OutputPrinter();
  OutputPrinter(const OutputPrinter&) = delete;
  OutputPrinter& operator=(const OutputPrinter&) = delete;

  /// Each line with its worker's name before it. Does not wait.
  void print(const wire::Output& output);
  /// If workers are held back, says so again: to a node that has not heard it.
  void repeat_hold();
  /// Waits until all lines are written, for as long as somebody holds the streams' other ends, as the
  /// program's own writes do. Drops what comes after. No HoldWorkers is called any more.
  void finish();

 private:
  struct Text {
    int stream = -1;
    std::string text;
  };
  void run();

  const HoldWorkers hold_;
  const Limits limits_;
  const Streams streams_;
  std::mutex mutex_;  ///< guards what follows, to the next blank line
  std::condition_variable changed_;
  std::deque<Text> waiting_;
  std::size_t bytes_ = 0;  ///< of waiting_, and of the text that is being written
  std::size_t dropped_lines_ = 0;
  bool holds_ = false;
  bool finishing_ = false;

  std::thread thread_;
};

}  // namespace troupe
