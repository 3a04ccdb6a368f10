/// A rank's stream on its way to a file of bounded size (--redirects), and to the console, each line with a
/// prefix (--tee).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/node/log_segments.hpp"
#include "runtime/node/output_lines.hpp"
#include "runtime/node/pipe_reader.hpp"

namespace troupe::launch {

/// Lives in its loop's thread. A console that takes nothing holds the rank back, and nobody else.
class OutputRelay {
 public:
  struct Hooks {
    std::function<void()> ended;  ///< once: the stream has ended, and the console has all of it
    /// What is lost from now on, and why (errno): the rank goes on.
    std::function<void(const char* what, int error)> failed;
    std::function<void()> trimmed{};  ///< once: the beginning of the file is gone
  };
  using File = std::optional<node::SegmentFiles>;
  /// `file` and `console` (a descriptor that stays the caller's; -1: none) get what comes out of `pipe`.
  OutputRelay(EventLoop& loop, UniqueFd pipe, File file, int console, std::string prefix, Hooks hooks);
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  /// The rank has ended: takes what is in the pipe, `timeout` at most, unless the console takes nothing. What
  /// it has forked may hold the pipe open.
  void finish(Duration timeout) { reader_.finish(timeout); }
  bool has_ended() const { return has_ended_; }

 private:
  void take(std::string_view text);
  void to_console(const std::string& lines);
  void write_held();
  void ended();

  EventLoop& loop_;
  File file_;
  int console_;               ///< -1 once it cannot be written
  bool has_failed_ = false;   ///< the file: said
  bool has_trimmed_ = false;  ///< the same
  const std::string prefix_;
  const Hooks hooks_;
  node::OutputLines lines_;
  std::string held_;         ///< for the console
  bool is_waiting_ = false;  ///< for the console to take something
  bool has_ended_ = false;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);  ///< for timers
  node::PipeReader reader_;
};

}  // namespace troupe::launch
