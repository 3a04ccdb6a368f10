/// A rank's stream on its way to a file and to the console, each line with a prefix (--tee).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/node/event_loop.hpp"
#include "runtime/node/output_lines.hpp"

namespace troupe::launch {

/// Lives in its loop's thread. A console that takes nothing holds the rank back, and nobody else.
class OutputRelay {
 public:
  /// `file` and `console` (a descriptor that stays the caller's; -1: none) get what comes out of `pipe`.
  /// `on_end` is called once, when the stream has ended and the console has all of it.
  OutputRelay(EventLoop& loop, UniqueFd pipe, UniqueFd file, int console, std::string prefix,
              std::function<void()> on_end);
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  /// The rank has ended: takes what is in the pipe, `timeout` at most. What it has forked may hold the pipe
  /// open.
  void finish(Duration timeout);
  bool has_ended() const { return has_ended_; }

 private:
  void read_some();
  void to_console(const std::string& lines);
  void write_held();
  void ended();

  EventLoop& loop_;
  UniqueFd pipe_;
  const UniqueFd file_;
  const int console_;
  const std::string prefix_;
  const std::function<void()> on_end_;
  node::OutputLines lines_;
  std::string held_;         ///< for the console
  bool is_waiting_ = false;  ///< for the console to take something
  bool has_ended_ = false;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);  ///< for timers
};

}  // namespace troupe::launch
