/// How a rank waits: first it spins, then it yields its core, then it sleeps in slices.
///
/// A spinning hop takes 0.3 us and a wake from sleep 38 us, so spinning is right while the others are about
/// to arrive. Who yields where other programs want the core gets it back after milliseconds, and has the
/// others wait as long: a rank whose waits are short as a rule does not yield when one is longer, since
/// somebody else has lost its core for a while. With more ranks than cores the one that is waited for may
/// need this core: then nobody spins.
#pragma once

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

/// A slice is short enough that an abort, which wakes nobody, is seen at once.
inline constexpr Duration kSleepSlice = std::chrono::milliseconds(1);

class Backoff {
 public:
  enum class Turn {
    kAgain,  ///< spun or yielded: look at the words again
    kCheck,  ///< also see to deadlines and to who left
    kSleep,  ///< sleep a slice, then as kCheck
  };
  /// How many long waits in a row may go without an early yield: what a rank's waits so far foretell.
  struct Credit {
    static constexpr unsigned kMost = 64;
    unsigned waits = kMost;
  };

  /// `crowded`: there are more ranks than cores. `credit`: of this rank's waits; null: every long one yields.
  explicit Backoff(bool crowded, Credit* credit = nullptr) : crowded_(crowded), credit_(credit) {}
  ~Backoff() { reset(); }
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;

  /// Something moved: start over.
  void reset();
  /// Spends one turn. `beside()`, asked now and then: whether the rank that is waited for was last seen on
  /// this core, which it then needs.
  template <class Beside>
  Turn next(Beside beside) {
    const bool asks = turn_ % kTurnsPerLook == kTurnsPerLook - 1;
    return spend(asks && !crowded_ && beside());
  }

 private:
  static constexpr unsigned kTurnsPerLook = 16;
  Turn spend(bool beside);

  const bool crowded_;
  Credit* const credit_;
  unsigned turn_ = 0;
  unsigned spins_ = 0;  ///< of this wait, before it yields
  Instant yield_until_{0};
  MonotonicClock clock_;
};

}  // namespace troupe::collectives
