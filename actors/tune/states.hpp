/// Saved states of trials, in files of the sweep's folder: who goes on from one finds it also after the
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

  /// Into a file, state-N. Error (kIo).
  Result<void> add(StateNumber number, train::Snapshot state);
  /// Without its bytes, which are in its file. Errors: kIo, kCorrupt.
  Result<train::Snapshot> find(StateNumber number);
  /// With its bytes. The same errors.
  Result<train::Snapshot> load(StateNumber number);
  /// Forgets all others.
  void keep(const std::set<StateNumber>& needed);

 private:
  std::string path_of(StateNumber number) const;

  std::string folder_;
  std::map<StateNumber, train::Snapshot> states_;  ///< without their bytes
};

}  // namespace troupe::tune
