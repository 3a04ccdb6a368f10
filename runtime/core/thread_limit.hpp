/// Too few processes and threads for a user or a control group: what starts a thread then throws, and
/// libraries abort.
#pragma once

#include <cstddef>
#include <optional>
#include <system_error>

#include "runtime/core/control_groups.hpp"
#include "runtime/core/result.hpp"

namespace troupe {

/// What a head, a node and a program may each start, so that none is short of them half-way.
inline constexpr std::size_t kThreadsOfPart = 24;

/// What the actors of a process, or of a program, take beside its first thread.
inline constexpr std::size_t kThreadsOfProcess = 10;
/// What to do where no process or thread can be had.
inline constexpr const char* kRaiseProcesses =
    "raise the limit on processes (ulimit -u, or pids.max of the control group: of a container --pids-limit)";

/// Whether this process may start so many threads more: by what its control groups leave, and by a trial
/// where ulimit -u allows few. Errors: kIo.
Result<void> check_thread_limit(std::size_t count);
/// The first of them. Pure.
Result<void> check_process_room(std::size_t count, const std::optional<ProcessRoom>& room);

/// Of what the start of a thread threw: which limit it met.
ErrorInfo cannot_start_thread(const std::error_code& why);

}  // namespace troupe
