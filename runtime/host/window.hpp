/// How much may be under way to one receiver, in bytes. Who sends takes room and waits when there is none;
/// who hears that the receiver is done with some gives room back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/core/clock.hpp"

namespace troupe {

/// Thread-safe. Room is taken while less than the limit is out, so one thing of any size gets through.
class Window {
 public:
  explicit Window(std::size_t limit) : limit_(limit) {}

  enum class Took { kTaken, kFull, kClosed };
  /// Takes room at once. `slack` times the limit is the bound: a thread that must not wait has more than one
  /// that may.
  Took try_take(std::size_t bytes, std::size_t slack = 1);
  /// Waits for room until `deadline`, or until the window is closed.
  Took take(std::size_t bytes, Instant deadline);
  /// Takes room that may not be there: for what must not be refused.
  void force(std::size_t bytes) {
    out_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_acq_rel);
  }
  void give_back(std::size_t bytes);
  /// Nobody waits here any more, now or later.
  void close();
  std::size_t out() const;
  bool is_full() const { return out() >= limit_; }

 private:
  void wake();

  const std::size_t limit_;
  std::atomic<std::int64_t> out_{0};
  std::atomic<bool> closed_{false};
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace troupe
