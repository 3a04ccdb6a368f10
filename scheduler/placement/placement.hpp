/// What placement sees and answers.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/ids.hpp"
#include "runtime/wire/cluster.hpp"
#include "scheduler/placement/gpu_deal.hpp"

namespace troupe::cluster {

/// A live node as placement sees it. Gateways (drivers and remote sessions) are never shown to it.
struct NodeView {
  NodeId id{};
  std::string name;
  std::int64_t cpu_e4 = 0;       ///< all it has
  std::int64_t cpu_used_e4 = 0;  ///< what its actors hold
  int actors = 0;
  bool suspect = false;          ///< not heard of as it should be: nothing new is placed there
  GpuUse gpus{};                 ///< one entry a GPU that it has
  OtherResources other{};        ///< all memory and custom resources that it has, and its labels
  ResourceAmounts other_used{};  ///< what is held of them
};

/// No node has more CPUs, and no actor asks for more: products of two such numbers fit 64 bits.
inline constexpr std::int64_t kMaxCpu_e4 = 100'000 * kCpu;

enum class PlacementVerdict {
  kPlaced,
  kWait,   ///< not now: asked again when resources change
  kNever,  ///< no node of this cluster could hold it
};

struct Placement {
  PlacementVerdict verdict = PlacementVerdict::kWait;
  NodeId node{};
  std::string reason;  ///< why there, or why never; empty for kWait: NodeIndex::why_waits tells
  std::vector<std::uint32_t> gpus{};  ///< which of that node's GPUs
  std::int32_t bundle = -1;           ///< of its placement group
};

/// "1.5" for 15000: CPUs as a person writes them.
std::string format_cpus(std::int64_t cpu_e4);

}  // namespace troupe::cluster
