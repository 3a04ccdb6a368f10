/// Placement groups: room on nodes that is reserved together, all of it or none.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/ids.hpp"
#include "runtime/wire/resources.hpp"

namespace troupe {

/// Where the bundles of a placement group go.
enum class PlacementStrategy : std::uint8_t {
  kPack,          ///< on as few nodes as there is room for
  kSpread,        ///< on as many nodes as there is room for
  kStrictPack,    ///< all on one node, or it waits
  kStrictSpread,  ///< each on a node of its own, or it waits
};
constexpr PlacementStrategy troupe_last(PlacementStrategy) {
  return PlacementStrategy::kStrictSpread;
}

namespace cluster {

/// What a bundle holds on its node; as ActorDemand counts.
struct BundleDemand {
  std::int64_t cpu_e4 = 0;
  std::int64_t gpu_e4 = 0;
  OtherResources other{};
  auto operator<=>(const BundleDemand&) const = default;
};
struct GroupSpec {
  JobId job{};
  std::string name;  ///< of one group of the job at a time; empty for none
  PlacementStrategy strategy = PlacementStrategy::kPack;
  std::vector<BundleDemand> bundles;
  /// For actors that start together: it holds nothing until there is an actor for each bundle, which asks for
  /// what that has, and room for all. Then they start there, hold their room themselves, and the group is
  /// gone.
  bool start_only = false;
  bool operator==(const GroupSpec&) const = default;
};
/// Where a bundle is.
struct PlacedBundle {
  NodeId node{};                      ///< none: it has no room yet, or its node died
  std::vector<std::uint32_t> gpus{};  ///< which of its node's GPUs, by their place in NodeInfo::gpus
  bool operator==(const PlacedBundle&) const = default;
};
enum class GroupState : std::uint8_t {
  kWaiting,  ///< for room for all its bundles, or for those whose nodes died
  kReady,
  kEnding,  ///< removed: it holds its room until what runs in it is gone
};
constexpr GroupState troupe_last(GroupState) {
  return GroupState::kEnding;
}
/// What a process asks about a group.
enum class GroupVerb : std::uint8_t {
  kMake,
  kShow,    ///< as it is now; by its id, or by its name
  kAwait,   ///< once it is ready
  kRemove,  ///< what runs in it is killed, and its room given back
};
constexpr GroupVerb troupe_last(GroupVerb) {
  return GroupVerb::kRemove;
}

}  // namespace cluster
}  // namespace troupe
