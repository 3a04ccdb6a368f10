#include "collectives/native/backoff.hpp"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "runtime/core/futex.hpp"

namespace troupe::collectives {
namespace {

constexpr unsigned kSpins = 512;  // about 25 us
constexpr unsigned kTurnsPerCheck = 64;
constexpr Duration kYieldFor = std::chrono::milliseconds(2);
/// About 5 ms of this rank's own time: as long as Linux lets another program run before the core of the rank
/// that is waited for is its own again. Not by the clock, which goes on while this rank has lost its core.
constexpr unsigned kMoreSpins = 100'000;
constexpr unsigned kForShort = 8;  ///< what a short wait adds to the credit

}  // namespace

void Backoff::reset() {
  if (turn_ == 0) return;
  const unsigned turns = std::exchange(turn_, 0);
  if (credit_ == nullptr) return;
  if (turns < kSpins) {
    credit_->waits = std::min(credit_->waits + kForShort, Credit::kMost);
  } else if (credit_->waits != 0) {
    --credit_->waits;
  }
}

Backoff::Turn Backoff::spend(bool beside) {
  const unsigned turn = turn_;
  if (turn == 0)
    spins_ = crowded_ ? 0 : kSpins + (credit_ != nullptr && credit_->waits != 0 ? kMoreSpins : 0);
  if (turn < spins_) {
    ++turn_;
    if (beside) {
      ::sched_yield();
    } else {
      spin_pause(0);
    }
    return turn % kTurnsPerCheck == kTurnsPerCheck - 1 && turn > kSpins ? Turn::kCheck : Turn::kAgain;
  }
  // A yield takes 0.3 us, or many milliseconds where others want this core: a look at the clock is cheap.
  const Instant now = clock_.now();
  if (turn == spins_) yield_until_ = now + kYieldFor;
  if (now >= yield_until_) return Turn::kSleep;  // and stay here: from now on every turn sleeps
  ++turn_;
  if (turn % kTurnsPerCheck == kTurnsPerCheck - 1) return Turn::kCheck;
  ::sched_yield();
  return Turn::kAgain;
}

}  // namespace troupe::collectives
