/// One checked Op as calls of Gloo, blocking. The only files that see Gloo's headers are
/// gloo_calls.cpp and gloo_group.cpp.
#pragma once

#include <chrono>
#include <memory>

#include "collectives/library_group.hpp"

namespace gloo {
class Context;
}

namespace troupe::collectives {

/// Where and for how long.
struct GlooSite {
  std::shared_ptr<gloo::Context> context;
  std::chrono::milliseconds timeout{};
};

/// Returns when all ranks have come to collective `op`. Throws CollectiveAborted where they did not call the
/// same: Gloo would end the process, in its own thread, for data that are longer than what takes them.
void compare_on(const GlooSite& site, const Op& op);

/// Returns when the result of a collective is in place; throws what Gloo throws. `exact`: the reduction,
/// where `op` is one on the exact path, else null.
void run_gloo(const GlooSite& site, const Op& op, ExactReduction* exact);

/// Fails every operation of the context, on this rank at once and on the others as they find their
/// connections closed. Any thread.
void close_pairs(const GlooSite& site);

}  // namespace troupe::collectives
