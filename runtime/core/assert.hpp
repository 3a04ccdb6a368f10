/// TROUPE_ASSERT: a check of the program's own invariants. It stays on in production and is never used for
/// input (input gets a Result or an exception).
#pragma once

namespace troupe {

/// Prints the broken invariant with its place and aborts.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line,
                                   const char* why) noexcept;

}  // namespace troupe

#define TROUPE_ASSERT(condition, why) \
  (static_cast<bool>(condition) ? void(0) : ::troupe::assertion_failed(#condition, __FILE__, __LINE__, why))
