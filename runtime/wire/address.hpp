/// Where a process and an actor can be reached.
#pragma once

#include <compare>

#include "runtime/core/ids.hpp"

namespace troupe {

struct ProcessAddress {
  NodeId node;
  ProcessId process;
  auto operator<=>(const ProcessAddress&) const = default;
};

struct ActorAddress {
  NodeId node;
  ProcessId process;
  ActorId actor;
  bool operator==(const ActorAddress&) const = default;
  ProcessAddress home() const { return {node, process}; }
};

}  // namespace troupe
