#include "runtime/host/window.hpp"

#include <algorithm>
#include <climits>

#include "runtime/core/futex.hpp"

namespace troupe {

std::size_t Window::out() const {
  return static_cast<std::size_t>(std::max<std::int64_t>(0, out_.load(std::memory_order_acquire)));
}

Window::Took Window::try_take(std::size_t bytes, std::size_t slack) {
  if (closed_.load(std::memory_order_acquire)) return Took::kClosed;
  if (out() >= limit_ * slack) return Took::kFull;
  force(bytes);
  return Took::kTaken;
}

Window::Took Window::take(std::size_t bytes, Instant deadline) {
  const MonotonicClock clock;
  for (;;) {
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    const Took took = try_take(bytes);
    if (took != Took::kFull) return took;
    const Instant now = clock.now();
    if (now >= deadline) return Took::kFull;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (is_full() && !closed_) futex_wait(changes_, seen, deadline - now);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Window::give_back(std::size_t bytes) {
  const auto before = out_.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_seq_cst);
  const auto limit = static_cast<std::int64_t>(limit_);
  if (before >= limit && before - static_cast<std::int64_t>(bytes) < limit) wake();
}

void Window::close() {
  closed_ = true;
  wake();
}

void Window::wake() {
  changes_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(changes_, INT_MAX);
}

}  // namespace troupe
