/// Words that one rank advances and others wait for, and a ring of bytes made of two of them: what shared
/// memory is watched by.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

inline constexpr std::size_t kCacheLine = 64;

/// Asks for the lines of [at, at + bytes) to own them. A target is read first and written right after, and
/// was last written by another core: asking once to write takes half the traffic of asking to read and then
/// to write. 1.6 times faster for 1 MiB and two ranks, 1.1 times for 25 MiB; streaming stores were slower.
inline void claim(std::byte* at, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kCacheLine) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(at[i]));  // the builtin gives a read unless all is built for it
#else
    __builtin_prefetch(at + i, 1);
#endif
  }
}

/// A count that its rank alone advances, and on which others sleep. It wraps around.
struct alignas(2 * kCacheLine) Progress {
  std::atomic<std::uint32_t> rounds;
  // Beside the count, so that who reads it has these without another cache miss. Of `arrived` alone:
  std::atomic<std::uint32_t> core;                          ///< on which its rank last was, + 1
  std::array<std::atomic<std::uint32_t>, 8> calls;          ///< hashes of one-shot calls, by round
  alignas(kCacheLine) std::atomic<std::uint32_t> sleepers;  ///< not 0: somebody sleeps on `rounds`
};

/// Whether count a is before count b; they wrap around.
inline bool is_before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
}

void wake_sleepers(Progress& progress);

/// Advances `progress` to `rounds` and wakes who sleeps on it.
inline void publish(Progress& progress, std::uint32_t rounds) {
  // No fence between the two, which would wait for the line that others read: who falls asleep in these
  // nanoseconds, after the system has looked at the word, sleeps to the end of its slice.
  progress.rounds.store(rounds, std::memory_order_release);
  if (progress.sleepers.load(std::memory_order_relaxed) != 0) wake_sleepers(progress);
}

/// Whether `progress` has reached `rounds`.
inline bool reached(const Progress& progress, std::uint32_t rounds) {
  return !is_before(progress.rounds.load(std::memory_order_acquire), rounds);
}

/// Sleeps until `progress` moves on from `seen`, or `slice` is over.
void sleep_on(Progress& progress, std::uint32_t seen, Duration slice);

/// What is shared of a ring of bytes with one writer and one reader; its bytes follow.
struct RingHead {
  Progress written;  ///< bytes, by the writer
  Progress read;     ///< bytes, by the reader
};

/// One end's view of a ring. Not thread-safe; both ends at once may use it.
class Ring {
 public:
  /// `bytes`: a power of two, the same at both ends.
  Ring(RingHead* head, std::byte* data, std::size_t bytes)
      : head_(head), data_(data), mask_(bytes - 1), at_(0) {}

  /// The writer's: copies what fits; to be published after some puts.
  std::size_t put(std::span<const std::byte> from);
  void publish_written() { publish(head_->written, at_); }
  /// The reader's: copies what is there.
  std::size_t take(std::span<std::byte> into);
  /// Whether the other end's count cannot be: nothing was read for it.
  bool is_corrupt() const { return is_corrupt_; }

 private:
  RingHead* head_;
  std::byte* data_;
  std::size_t mask_;
  std::uint32_t at_;  ///< this end's own count
  bool is_corrupt_ = false;
};

}  // namespace troupe::collectives
