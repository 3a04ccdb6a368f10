/// Whether trainers that must hold the same bits do: each tells hashes of its state's parts, and they are
/// compared.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "actors/train/plan.hpp"

namespace troupe::train {

/// A value. Not thread-safe.
///
/// Invariant: of a number of steps it keeps what the first trainer said, until these steps are proven.
class StateProofs {
 public:
  /// What parts of the state hash to after so many steps, as the first trainer said.
  struct Proof {
    ActorId from{};
    std::vector<PartHash> parts;
  };

  /// A generation begins. `step_by_step`: after each step a piece of the state is told, until it is through.
  void begin(bool step_by_step);
  /// All are asked for something else than a step's piece.
  void clear() { proofs_.clear(); }
  bool step_by_step() const { return step_by_step_; }
  /// Whether the state after `steps` steps is still told piece by piece.
  bool wants(std::int64_t steps) const { return step_by_step_ && (!whole_at_ || steps <= *whole_at_); }
  /// The first trainer's word where `parts` are not the same.
  std::optional<Proof> differs(std::int64_t steps, ActorId from, const std::vector<PartHash>& parts);
  /// With the state after `steps` steps all of it was told.
  void told_whole(std::int64_t steps) { whole_at_ = steps; }
  /// So many steps are committed, and so compared. True once, when the whole state has been.
  bool prove(std::int64_t committed);

 private:
  bool step_by_step_ = false;
  std::optional<std::int64_t> whole_at_;  ///< steps after which they have told all of it
  std::map<std::int64_t, Proof> proofs_;  ///< by steps
};

}  // namespace troupe::train
