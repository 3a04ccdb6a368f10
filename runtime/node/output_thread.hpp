/// The thread of a node that empties the pipes of submitted programs into their logs: always, whoever reads
/// those, and however slow the node's loop or the disk is for others.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "runtime/node/log_segments.hpp"
#include "runtime/node/pipe_reader.hpp"

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
  /// What a log that is closed says at its end, and the disk did not take; mostly nothing.
  wire::Bytes note_at_end(const std::string& key) const;
  /// Drops the notes of keys that begin so.
  void forget(const std::string& prefix);

 private:
  struct Stream {
    LogSegments log;
    std::array<UniqueFd, 2> pipes;  ///< standard output and error, on their way to the readers
    std::array<std::unique_ptr<PipeReader>, 2> readers{};
    std::function<void()> closed{};
  };
  void look_at_end(const std::string& key);

  mutable std::mutex mutex_;
  std::set<std::string> open_;                ///< guarded by mutex_
  std::map<std::string, wire::Bytes> notes_;  ///< the same
  EventLoop loop_;                            ///< of thread_, as the streams are
  std::map<std::string, std::shared_ptr<Stream>> streams_;
  std::thread thread_;
};

}  // namespace troupe::node
