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

bool Plan::is_reduction_in_place() const {
  return kind_ == OpKind::kAllReduceTree || kind_ == OpKind::kAllReduce || kind_ == OpKind::kReduce;
}

bool Plan::sums() const {
  return is_reduction_in_place() || kind_ == OpKind::kReduceScatter;
}

bool Plan::answers() const {
  return is_reduction_in_place() && !one_shot_;
}

bool Plan::reads_alike() const {
  return (one_shot_ && is_reduction_in_place()) || kind_ == OpKind::kBroadcast || kind_ == OpKind::kGather ||
         kind_ == OpKind::kAllGather;
}

/// Whether inputs have a part for every rank, side by side.
bool Plan::parts_for_each() const {
  return kind_ == OpKind::kScatter || kind_ == OpKind::kReduceScatter || kind_ == OpKind::kAllToAll;
}

std::size_t Plan::input_count(int rank) const {
  if (kind_ == OpKind::kBarrier || (kind_ == OpKind::kScatter && rank != root_)) return 0;
  return parts_for_each() ? before(ranks_) : count_of(rank);
}

std::size_t Plan::before(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return before_.empty() ? r * count_ : before_[r];
}

std::size_t Plan::count_of(int rank) const {
  return before_.empty() ? count_ : before(rank + 1) - before(rank);
}

Slice Plan::part(std::uint32_t round) const {
  const std::size_t begin = std::min(count_, round * chunk_);
  return {begin, std::min(count_, begin + chunk_)};
}

Slice Plan::slice_in(std::uint32_t round, int owner) const {
  const Slice all = part(round);
  const Slice slice = slice_of(all.size(), element_, owner, ranks_);
  return {all.begin + slice.begin, all.begin + slice.end};
}

Slice Plan::reads(std::uint32_t round, int from, int to) const {
  const Slice all = part(round);
  const std::size_t at = before(to);
  const auto within = [&](int rank) {  // of a part that may be shorter than others
    return Slice{std::min(all.begin, count_of(rank)), std::min(all.end, count_of(rank))};
  };
  switch (kind_) {
    case OpKind::kAllReduceTree:
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      if (!one_shot_) return slice_in(round, to);
      return kind_ == OpKind::kReduce && to != root_ ? Slice{} : all;
    case OpKind::kBroadcast:
      return from == root_ && to != root_ ? all : Slice{};
    case OpKind::kGather:
      return to == root_ ? all : Slice{};
    case OpKind::kAllGather:
      return within(from);
    case OpKind::kScatter:
      return from == root_ ? Slice{at + all.begin, at + all.end} : Slice{};
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
      return {at + within(to).begin, at + within(to).end};
    default:
      return {};
  }
}

std::size_t Plan::writes(std::uint32_t round, int from) const {
  const bool side_by_side =
      kind_ == OpKind::kGather || kind_ == OpKind::kAllGather || kind_ == OpKind::kAllToAll;
  return part(round).begin + (side_by_side ? before(from) : 0);
}

std::size_t Plan::staged(std::uint32_t round, int from, int to) const {
  if (parts_for_each()) return static_cast<std::size_t>(to < from ? to : to - 1) * chunk_;
  if (kind_ == OpKind::kAllGather) return 0;
  return reads(round, from, to).begin - part(round).begin;
}

Slice Plan::results(std::uint32_t round, int owner, int to) const {
  if (!answers() || (kind_ == OpKind::kReduce && to != root_)) return {};
  return slice_in(round, owner);
}

}  // namespace troupe::collectives
