/// The thread of a node that empties the pipes of submitted programs into their logs: always, whoever reads
/// those, and however slow the node's loop or the disk is for others.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/node/log_segments.hpp"

namespace troupe::node {

/// Thread-safe.
class OutputThread {
 public:
  OutputThread();
  ~OutputThread();
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  /// Reads both pipes into `log` until they end. `key` names it.
  void add(std::string key, UniqueFd output, UniqueFd errors, LogSegments log);
  /// The program is gone: reads what is left, for a second at most (a process that it left may hold the
  /// pipes), and then calls `closed` in its own thread.
  void finish(const std::string& key, std::function<void()> closed);
  /// Whether more may come to that log.
  bool is_open(const std::string& key) const;

 private:
  struct Stream {
    std::string key;
    UniqueFd pipes[2];  ///< standard output and error; empty once they ended
    LogSegments log;
    Instant close_at{};  ///< 0: not before they end
    std::function<void()> closed{};
  };
  void run();
  void wake() const;
  /// Reads what is there, up to a bound.
  static void drain(Stream& stream, int which);
  bool is_done(const Stream& stream) const;

  MonotonicClock clock_;
  UniqueFd wake_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>>
      streams_;            ///< the list is guarded by mutex_, and what close_at and closed are
  bool stopping_ = false;  ///< guarded by mutex_
  std::thread thread_;
};

}  // namespace troupe::node
