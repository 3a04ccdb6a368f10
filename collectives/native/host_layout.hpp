/// Which ranks are on which host, and which of them have the connections between hosts. Pure.
///
/// Ranks of one host share memory. For each other host some of them, the *gateways*, have a connection
/// with one of its ranks each, which carries what any rank of the one has for any rank of the other. So
/// connections grow with hosts and not with ranks; where hosts are few they have several (*lanes*), which
/// take rounds in turn, so that more than one core moves bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/leaf_tree.hpp"

namespace troupe::collectives {

/// The most connections that two of so many hosts have. One keeps one core of each side busy, and a link of
/// 100 Gbit/s wants several; with eight for all others a host has few, however many hosts there are.
std::uint32_t most_lanes(int hosts);

class HostLayout {
 public:
  /// `hosts`: by rank, any numbers; ranks with the same one share memory.
  explicit HostLayout(std::vector<int> hosts);

  /// How many hosts there are. They are numbered in the order of their first ranks.
  int hosts() const { return static_cast<int>(members_.size()); }
  int host_of(int rank) const { return host_of_[at(rank)]; }
  bool together(int a, int b) const { return host_of(a) == host_of(b); }
  /// The ranks on a host, ascending.
  const std::vector<int>& members(int host) const { return members_[at(host)]; }
  const std::vector<int>& ranks_with(int rank) const { return members(host_of(rank)); }
  /// The most ranks on any host.
  std::size_t most_members() const { return most_members_; }
  /// Adjacent ranks on one host: intervals of ranks, in order.
  const std::vector<LeafInterval>& host_groups() const { return host_groups_; }

  /// Connections between two hosts.
  std::uint32_t lanes(int a, int b) const;
  /// The rank of `host` that has the connection of this lane with `other`.
  int gateway(int host, int other, std::uint32_t lane) const {
    const std::vector<int>& ranks = members(host);
    return ranks[(at(other) + lane) % ranks.size()];
  }
  /// The rank of `host` that deals with `other` in this round.
  int gateway_in(int host, int other, std::uint32_t round) const {
    return gateway(host, other, round % lanes(host, other));
  }
  /// The ranks of other hosts with which `rank` is connected, ascending.
  std::vector<int> peers(int rank) const;

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  std::vector<int> host_of_;               ///< by rank
  std::vector<std::vector<int>> members_;  ///< by host
  std::vector<LeafInterval> host_groups_;
  std::size_t most_members_ = 0;
};

}  // namespace troupe::collectives
