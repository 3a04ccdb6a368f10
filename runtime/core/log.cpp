#include "runtime/core/log.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace troupe {
namespace {

LogLevel level_from_environment() {
  const char* value = std::getenv("TROUPE_LOG");
  const std::string_view text = value == nullptr ? "" : value;
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "error") return LogLevel::kError;
  return LogLevel::kWarning;
}

std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

std::string& role() {
  static std::string name;
  return name;
}

}  // namespace

void set_log_level(LogLevel level) {
  current_level() = level;
}
void set_log_role(std::string name) {
  role() = std::move(name);
}
bool log_enabled(LogLevel level) {
  return level >= current_level().load(std::memory_order_relaxed);
}

void log(LogLevel level, std::string_view text) {
  if (!log_enabled(level)) return;
  std::string line = role().empty() ? "troupe: " : "troupe[" + role() + "]: ";
  line.append(text);
  line.push_back('\n');
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace troupe
