/// Sessions and the end of their program.
#pragma once

#include <string>
#include <utility>

#include "runtime/core/quiet_thread.hpp"

namespace troupe {

/// Call before a session is made, any number of times: the program's end waits, for a while, for what
/// end_elsewhere() runs.
void watch_program_end();
/// Whether exit() has come to what was made before the first session: globals of the program, and those of
/// libraries, which may be gone.
bool is_program_ending();

/// From here on an Error that main() does not catch is said in one line, PROGRAM: what it says, and the exit
/// code is 1, in place of std::terminate's abort. Any other exception, and other threads', end as ever. Any
/// number of times.
void say_uncaught_errors(const std::string& program);

namespace detail {
void end_begins();
void end_is_over();
}  // namespace detail

/// Runs `work`, which waits for the calling thread, in a thread of its own.
template <class Work>
void end_elsewhere(Work work) {
  detail::end_begins();
  start_quiet_thread([work = std::move(work)]() mutable {
    work();
    detail::end_is_over();
  }).detach();
}

}  // namespace troupe
