/// Which ranks are on which machine, and who speaks for whom. Pure.
///
/// Adjacent ranks on one machine are a *run*. What other machines need of a run is the partial sums of its
/// tree nodes, which travel once: for each rank elsewhere one of the run, its *speaker* with that rank, adds
/// up the run's inputs for it, and takes its sums for all of the run.
///
/// What all ranks of a machine copy of a rank elsewhere travels once, too: in every round one of them is the
/// *taker*, whose stage has a place for it, from which the others read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/leaf_tree.hpp"

namespace troupe::collectives {

class MachineLayout {
 public:
  /// `machines`: by rank, any numbers; ranks with the same one share memory.
  explicit MachineLayout(std::vector<int> machines);

  bool together(int a, int b) const { return machines_[at(a)] == machines_[at(b)]; }
  /// The ranks on the machine of `rank`, ascending.
  const std::vector<int>& ranks_with(int rank) const { return members_[machine_of_[at(rank)]]; }
  /// Intervals of ranks, in order.
  const std::vector<LeafInterval>& runs() const { return runs_; }
  std::size_t run_of(int rank) const { return run_of_[at(rank)]; }
  bool alone(int rank) const { return runs_[run_of(rank)].size() == 1; }
  /// The rank of `rank`'s run that deals with `other`. REQUIRES: they are on different machines.
  int speaker(int rank, int other) const {
    const LeafInterval run = runs_[run_of(rank)];
    return run.begin + other % run.size();
  }

  /// Who on the machine of `to` takes what comes from `from` in `round`. REQUIRES: `from` is on another.
  int taker(int from, int to, std::uint32_t round) const;
  /// Whether `from` gives `to`, on another machine, what `root` broadcasts in `round`. Machines form a chain
  /// that begins with the root's: each taker gives it to the next machine's, so that nobody sends it twice.
  bool feeds(int root, int from, int to, std::uint32_t round) const;
  /// Which place in the taker's stage it has, from 0.
  std::size_t place(int from, int to) const;
  /// The most places that any rank needs, each rank's input being read by all.
  std::size_t places() const { return places_; }

 private:
  std::size_t position(int from, int to) const;
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::vector<int> machines_;
  std::vector<LeafInterval> runs_;
  std::vector<std::size_t> run_of_;
  std::vector<std::vector<int>> members_;  ///< by machine, in the order of their first ranks: its ranks
  std::vector<std::size_t> machine_of_;    ///< by rank: its index there
  std::size_t places_ = 0;
};

}  // namespace troupe::collectives
