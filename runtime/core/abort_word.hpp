/// The abort word: the first bytes of every shared region of a process group.
///
/// Its layout is fixed and lives in runtime/core, so that a node process can abort a group whose other bytes
/// it knows nothing about. First abort wins; an abort is never taken back (the next generation gets a fresh
/// region).
///
///   offset 0   u32 state: 0 good, 1 somebody is writing the reason, 2 the reason is written
///          4   u32 kind (AbortKind)
///          8   u32 length of the reason in bytes
///         16   u64 generation stamp: 0 while nobody has attached
///         24   200 bytes of reason, not terminated
///         224  unused, to 256
///
/// Thread-safety: everything here may be called from any thread of any process that maps the region. No lock:
/// a writer that dies between states 1 and 2 costs readers the reason, never the abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/ids.hpp"
#include "runtime/core/result.hpp"

namespace troupe {

inline constexpr std::size_t kAbortWordBytes = 256;
inline constexpr std::size_t kMaxAbortReasonBytes = 200;

/// Why a region was aborted, for programs; the reason is for people.
enum class AbortKind : std::uint32_t {
  kUnknown = 0,     ///< the writer died before it could say
  kRequested = 1,   ///< somebody called abort
  kMemberDied = 2,  ///< a member's process or node is gone
  kTimeout = 3,     ///< no rank made progress for as long as the group waits
  kMismatch = 4,    ///< ranks called different operations
  kPeerLost = 5,    ///< a connection to another machine broke
};

struct AbortReason {
  AbortKind kind = AbortKind::kUnknown;
  std::string text;
};

/// Aborts the region, unless somebody did before; says whether this was the first. `reason` is cut to
/// kMaxAbortReasonBytes. REQUIRES: region is zeroed or stamped shared memory of at least kAbortWordBytes,
/// aligned to 8 bytes.
bool abort_region(std::byte* region, std::string_view reason, AbortKind kind = AbortKind::kMemberDied);

/// Whether the region is aborted. One load: made for wait loops.
bool region_aborted(const std::byte* region);

/// The first reason. Waits some milliseconds for a writer that is still at it. REQUIRES:
/// region_aborted(region).
AbortReason region_abort_reason(const std::byte* region);

/// Stamps a fresh region with `generation`, or refuses one that carries another stamp. The first caller wins:
/// a node stamps a region before it hands it out, and every member checks at attach.
Result<void> stamp_region(std::byte* region, Generation generation);

}  // namespace troupe
