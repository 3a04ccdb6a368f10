/// How a node asks a worker for a dump: through words behind its life lock, in the same memory. So a worker
/// whose threads all hang is asked as any other, and no message has to reach it.
#pragma once

#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/core/output_turn.hpp"

namespace troupe {

/// Of the memory with the lock.
std::size_t bytes_with_dump_request();
/// The worker's, in that memory.
OutputTurn& output_turn_in(const SharedMemory& memory);

/// The node's end. The worker writes its files into `folder`, which is there; kRefused: the path is too long.
Result<void> ask_for_dump(const SharedMemory& memory, const std::string& folder);
/// Whether it has written what it was asked for last.
bool is_dumped(const SharedMemory& memory);

/// The worker's end: a thread of its own answers from now on (dump_process), as long as the process lives,
/// and the OutputTurn is this process's. Errors: kIo, kRefused (it is other memory).
Result<void> serve_dumps(UniqueFd memory);

}  // namespace troupe
