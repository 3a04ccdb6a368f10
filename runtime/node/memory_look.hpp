/// Looks at the memory of the processes that a node started. May wait for any of them: for a LookThread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>

#include "runtime/node/node_events.hpp"
#include "runtime/node/process_memory.hpp"
#include "runtime/node/stuck_processes.hpp"

namespace troupe::node {

using BytesOf = std::function<std::int64_t(pid_t)>;

/// None if nobody has more than it asked for: as a rule the kernel's own sums say so, some 10 us a process.
/// Else what each has of `claims`, whose `pid` is set, and their node, that offers so many bytes. A process
/// that an earlier look still waits for counts by the kernel's sum, and is not found to be over: its memory
/// would not come back.
std::optional<MemoryMeasured> look_at_memory(std::int64_t offered, std::vector<MemoryClaim> claims,
                                             StuckProcesses& stuck,
                                             const BytesOf& share = share_of_anonymous_bytes);

}  // namespace troupe::node
