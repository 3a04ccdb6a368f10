#include "collectives/native/host_layout.hpp"

#include <algorithm>
#include <map>

namespace troupe::collectives {

std::uint32_t most_lanes(int hosts) {
  return static_cast<std::uint32_t>(std::max(1, 8 / std::max(1, hosts - 1)));
}

HostLayout::HostLayout(std::vector<int> hosts) {
  std::map<int, int> numbers;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    const int host = numbers.try_emplace(hosts[at(rank)], static_cast<int>(members_.size())).first->second;
    if (at(host) == members_.size()) members_.emplace_back();
    if (rank == 0 || host_of_.back() != host) host_groups_.push_back({rank, rank});
    host_groups_.back().end = rank + 1;
    host_of_.push_back(host);
    members_[at(host)].push_back(rank);
    most_members_ = std::max(most_members_, members_[at(host)].size());
  }
}

std::uint32_t HostLayout::lanes(int a, int b) const {
  const std::size_t ranks = std::min(members(a).size(), members(b).size());
  return static_cast<std::uint32_t>(std::min<std::size_t>(ranks, most_lanes(hosts())));
}

std::vector<int> HostLayout::peers(int rank) const {
  std::vector<int> found;
  const int host = host_of(rank);
  for (int other = 0; other < hosts(); ++other) {
    for (std::uint32_t lane = 0; other != host && lane < lanes(host, other); ++lane) {
      if (gateway(host, other, lane) == rank) found.push_back(gateway(other, host, lane));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace troupe::collectives
