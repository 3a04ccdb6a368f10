/// Diagnostics to standard error, one line each: "troupe[role]: text". Secrets never reach a log: types that
/// hold one have no conversion to text.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Lines below this level are dropped. Default kWarning; `TROUPE_LOG=debug|info|warning|error` sets it at
/// start.
void set_log_level(LogLevel level);
/// What is wrong with the value of TROUPE_LOG, which is ignored then; empty: nothing.
std::string wrong_log_variable();
/// What the process is, in every line's prefix: "head", "node 1f", "worker 3c". Call before threads start.
void set_log_role(std::string role);
/// Writes one line with a single write(2), so lines of several threads and processes do not mix. Thread-safe.
void log(LogLevel level, std::string_view text);
bool log_enabled(LogLevel level);

}  // namespace troupe
