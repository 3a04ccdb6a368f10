#include "collectives/native/backoff.hpp"

#include <sched.h>

#include "runtime/core/futex.hpp"

namespace troupe::collectives {
namespace {

constexpr unsigned kSpins = 512;         // about 25 us
constexpr unsigned kSpinsPerYield = 16;  // in case the rank that is waited for was put on this core
constexpr unsigned kYieldsPerCheck = 16;
constexpr Duration kYieldFor = std::chrono::milliseconds(2);

}  // namespace

Backoff::Turn Backoff::next() {
  const unsigned spins = crowded_ ? 0 : kSpins;
  const unsigned turn = turn_++;
  if (turn < spins) {
    if (turn % kSpinsPerYield == kSpinsPerYield - 1) {
      ::sched_yield();
    } else {
      spin_pause(0);
    }
    return Turn::kAgain;
  }
  const unsigned yields = turn - spins;
  // A yield takes 0.3 us, or many milliseconds where others want this core: a look at the clock is cheap.
  const Instant now = clock_.now();
  if (yields == 0) yield_until_ = now + kYieldFor;
  if (now >= yield_until_) {
    turn_ = turn;  // stay here: from now on every turn sleeps
    return Turn::kSleep;
  }
  if (yields != 0 && yields % kYieldsPerCheck == 0) return Turn::kCheck;
  ::sched_yield();
  return Turn::kAgain;
}

}  // namespace troupe::collectives
