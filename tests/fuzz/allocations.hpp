/// What the process holds in memory from operator new, and the most that it held since a mark.
#pragma once

#include <cstddef>

namespace troupe::fuzz {

/// From now on most_allocated() counts.
void mark_allocations();
/// From now on it does not.
void stop_counting();
/// The most bytes held at once beyond those at the mark. 0 under sanitizers, which bring their own allocator.
std::size_t most_allocated();

}  // namespace troupe::fuzz
