#include "runtime/core/log.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "runtime/core/escape.hpp"

namespace troupe {
namespace {

/// Nothing if it is not the name of one.
std::optional<LogLevel> level_from_environment() {
  const char* value = std::getenv("TROUPE_LOG");
  const std::string_view text = value == nullptr ? "" : value;
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning" || text.empty()) return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  return std::nullopt;
}

std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level{level_from_environment().value_or(LogLevel::kWarning)};
  return level;
}

/// Lines in a file say when they were written, with the time zone: who reads them may be in another one. On a
/// terminal that is to be seen.
std::string time_now() {
  const char* wanted = std::getenv("TROUPE_LOG_TIME");
  timespec now{};
  std::tm parts{};
  char text[40] = "";
  if (wanted == nullptr || ::clock_gettime(CLOCK_REALTIME, &now) != 0 ||
      ::localtime_r(&now.tv_sec, &parts) == nullptr)
    return "";
  const std::size_t length = std::strftime(text, sizeof text, "%F %T", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03ld", now.tv_nsec / 1'000'000);
  char zone[8] = "";
  static_cast<void>(std::strftime(zone, sizeof zone, "%z", &parts));
  return std::string(text) + zone + " ";
}

std::string& role() {
  static std::string name;
  return name;
}

}  // namespace

std::string wrong_log_variable() {
  if (level_from_environment()) return {};
  return std::string("TROUPE_LOG=") + std::getenv("TROUPE_LOG") +
         " is ignored: it is debug, info, warning or error";
}
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
  std::string line = time_now() + (role().empty() ? "troupe: " : "troupe[" + role() + "]: ");
  line.append(escape_text(text));
  line.push_back('\n');
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace troupe
