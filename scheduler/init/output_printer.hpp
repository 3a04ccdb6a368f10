/// Writes what workers print to the streams of their driver's program.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/wire/messages.hpp"

namespace troupe {

/// Thread-safe. Lines wait here in order and a thread of its own writes them: a stream that nobody reads
/// (Ctrl-S, a paused `less`) holds up that thread alone, and as no room is made meanwhile, the workers. A
/// stream that cannot be written (a full disk) loses its lines, and holds up nobody.
class OutputPrinter {
 public:
  struct Hooks {
    /// So much of that node's output is written, or lost. Must not wait.
    std::function<void(NodeId node, std::size_t bytes)> taken;
    /// A stream cannot be written (errno). Once a stream.
    std::function<void(int error)> failed;
  };
  struct Streams {
    int output = STDOUT_FILENO;
    int errors = STDERR_FILENO;
  };
  /// Of bytes that wait. More are dropped, and counted: what workers send is bounded by their nodes' windows,
  /// but the last words of those that end are not.
  static constexpr std::size_t kMostBytes = std::size_t{256} << 20;

  explicit OutputPrinter(Hooks hooks) : OutputPrinter(std::move(hooks), kMostBytes, Streams{}) {}
  OutputPrinter(Hooks hooks, std::size_t most_bytes, Streams streams);
  ~OutputPrinter();
  OutputPrinter(const OutputPrinter&) = delete;
  OutputPrinter& operator=(const OutputPrinter&) = delete;

  /// Each line with its worker's name before it. Does not wait.
  void print(const wire::Output& output);
  /// Waits until all lines are written, for as long as somebody holds the streams' other ends, as the
  /// program's own writes do. Drops what comes after. Calls nobody any more.
  void finish();

 private:
  struct Text {
    bool is_error = false;
    std::string text;
    NodeId node;
    std::size_t bytes = 0;  ///< as they were sent
  };
  void run();
  void write(const Text& text);
  void take(const Text& text);

  const Hooks hooks_;
  const std::size_t most_bytes_;
  std::mutex mutex_;  ///< guards what follows, to the next blank line
  std::condition_variable changed_;
  std::deque<Text> waiting_;
  std::size_t bytes_ = 0;  ///< of waiting_, and of the text that is being written
  std::size_t dropped_lines_ = 0;
  bool finishing_ = false;

  // Of the thread that writes.
  int streams_[2];                        ///< output and errors; -1: it cannot be written
  std::map<NodeId, std::size_t> untold_;  ///< taken, in pieces too small to tell of
  std::thread thread_;
};

}  // namespace troupe
