/// A pipe that a program writes to, read until its end.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "runtime/core/fd.hpp"
#include "runtime/node/event_loop.hpp"

namespace troupe::node {

/// Lives in its loop's thread.
class PipeReader {
 public:
  struct Hooks {
    std::function<void(std::string_view)> read;  ///< 64 KiB at most
    std::function<void()> ended;                 ///< once: the pipe has ended. Must not destroy the reader
  };
  PipeReader(EventLoop& loop, UniqueFd pipe, Hooks hooks);
  ~PipeReader();
  PipeReader(const PipeReader&) = delete;
  PipeReader& operator=(const PipeReader&) = delete;

  /// Reads no more for now: who writes is held back once the pipe is full.
  void pause(bool on);
  /// The program is gone: takes what is in the pipe, for `timeout` at most (what it has left behind may hold
  /// it open), not counting while it is paused.
  void finish(Duration timeout);
  bool has_ended() const { return !pipe_; }

 private:
  void read();
  void end();

  EventLoop& loop_;
  UniqueFd pipe_;
  const Hooks hooks_;
  bool is_paused_ = false;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);  ///< for timers
};

}  // namespace troupe::node
