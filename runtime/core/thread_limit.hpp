/// Too few processes and threads for a user: what starts a thread then throws, and libraries abort.
#pragma once

#include <cstddef>
#include <system_error>

#include "runtime/core/result.hpp"

namespace troupe {

/// What a head, a node and a program may each start, so that none is short of them half-way.
inline constexpr std::size_t kThreadsOfPart = 24;

/// Whether this process may start so many threads more, which it tries where few are allowed. Errors: kIo.
Result<void> check_thread_limit(std::size_t count);

/// Of what the start of a thread threw.
ErrorInfo cannot_start_thread(const std::error_code& why);

}  // namespace troupe
