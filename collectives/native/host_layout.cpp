#include "collectives/native/host_layout.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::collectives {

HostLayout::HostLayout(std::vector<int> hosts) : hosts_(std::move(hosts)) {
  std::map<int, std::size_t> indices;
  for (int rank = 0; rank < static_cast<int>(hosts_.size()); ++rank) {
    if (rank == 0 || !together(rank - 1, rank)) host_groups_.push_back({rank, rank});
    host_groups_.back().end = rank + 1;
    host_group_of_.push_back(host_groups_.size() - 1);
    host_of_.push_back(indices.try_emplace(hosts_[at(rank)], members_.size()).first->second);
    if (host_of_.back() == members_.size()) members_.emplace_back();
    members_[host_of_.back()].push_back(rank);
  }
  for (const std::vector<int>& members : members_) {
    const std::size_t others = hosts_.size() - members.size();
    if (members.size() > 1) places_ = std::max(places_, (others + members.size() - 1) / members.size());
  }
}

/// Which of the ranks that are not on the machine of `to` `from` is.
std::size_t HostLayout::position(int from, int to) const {
  const std::vector<int>& members = ranks_with(to);
  const auto below = std::lower_bound(members.begin(), members.end(), from) - members.begin();
  return at(from) - static_cast<std::size_t>(below);
}

int HostLayout::relay(int from, int to, std::uint32_t round) const {
  const std::vector<int>& members = ranks_with(to);
  return members[(position(from, to) + round) % members.size()];
}

bool HostLayout::feeds(int root, int from, int to, std::uint32_t round) const {
  const std::size_t next = (host_of_[at(from)] + 1) % members_.size();
  if (host_of_[at(to)] != next || together(root, to) || relay(root, to, round) != to) return false;
  return together(root, from) ? from == root : relay(root, from, round) == from;
}

std::size_t HostLayout::place(int from, int to) const {
  return position(from, to) / ranks_with(to).size();
}

}  // namespace troupe::collectives
