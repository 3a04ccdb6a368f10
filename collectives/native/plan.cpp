#include "collectives/native/plan.hpp"

#include <algorithm>

#include "collectives/native/region.hpp"

namespace troupe::collectives {

namespace {

/// The operation of equal parts that moves the same way. The parts of all_to_all_v go as messages.
OpKind moves_as(OpKind kind) {
  if (kind == OpKind::kAllGatherV) return OpKind::kAllGather;
  if (kind == OpKind::kReduceScatterV) return OpKind::kReduceScatter;
  return kind == OpKind::kAllToAllV ? OpKind::kBarrier : kind;
}

}  // namespace

Plan::Plan(const Op& op, const Shape& shape, Algorithm algorithm)
    : kind_(moves_as(op.kind)),
      root_(op.peer),
      ranks_(shape.ranks),
      count_(op.count),
      element_(element_size(op.dtype)),
      one_shot_(algorithm == Algorithm::kOneShot) {
  if (op.kind == OpKind::kAllToAllV) count_ = 0;
  if (op.kind == OpKind::kAllGatherV || op.kind == OpKind::kReduceScatterV) {
    count_ = *std::max_element(op.counts.begin(), op.counts.end());
    before_.push_back(0);
    for (const std::size_t n : op.counts) before_.push_back(before_.back() + n);
  }
  std::size_t bytes = kChunkBytes;
  // A stage then holds a part for each of the others, cut at cache lines if there is room for lines.
  if (parts_for_each() && ranks_ > 2) bytes /= static_cast<std::size_t>(ranks_ - 1);
  if (shape.hosts > 1) bytes = std::min(bytes, most_landing(shape));
  if (bytes > kCacheLine) bytes = bytes / kCacheLine * kCacheLine;
  // Trees lie in the region and take no stage.
  if (kind_ == OpKind::kAllReduceTree) bytes = shape.hosts > 1 ? most_landing(shape) : count_ * element_;
  chunk_ = std::max<std::size_t>(1, bytes / element_);
}

/// The most bytes of a part of which what one host has for another fits a landing.
std::size_t Plan::most_landing(const Shape& shape) const {
  const std::size_t landing = shape.landing_bytes, members = shape.members;
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  switch (kind_) {
    case OpKind::kAllReduceTree:
    case OpKind::kAllReduce:
    case OpKind::kReduce: {
      const std::size_t lines = landing / kCacheLine / shape.nodes;
      // Slices are cut at lines: a host owns all of them, or so many of each rank's.
      return kCacheLine * (one_shot_ ? lines : std::max(lines, ranks * (lines / members)));
    }
    case OpKind::kReduceScatter:
      return landing / (shape.nodes * members);
    case OpKind::kAllToAll:
      return landing / (members * members);
    case OpKind::kBroadcast:
    case OpKind::kBarrier:
      return landing;
    default:
      return landing / members;
  }
}

std::uint64_t Plan::rounds() const {
  return count_ <= chunk_ ? 1 : count_ / chunk_ + (count_ % chunk_ != 0 ? 1 : 0);
}

}  // namespace troupe::collectives
