/// How a process ended, as a text that crosses nodes: written and read here alone.
///
/// "killed by signal 11 (SIGSEGV), last line of its output: out of ideas"
#pragma once

#include <string>
#include <string_view>

namespace troupe {

/// "exit code 3".
std::string ended_with_code(int code);
/// "killed by signal 9 (SIGKILL)".
std::string ended_by_signal(int signal);
/// Of a process that was told or made to end: why, and how it did.
std::string ended_on_order(const std::string& why, const std::string& how);
/// With what the process said last: 300 bytes of it. In a shared one it may have been about something else.
std::string with_last_line(const std::string& how, const std::string& line, bool is_shared = false);

/// Whether what runs in the process ended it (a crash, an abort, an exit code), so that it may end the next
/// one, too. False for who was killed from outside or ended because it was told to, and for any other text.
bool ended_by_itself(std::string_view text);

}  // namespace troupe
