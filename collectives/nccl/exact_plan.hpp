/// Who adds up what in an exact reduction, for one rank: pure.
///
/// Every rank owns a slice. Adjacent ranks of one host are a host group (native/host_layout.hpp). Between
/// hosts a slice goes as the sums of a group: the group's leader for the slice's owner adds up the group's
/// partials, so that the bytes between hosts do not grow with the ranks of a host. The owner adds those sums
/// and the partials of the ranks on its own host.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/native/host_layout.hpp"

namespace troupe::collectives::nccl {

/// The rank of a host group that adds up its partials for `owner`, who is on another host.
inline int leader_for(LeafInterval group, int owner) {
  return group.begin + owner % group.size();
}

class ExactPlan {
 public:
  /// `intervals`: every rank's leaves. Appends its fold programs to `programs`.
  ExactPlan(const std::vector<LeafInterval>& intervals, const HostLayout& layout, int rank,
            std::vector<std::uint8_t>& programs);

  /// One fold. Its sources are slots of a block of what others sent, and the rank's own partials.
  struct Fold {
    std::size_t program = 0;  ///< where it starts in the programs
    int sources = 0;
    int depth = 0;
    int own_first = 0;  ///< how many of the others come before ours
    int own_count = 0;
    int first_slot = 0;     ///< of the others, in the block
    int first_partial = 0;  ///< of ours
  };

  int leaves() const { return leaves_; }
  int partials_of(int rank) const { return partials_[static_cast<std::size_t>(rank)]; }
  int most_partials() const { return most_partials_; }
  const HostLayout& layout() const { return *layout_; }
  /// The host group of this rank.
  LeafInterval own_group() const { return own_group_; }

  /// The owner's fold. Its block has `slots()` slots: for rank r on this host those from slot_of_rank(r) on,
  /// for a host group elsewhere those from slot_of_group(g) on, one for each of its sums.
  const Fold& owner() const { return owner_; }
  int slots() const { return owner_.sources - owner_.own_count; }
  int slot_of_rank(int r) const { return slot_of_rank_[static_cast<std::size_t>(r)]; }
  int slot_of_group(std::size_t group) const { return slot_of_group_[group]; }
  int sums_of(std::size_t group) const { return sums_[group]; }

  /// Whether any host group has to add up before the wire: the same on every rank.
  bool sums_before_wire() const { return sums_before_wire_; }
  /// A leader's folds, one for each sum of its host group; none where the group is the rank alone. Their
  /// block has `group_slots()` slots, for rank r of the group those from group_slot_of(r) on.
  const std::vector<Fold>& group() const { return group_; }
  int group_slots() const { return group_slots_; }
  int group_slot_of(int r) const;
  /// The ranks whose slices this one leads its group for, ascending.
  const std::vector<int>& led() const { return led_; }

 private:
  const HostLayout* layout_;
  LeafInterval own_group_;
  int rank_;
  int leaves_;
  int most_partials_ = 1;
  std::vector<int> partials_;
  Fold owner_;
  std::vector<int> slot_of_rank_, slot_of_group_, sums_;
  bool sums_before_wire_ = false;
  std::vector<Fold> group_;
  int group_slots_ = 0;
  std::vector<int> led_;
};

}  // namespace troupe::collectives::nccl
