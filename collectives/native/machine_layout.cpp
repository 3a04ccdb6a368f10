#include "collectives/native/machine_layout.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::collectives {

MachineLayout::MachineLayout(std::vector<int> machines) : machines_(std::move(machines)) {
  std::map<int, std::size_t> indices;
  for (int rank = 0; rank < static_cast<int>(machines_.size()); ++rank) {
    if (rank == 0 || !together(rank - 1, rank)) runs_.push_back({rank, rank});
    runs_.back().end = rank + 1;
    run_of_.push_back(runs_.size() - 1);
    machine_of_.push_back(indices.try_emplace(machines_[at(rank)], members_.size()).first->second);
    if (machine_of_.back() == members_.size()) members_.emplace_back();
    members_[machine_of_.back()].push_back(rank);
  }
  for (const std::vector<int>& members : members_) {
    const std::size_t others = machines_.size() - members.size();
    if (members.size() > 1) places_ = std::max(places_, (others + members.size() - 1) / members.size());
  }
}

/// Which of the ranks that are not on the machine of `to` `from` is.
std::size_t MachineLayout::position(int from, int to) const {
  const std::vector<int>& members = ranks_with(to);
  const auto below = std::lower_bound(members.begin(), members.end(), from) - members.begin();
  return at(from) - static_cast<std::size_t>(below);
}

int MachineLayout::taker(int from, int to, std::uint32_t round) const {
  const std::vector<int>& members = ranks_with(to);
  return members[(position(from, to) + round) % members.size()];
}

bool MachineLayout::feeds(int root, int from, int to, std::uint32_t round) const {
  const std::size_t next = (machine_of_[at(from)] + 1) % members_.size();
  if (machine_of_[at(to)] != next || together(root, to) || taker(root, to, round) != to) return false;
  return together(root, from) ? from == root : taker(root, from, round) == from;
}

std::size_t MachineLayout::place(int from, int to) const {
  return position(from, to) / ranks_with(to).size();
}

}  // namespace troupe::collectives
