/// Which ranks are on which machine, and who speaks for whom. Pure.
///
/// Adjacent ranks on one machine are a *run*. What other machines need of a run is the partial sums of its
/// tree nodes, which travel once: for each rank elsewhere one of the run, its *speaker* with that rank, adds
/// up the run's inputs for it, and takes its sums for all of the run.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/leaf_tree.hpp"

namespace troupe::collectives {

class MachineLayout {
 public:
  /// `machines`: by rank, any numbers; ranks with the same one share memory.
  explicit MachineLayout(std::vector<int> machines);

  bool together(int a, int b) const { return machines_[at(a)] == machines_[at(b)]; }
  /// The ranks on the machine of `rank`, ascending.
  std::vector<int> ranks_with(int rank) const;
  /// Intervals of ranks, in order.
  const std::vector<LeafInterval>& runs() const { return runs_; }
  std::size_t run_of(int rank) const { return run_of_[at(rank)]; }
  bool alone(int rank) const { return runs_[run_of(rank)].size() == 1; }
  /// The rank of `rank`'s run that deals with `other`. REQUIRES: they are on different machines.
  int speaker(int rank, int other) const {
    const LeafInterval run = runs_[run_of(rank)];
    return run.begin + other % run.size();
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::vector<int> machines_;
  std::vector<LeafInterval> runs_;
  std::vector<std::size_t> run_of_;
};

}  // namespace troupe::collectives
