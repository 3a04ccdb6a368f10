#include "runtime/core/abort_word.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "runtime/core/assert.hpp"
#include "runtime/core/clock.hpp"

namespace troupe {
namespace {

enum State : std::uint32_t { kGood = 0, kWriting = 1, kWritten = 2 };

/// The reason is kept in words, since bytes that another process may be reading have to be atomic.
constexpr std::size_t kReasonWords = kMaxAbortReasonBytes / sizeof(std::uint64_t);
static_assert(kReasonWords * sizeof(std::uint64_t) == kMaxAbortReasonBytes);

struct Layout {
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> kind;
  std::atomic<std::uint32_t> length;
  std::uint32_t unused;
  std::atomic<std::uint64_t> stamp;
  std::array<std::atomic<std::uint64_t>, kReasonWords> reason;
};
static_assert(sizeof(Layout) <= kAbortWordBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

Layout& layout(std::byte* region) {
  return *reinterpret_cast<Layout*>(region);
}
const Layout& layout(const std::byte* region) {
  return *reinterpret_cast<const Layout*>(region);
}

/// Never 0, so that a fresh region is told from one of generation 0.0.
std::uint64_t stamp_of(Generation generation) {
  return ((std::uint64_t{generation.incarnation} << 32) | generation.counter) + 1;
}
Generation generation_of(std::uint64_t stamp) {
  return {static_cast<std::uint32_t>((stamp - 1) >> 32), static_cast<std::uint32_t>(stamp - 1)};
}

}  // namespace

bool abort_region(std::byte* region, std::string_view reason, AbortKind kind) {
  Layout& word = layout(region);
  std::uint32_t good = kGood;
  if (!word.state.compare_exchange_strong(good, kWriting, std::memory_order_acq_rel)) return false;
  const std::size_t length = std::min(reason.size(), kMaxAbortReasonBytes);
  std::array<std::uint64_t, kReasonWords> words{};
  std::memcpy(words.data(), reason.data(), length);
  for (std::size_t i = 0; i < kReasonWords; ++i) word.reason[i].store(words[i], std::memory_order_relaxed);
  word.kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
  word.length.store(static_cast<std::uint32_t>(length), std::memory_order_relaxed);
  word.state.store(kWritten, std::memory_order_release);
  return true;
}

bool region_aborted(const std::byte* region) {
  return layout(region).state.load(std::memory_order_acquire) != kGood;
}

AbortReason region_abort_reason(const std::byte* region) {
  const Layout& word = layout(region);
  TROUPE_ASSERT(region_aborted(region), "a good region has no reason");
  constexpr Duration kPatience = std::chrono::milliseconds(5);
  const MonotonicClock clock;
  const Instant until = clock.now() + kPatience;
  while (word.state.load(std::memory_order_acquire) != kWritten) {
    if (clock.now() > until)
      return {AbortKind::kUnknown, "aborted by a process that died before it said why"};
    ::sched_yield();
  }
  std::array<std::uint64_t, kReasonWords> words{};
  for (std::size_t i = 0; i < kReasonWords; ++i) words[i] = word.reason[i].load(std::memory_order_relaxed);
  const auto length =
      std::min<std::size_t>(word.length.load(std::memory_order_relaxed), kMaxAbortReasonBytes);
  std::string text(length, '\0');
  std::memcpy(text.data(), words.data(), length);
  const std::uint32_t kind = word.kind.load(std::memory_order_relaxed);
  const bool known = kind <= static_cast<std::uint32_t>(AbortKind::kPeerLost);
  return {known ? static_cast<AbortKind>(kind) : AbortKind::kUnknown, std::move(text)};
}

Result<void> stamp_region(std::byte* region, Generation generation) {
  std::uint64_t found = 0;
  const std::uint64_t wanted = stamp_of(generation);
  if (layout(region).stamp.compare_exchange_strong(found, wanted, std::memory_order_acq_rel)) return {};
  if (found == wanted) return {};
  return ErrorInfo{
      ErrorCode::kRefused, "refused a shared region",
      "it belongs to generation " + to_string(generation_of(found)) + " and not to " + to_string(generation),
      "attach to the region of the current generation"};
}

}  // namespace troupe
