#include "runtime/core/futex.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <ctime>

#include "runtime/core/thread_floor.hpp"

namespace troupe {

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout,
                std::uint32_t mask) {
  if (timeout <= Duration::zero()) return;
  if (ThreadFloor* floor = ThreadFloor::current()) return floor->wait(word, expected, timeout);
  // FUTEX_WAIT_BITSET takes the instant at which to give up, on the clock that MonotonicClock reads.
  const Instant now = MonotonicClock().now();
  const Instant until = timeout > Duration::max() - now ? Duration::max() : now + timeout;
  timespec ts{};
  ts.tv_sec = static_cast<time_t>(until / std::chrono::seconds(1));
  ts.tv_nsec = static_cast<long>((until % std::chrono::seconds(1)).count());
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_BITSET, expected, &ts, nullptr,
            mask);
}

void futex_wake(std::atomic<std::uint32_t>& word, int count, std::uint32_t mask) {
  if (ThreadFloor* floor = ThreadFloor::current()) return floor->wake(word);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_BITSET, count, nullptr, nullptr,
            mask);
}

void spin_pause(unsigned turn) {
  if (turn % 64 == 63) {
    ::sched_yield();
    return;
  }
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace troupe
