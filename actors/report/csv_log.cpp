#include "actors/report/csv_log.hpp"

#include <array>
#include <cstdio>

#include "actors/report/figures.hpp"

namespace troupe::report {
namespace {

/// A name is the user's: quoted where a comma, a quote or a line's end would tear the row.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

CsvLog::CsvLog(LogFile file, const Clock& clock)
    : file_(std::move(file)), clock_(clock), opened_at_(clock.now()), begun_(!file_.begins_empty()) {}

Result<void> CsvLog::take(const Event& event) {
  std::string rows;
  if (!std::exchange(begun_, true)) rows = "name,epoch,global_step,value,time_s\n";
  const Figures all = figures_of(event);
  for (const auto& figure : all.figures) {
    std::array<char, 128> numbers{};
    std::snprintf(numbers.data(), numbers.size(), ",%d,%lld,%.17g,%.3f\n", all.epoch,
                  static_cast<long long>(all.global_step), figure.value,
                  to_seconds(clock_.now() - opened_at_));
    rows += cell(figure.name) + numbers.data();
  }
  return file_.write(rows);
}

}  // namespace troupe::report
