/// What a placement policy sees and answers. The policy itself lives in scheduler/: the head is given one, so
/// that runtime does not depend on it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/ids.hpp"

namespace troupe::control {

/// CPUs are counted in 1/10000: num_cpus = 0.5 is 5000.
inline constexpr std::int64_t kCpu = 10000;

/// What an actor asks of a node.
struct ActorDemand {
  std::int64_t cpu_e4 = 0;  ///< CPUs in 1/10000; 0 asks for nothing
  bool isolated = false;    ///< a process of its own; such actors are spread
  NodeId affinity{};        ///< this node and no other; none by default
  bool operator==(const ActorDemand&) const = default;
};

/// A live node as the policy sees it. Gateways (drivers and remote sessions) are never shown to it.
struct NodeView {
  NodeId id{};
  std::string name;
  std::int64_t cpu_e4 = 0;       ///< all it has
  std::int64_t cpu_used_e4 = 0;  ///< what its actors hold
  int actors = 0;
  bool suspect = false;  ///< silent for longer than it should be: nothing new is placed there
};

enum class PlacementVerdict {
  kPlaced,
  kWait,   ///< not now: asked again when resources change
  kNever,  ///< no node of this cluster could hold it: the spawn is refused
};

struct Placement {
  PlacementVerdict verdict = PlacementVerdict::kWait;
  NodeId node{};
  std::string reason;  ///< why there, or why nowhere
};

/// Pure: the same nodes (in id order) and demand give the same answer.
using PlacementPolicy = std::function<Placement(const std::vector<NodeView>&, const ActorDemand&)>;

/// "1.5" for 15000: CPUs as a person writes them.
std::string format_cpus(std::int64_t cpu_e4);

}  // namespace troupe::control
