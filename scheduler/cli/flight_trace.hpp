/// The operations in dumps of flight recorders as a trace: JSON that ui.perfetto.dev and chrome://tracing
/// show.
#pragma once

#include <string>
#include <vector>

#include "collectives/flight/dump.hpp"

namespace troupe::cli {

/// A process a rank, named by its rank in the largest of its groups; in it a row a group, and further rows
/// for what it had under way at the same time. A bar is an operation from its launch until that rank saw it
/// complete, or until the dump. Times are microseconds since the first launch, by the clocks of their
/// machines.
std::string trace_of(const std::vector<collectives::flight::Dump>& dumps);

}  // namespace troupe::cli
