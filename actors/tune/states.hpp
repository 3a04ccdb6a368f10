/// Saved states of trials, in memory and in the sweep's folder: who goes on from one finds it also after the
/// program died.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "actors/train/snapshot.hpp"
#include "actors/tune/sweep_machine.hpp"

namespace troupe::tune {

/// Not thread-safe.
class SavedStates {
 public:
  explicit SavedStates(std::string folder) : folder_(std::move(folder)) {}

  /// Also in a file, state-N. Error (kIo).
  Result<void> add(StateNumber number, train::Snapshot state);
  /// From memory, or from its file. Errors: kIo, kCorrupt.
  Result<const train::Snapshot*> find(StateNumber number);
  /// Forgets all others.
  void keep(const std::set<StateNumber>& needed);

 private:
  std::string path_of(StateNumber number) const;

  std::string folder_;
  std::map<StateNumber, train::Snapshot> states_;
};

}  // namespace troupe::tune
