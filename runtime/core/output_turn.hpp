/// Which part of what a worker writes to standard error is its present task's: when the worker dies its node
/// quotes the last line of that.
#pragma once

#include <atomic>
#include <cstdint>

namespace troupe {

/// In memory that the worker shares with its node. Both are 0 in a worker that runs no tasks.
struct OutputTurn {
  std::atomic<std::uint32_t> turn;
  std::atomic<std::uint32_t> unread;  ///< of the bytes before that turn, or more; written before `turn`
};

/// This process's, once; it must live as long as the process does.
void share_output_turn(OutputTurn& memory);
/// A task begins: what was written before is none of it. Nothing in a process that shares no OutputTurn.
void begin_output_turn();

}  // namespace troupe
