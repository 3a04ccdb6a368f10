/// A word that processes wait on, in shared memory. There are no locks there: nobody can die holding one.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/core/clock.hpp"

namespace troupe {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Sleeps until `word` is woken, no longer holds `expected`, `timeout` is over or a signal arrives. The
/// caller checks its condition again: a return says nothing about the reason.
/// With a mask, only a wake-up whose mask shares a bit with it counts.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout,
                std::uint32_t mask = ~std::uint32_t{0});

/// Wakes up to `count` sleepers on `word` whose mask shares a bit with `mask`, in every process that maps it.
void futex_wake(std::atomic<std::uint32_t>& word, int count, std::uint32_t mask = ~std::uint32_t{0});

/// One turn of a busy wait. Spins with the CPU's pause hint; `turn` counts up, and every so often the core is
/// yielded, because with more runnable threads than cores the peer may need it (sched_yield beats futex 30 to
/// 1).
void spin_pause(unsigned turn);

}  // namespace troupe
