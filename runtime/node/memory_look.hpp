/// Looks at the memory of the processes that a node started. May wait for any of them: for a LookThread.
#pragma once

#include <optional>

#include "runtime/node/node_events.hpp"

namespace troupe::node {

/// None if nobody has more than it asked for: as a rule the kernel's own sums say so, some 10 us a process.
/// Else what each has of `claims`, whose `pid` is set, and their node, that offers so many bytes.
std::optional<MemoryMeasured> look_at_memory(std::int64_t offered, std::vector<MemoryClaim> claims);

}  // namespace troupe::node
