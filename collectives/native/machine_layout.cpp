#include "collectives/native/machine_layout.hpp"

#include <utility>

namespace troupe::collectives {

MachineLayout::MachineLayout(std::vector<int> machines) : machines_(std::move(machines)) {
  for (int rank = 0; rank < static_cast<int>(machines_.size()); ++rank) {
    if (rank == 0 || !together(rank - 1, rank)) runs_.push_back({rank, rank});
    runs_.back().end = rank + 1;
    run_of_.push_back(runs_.size() - 1);
  }
}

std::vector<int> MachineLayout::ranks_with(int rank) const {
  std::vector<int> ranks;
  for (int other = 0; other < static_cast<int>(machines_.size()); ++other) {
    if (together(rank, other)) ranks.push_back(other);
  }
  return ranks;
}

}  // namespace troupe::collectives
