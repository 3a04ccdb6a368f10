/// Which ranks are on which host, and who sends for whom. Pure.
///
/// Adjacent ranks on one host are a *host group*. Its partial sums cross the network once: for each rank on
/// another host one rank of the group, the *leader* for that rank, adds up the group's inputs, sends the sum,
/// and receives the result for the whole group.
///
/// Input that every rank of a host copies crosses the network once, too: in every round one rank of the host
/// is the *relay*. It receives the input into its stage, and the others read it there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/leaf_tree.hpp"

namespace troupe::collectives {

class HostLayout {
 public:
  /// `hosts`: by rank, any numbers; ranks with the same one share memory.
  explicit HostLayout(std::vector<int> hosts);

  bool together(int a, int b) const { return hosts_[at(a)] == hosts_[at(b)]; }
  /// The ranks on the host of `rank`, ascending.
  const std::vector<int>& ranks_with(int rank) const { return members_[host_of_[at(rank)]]; }
  /// Intervals of ranks, in order.
  const std::vector<LeafInterval>& host_groups() const { return host_groups_; }
  std::size_t host_group_of(int rank) const { return host_group_of_[at(rank)]; }
  bool alone(int rank) const { return host_groups_[host_group_of(rank)].size() == 1; }
  /// The rank of `rank`'s host group that deals with `other`. REQUIRES: they are on different hosts.
  int leader(int rank, int other) const {
    const LeafInterval group = host_groups_[host_group_of(rank)];
    return group.begin + other % group.size();
  }

  /// The rank on the host of `to` that receives the input of `from` in `round`. REQUIRES: `from` is on
  /// another.
  int relay(int from, int to, std::uint32_t round) const;
  /// Whether `from` sends `to`, on another host, what `root` broadcasts in `round`. Hosts form a chain that
  /// begins with the root's: each relay sends it to the next host's, so that nobody sends it twice.
  bool feeds(int root, int from, int to, std::uint32_t round) const;
  /// Its place in the relay's stage, from 0.
  std::size_t place(int from, int to) const;
  /// The most places that any rank needs, each rank's input being read by all.
  std::size_t places() const { return places_; }

 private:
  std::size_t position(int from, int to) const;
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::vector<int> hosts_;
  std::vector<LeafInterval> host_groups_;
  std::vector<std::size_t> host_group_of_;
  std::vector<std::vector<int>> members_;  ///< by host, in the order of their first ranks: its ranks
  std::vector<std::size_t> host_of_;       ///< by rank: its index there
  std::size_t places_ = 0;
};

}  // namespace troupe::collectives
