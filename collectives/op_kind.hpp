/// The operations of a process group, as contracts, dumps and messages name them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe::collectives {

enum class OpKind : std::uint8_t {
  kAllReduceTree,
  kAllReduce,
  kReduce,
  kBroadcast,
  kGather,
  kScatter,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,  ///< from here on: between two ranks, with an order of their own
  kRecv,
};

inline constexpr std::array<std::string_view, 12> kOpKindNames{
    "all_reduce_tree", "all_reduce",     "reduce",     "broadcast", "gather", "scatter",
    "all_gather",      "reduce_scatter", "all_to_all", "barrier",   "send",   "recv"};

constexpr std::string_view name_of(OpKind kind) {
  return kOpKindNames[static_cast<std::size_t>(kind)];
}
constexpr bool is_message(OpKind kind) {
  return kind >= OpKind::kSend;
}
/// Operations that add up (or the like).
constexpr bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduceTree || kind == OpKind::kAllReduce || kind == OpKind::kReduce ||
         kind == OpKind::kReduceScatter;
}

}  // namespace troupe::collectives
