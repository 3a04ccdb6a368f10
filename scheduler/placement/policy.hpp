/// What a placement policy sees and answers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/ids.hpp"
#include "runtime/wire/cluster.hpp"

namespace troupe::cluster {

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

}  // namespace troupe::cluster
