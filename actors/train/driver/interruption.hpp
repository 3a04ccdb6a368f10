/// From a fault (or a widening) to the first step after it: why, and how long each part took.
#pragma once

#include <optional>
#include <string>

#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

/// A value. Not thread-safe.
///
/// Invariant: a fault during a recovery is of the same interruption, and a death explains it better than what
/// the others noticed of one.
class Interruption {
 public:
  /// A generation opens because of `cause`.
  void add(const std::string& cause, bool fault, Instant now);
  /// A trainer that was a member died. `unexpected`: nobody ordered it, and no generation opened for it.
  void member_died(const std::string& what, bool unexpected);
  /// One more survivor has left the collective.
  void member_left(Instant now);
  bool is_on() const { return now_.has_value(); }
  /// When the driver knew. REQUIRES: is_on().
  Instant detected() const { return now_->detected; }
  /// Training goes on in `generation`: what there is to tell, once.
  std::optional<Recovered> end(Generation generation, int trainers, Instant now);

 private:
  struct State {
    std::string cause;
    bool fault = true;
    bool explained = false;  ///< the cause is a death, not what the others noticed of one
    Instant detected{};
    Instant left{};
  };
  std::optional<State> now_;
};

}  // namespace troupe::train
