#include "collectives/nccl/exact_plan.hpp"

#include <algorithm>

#include "collectives/native/leaf_sums.hpp"
#include "collectives/nccl/tree_fold.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives::nccl {

ExactPlan::ExactPlan(const std::vector<LeafInterval>& intervals, const HostLayout& layout, int rank,
                     std::vector<std::uint8_t>& programs)
    : layout_(&layout), rank_(rank), leaves_(intervals.back().end) {
  for (const LeafInterval interval : intervals) {
    partials_.push_back(static_cast<int>(canonical_nodes(interval, leaves_).size()));
    most_partials_ = std::max(most_partials_, partials_.back());
  }
  TROUPE_ASSERT(most_partials_ <= kMaxOwnPartials, "a rank has few partials");
  const auto& groups = layout.host_groups();
  own_group_ =
      *std::find_if(groups.begin(), groups.end(), [&](LeafInterval group) { return rank < group.end; });

  // The owner's sources, left to right: all but our own have a slot.
  slot_of_rank_.assign(intervals.size(), -1);
  owner_.program = programs.size();
  const auto whole = fold_program(sources_of(intervals, layout, rank, false), leaves_);
  programs.insert(programs.end(), whole.begin(), whole.end());
  owner_.sources = static_cast<int>(whole.size());
  owner_.depth = fold_depth(whole);
  owner_.own_count = partials_of(rank);
  int slot = 0;
  for (const LeafInterval group : groups) {
    slot_of_group_.push_back(slot);
    sums_.push_back(static_cast<int>(canonical_nodes(leaves_of(intervals, group), leaves_).size()));
    if (!layout.together(rank, group.begin)) {
      const int before = slot + (rank < group.begin ? owner_.own_count : 0);
      for (int i = 0; i < sums_.back() && group.size() > 1; ++i)
        programs[owner_.program + static_cast<std::size_t>(before + i)] |= kSummedBit;
      slot += sums_.back();
      continue;
    }
    for (int r = group.begin; r < group.end; ++r) {
      if (r == rank) owner_.own_first = slot;
      slot_of_rank_[static_cast<std::size_t>(r)] = slot;
      if (r != rank) slot += partials_of(r);
    }
  }

  const bool several_hosts = layout.ranks_with(rank).size() != intervals.size();
  sums_before_wire_ = several_hosts && std::any_of(groups.begin(), groups.end(),
                                                   [](LeafInterval group) { return group.size() > 1; });
  for (int r = 0; r < static_cast<int>(intervals.size()); ++r) {
    if (!layout.together(rank, r) && leader_for(own_group_, r) == rank) led_.push_back(r);
  }
  if (own_group_.size() == 1) return;
  for (int r = own_group_.begin; r < own_group_.end; ++r) group_slots_ += r == rank ? 0 : partials_of(r);
  const LeafNodes apart = sources_of(intervals, layout, rank, true);
  const LeafInterval own = intervals[static_cast<std::size_t>(rank)];
  int others = 0, ours = 0;
  for (const LeafInterval node : canonical_nodes(leaves_of(intervals, own_group_), leaves_)) {
    const LeafNodes inside = nodes_below(node, apart);
    Fold fold{.program = programs.size(),
              .sources = static_cast<int>(inside.size()),
              .first_slot = others,
              .first_partial = ours};
    for (const LeafInterval source : inside) {
      const int begin = source.begin + node.begin;
      if (begin < own.begin) ++fold.own_first;
      if (begin >= own.begin && begin < own.end) ++fold.own_count;
    }
    others += fold.sources - fold.own_count;
    ours += fold.own_count;
    const auto program = fold_program(inside, node.size());
    programs.insert(programs.end(), program.begin(), program.end());
    fold.depth = fold_depth(program);
    group_.push_back(fold);
  }
}

int ExactPlan::group_slot_of(int r) const {
  int slot = 0;
  for (int q = own_group_.begin; q < r; ++q) {
    if (q != rank_) slot += partials_of(q);
  }
  return slot;
}

}  // namespace troupe::collectives::nccl
