/// Where a process and an actor can be reached.
#pragma once

#include <compare>
#include <functional>

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

template <>
struct std::hash<troupe::ProcessAddress> {
  std::size_t operator()(const troupe::ProcessAddress& a) const noexcept {
    return (a.node.value ^ (a.process.value * 0x9e3779b97f4a7c15ULL)) * 0x9e3779b97f4a7c15ULL;
  }
};
