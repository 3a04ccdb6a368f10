/// What moves where in an operation: pure arithmetic on ranks and elements.
///
/// An operation is done in rounds, each of which takes a *part* of its elements: as many as a stage of the
/// region holds. In a round rank `to` reads from rank `from` the elements `reads` of the input of `from`
/// (everybody reads, nobody is written to: a pull), and either copies them to its output at `writes` or adds
/// up what it read of all ranks. What it added up it keeps (reduce_scatter), or stores as its slice
/// (`results`) of the buffers of others: of all (all_reduce), or of the root (reduce). One-shot, whoever gets
/// a sum adds up all of it for itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/native/cost_model.hpp"
#include "collectives/native/tree_sum.hpp"

namespace troupe::collectives {

class Plan {
 public:
  Plan() = default;
  /// `op` has been checked: its root exists, its counts do not overflow. On one host a tree takes one round,
  /// on several as many as what comes from one of them has landings, so that sums are on their way while the
  /// next part comes in.
  Plan(const Op& op, const Shape& shape, Algorithm algorithm);

  std::uint64_t rounds() const;
  /// Readers add up what they read; otherwise they copy it.
  bool sums() const;
  /// A rank is done once it has read, and does not wait until it was read.
  bool one_shot() const { return one_shot_; }
  /// Sums go back to other ranks.
  bool answers() const;
  /// And to the root alone.
  bool goes_to_root() const { return kind_ == OpKind::kReduce; }
  /// Whoever reads from a rank reads the same, so that it is staged once.
  bool reads_alike() const;
  /// Every rank reads the same of a rank, and copies it.
  bool copies_to_all() const { return kind_ == OpKind::kBroadcast || kind_ == OpKind::kAllGather; }
  /// Elements of the input of `rank`, which is its only buffer for all_reduce, reduce and broadcast. 0: the
  /// rank has none.
  std::size_t input_count(int rank) const;

  /// The elements of this round, as positions in the op's count.
  Slice part(std::uint32_t round) const;
  /// What `to` reads of the input of `from`; itself included, where its own input counts too.
  Slice reads(std::uint32_t round, int from, int to) const;
  /// Where `to` puts in its output what it read from `from`, or the sum.
  std::size_t writes(std::uint32_t round, int from) const;
  /// Where in the stage of `from` what `to` reads of it begins, in elements.
  std::size_t staged(std::uint32_t round, int from, int to) const;
  /// What `owner` summed and stores to the buffer of `to`.
  Slice results(std::uint32_t round, int owner, int to) const;

 private:
  bool is_reduction_in_place() const;
  bool parts_for_each() const;
  std::size_t most_landing(const Shape& shape) const;
  Slice slice_in(std::uint32_t round, int owner) const;
  std::size_t count_of(int rank) const;
  std::size_t before(int rank) const;

  OpKind kind_ = OpKind::kBarrier;
  int root_ = 0;
  int ranks_ = 1;
  std::size_t count_ = 0;  ///< of the largest part
  std::vector<std::size_t>
      before_;  ///< by rank: elements of the parts before its own; empty: all have count_
  std::size_t element_ = 4;
  std::size_t chunk_ = 1;  ///< elements of a round
  bool one_shot_ = false;
};

// Inline: ranks ask this in every round, between two meetings.

inline bool Plan::is_reduction_in_place() const {
  return kind_ == OpKind::kAllReduceTree || kind_ == OpKind::kAllReduce || kind_ == OpKind::kReduce;
}

inline bool Plan::sums() const {
  return is_reduction_in_place() || kind_ == OpKind::kReduceScatter;
}

inline bool Plan::answers() const {
  return is_reduction_in_place() && !one_shot_;
}

inline bool Plan::reads_alike() const {
  return (one_shot_ && is_reduction_in_place()) || kind_ == OpKind::kBroadcast || kind_ == OpKind::kGather ||
         kind_ == OpKind::kAllGather;
}

/// Whether inputs have a part for every rank, side by side.
inline bool Plan::parts_for_each() const {
  return kind_ == OpKind::kScatter || kind_ == OpKind::kReduceScatter || kind_ == OpKind::kAllToAll;
}

inline std::size_t Plan::input_count(int rank) const {
  if (kind_ == OpKind::kBarrier || (kind_ == OpKind::kScatter && rank != root_)) return 0;
  return parts_for_each() ? before(ranks_) : count_of(rank);
}

inline std::size_t Plan::before(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return before_.empty() ? r * count_ : before_[r];
}

inline std::size_t Plan::count_of(int rank) const {
  return before_.empty() ? count_ : before(rank + 1) - before(rank);
}

inline Slice Plan::part(std::uint32_t round) const {
  const std::size_t begin = std::min(count_, round * chunk_);
  return {begin, std::min(count_, begin + chunk_)};
}

inline Slice Plan::slice_in(std::uint32_t round, int owner) const {
  const Slice all = part(round);
  const Slice slice = slice_of(all.size(), element_, owner, ranks_);
  return {all.begin + slice.begin, all.begin + slice.end};
}

inline Slice Plan::reads(std::uint32_t round, int from, int to) const {
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

inline std::size_t Plan::writes(std::uint32_t round, int from) const {
  const bool side_by_side =
      kind_ == OpKind::kGather || kind_ == OpKind::kAllGather || kind_ == OpKind::kAllToAll;
  return part(round).begin + (side_by_side ? before(from) : 0);
}

inline std::size_t Plan::staged(std::uint32_t round, int from, int to) const {
  if (parts_for_each()) return static_cast<std::size_t>(to < from ? to : to - 1) * chunk_;
  if (kind_ == OpKind::kAllGather) return 0;
  return reads(round, from, to).begin - part(round).begin;
}

inline Slice Plan::results(std::uint32_t round, int owner, int to) const {
  if (!answers() || (kind_ == OpKind::kReduce && to != root_)) return {};
  return slice_in(round, owner);
}

}  // namespace troupe::collectives
