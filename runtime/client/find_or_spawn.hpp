/// ActorOptions::get_if_exists: the actor of a name, whoever spawns it first.
#pragma once

#include <memory>

#include "runtime/host/process_gate.hpp"

namespace troupe::detail {

/// Resolved as a spawn is. Asks who has the name and spawns if nobody does, until one of the two works: of
/// several that ask at a time one spawns. REQUIRES: the spawn has a name.
std::shared_ptr<CallState> find_or_spawn(ProcessGate& gate, ActorSpawn spawn);

}  // namespace troupe::detail
