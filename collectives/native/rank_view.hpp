/// What one rank of a group is, and what it sees of the others of its host.
///
/// Invariant: nothing here changes but the words of the region, which say who writes each.
#pragma once

#include <string>
#include <vector>

#include "collectives/native/host_layout.hpp"
#include "collectives/native/region.hpp"

namespace troupe::collectives {

struct RankView {
  /// `hosts`: by rank, as HostLayout has it. `region` is attached.
  RankView(int rank, std::string name, std::vector<int> hosts, Region region);
  RankView(const RankView&) = delete;
  RankView& operator=(const RankView&) = delete;

  static std::size_t index_of(int rank) { return static_cast<std::size_t>(rank); }
  bool is_local(int peer) const { return local_index[index_of(peer)] >= 0; }
  /// The place of a rank of this host among them.
  std::size_t local(int peer) const { return static_cast<std::size_t>(local_index[index_of(peer)]); }
  RankCell& cell(int peer) const { return region.cell(local(peer)); }
  bool alone() const { return locals.size() == 1; }
  bool one_host() const { return layout.hosts() == 1; }
  /// Whether a rank of this host destroyed its group.
  bool left(int peer) const { return cell(peer).left.load(std::memory_order_acquire) != 0; }

  bool is_aborted() const { return region_aborted(region.abort_word()); }
  void throw_if_aborted() const {
    if (is_aborted()) throw_aborted();
  }
  /// Throws CollectiveAborted with the reason that counts.
  [[noreturn]] void throw_aborted() const;
  /// Aborts the group, unless somebody has, and throws as throw_aborted().
  [[noreturn]] void fail(AbortKind kind, const std::string& reason) const;

  const int rank;
  const int size;
  const std::string name;  ///< of the group, in errors
  const HostLayout layout;
  const int host;
  const std::vector<int>& locals;  ///< the ranks of this host, ascending
  const Region region;
  const std::vector<int> local_index;  ///< by rank: its place among the local ranks, or -1
  RankCell& mine;
};

}  // namespace troupe::collectives
