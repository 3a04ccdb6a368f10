#include "actors/report/format.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace troupe::report {
namespace {

constexpr const char* kSeparator = " \xc2\xb7 ";  // a middle dot

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return length > 0 && static_cast<std::size_t>(length) < text.size() ? text.data() : "?";
}

std::string right(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

std::string plural(std::int64_t count, const std::string& one) {
  return format_count(count) + " " + one + (count == 1 ? "" : "s");
}

/// A rate or a count that arrived as a double; not a number while nothing was measured.
std::string whole(double value) {
  constexpr double kMost = 1e15;
  return std::isfinite(value) && std::fabs(value) < kMost ? format_count(std::llround(value)) : "?";
}

std::string figures(const StepDone& step) {
  return "loss " + fixed(step.loss, 4) + "  " + whole(step.samples_per_s) + " samples/s  " +
         plural(step.trainers_alive, "trainer");
}

std::string epoch_of(const StepDone& step, int epochs) {
  return "epoch " + std::to_string(step.epoch) + "/" + std::to_string(epochs);
}

/// What training says comes before what testing does.
std::vector<std::pair<std::string, double>> columns_of(const Metrics& metrics) {
  std::vector<std::pair<std::string, double>> columns(metrics.begin(), metrics.end());
  std::stable_partition(columns.begin(), columns.end(),
                        [](const auto& column) { return column.first.starts_with("train/"); });
  return columns;
}

std::size_t width_of(const std::string& name) {
  constexpr std::size_t kLeast = 8;
  return std::max(name.size(), kLeast) + 2;
}

std::string step_of(const StepDone& step) {
  return std::to_string(step.step) + "/" + std::to_string(step.steps_per_epoch);
}

}  // namespace

std::string format_ms(double ms) {
  constexpr double kSecond = 1000;
  if (ms >= 10 * kSecond) return fixed(ms / kSecond, 0) + " s";
  if (ms >= kSecond) return fixed(ms / kSecond, 1) + " s";
  constexpr double kWholeFrom = 9.95;
  std::string text = fixed(ms, ms < kWholeFrom ? 1 : 0);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text + " ms";
}

std::string format_count(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t sign = value < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > sign + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string step_line(const StepDone& step, int epochs) {
  return epoch_of(step, epochs) + "  step " + step_of(step) + "  " + figures(step);
}

std::string format_time(double seconds) {
  constexpr double kMost = 1e6;
  if (!std::isfinite(seconds) || seconds < 0 || seconds > kMost) return "?";
  const auto whole_seconds = static_cast<int>(std::ceil(seconds));
  const auto two = [](int n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  const int hours = whole_seconds / 3600;
  const int minutes = whole_seconds / 60 % 60;
  const std::string tail = ":" + two(whole_seconds % 60);
  return hours > 0 ? std::to_string(hours) + ":" + two(minutes) + tail : std::to_string(minutes) + tail;
}

std::string progress_bar(const StepDone& step, int epochs, int columns, std::optional<double> seconds_left) {
  const std::string left = epoch_of(step, epochs) + " [";
  const std::string eta = seconds_left ? "  ETA " + format_time(*seconds_left) : "";
  const std::string behind = "] " + step_of(step) + eta + "  " + figures(step);
  constexpr int kLeast = 10;
  constexpr int kMost = 40;
  const int room = columns - static_cast<int>(left.size() + behind.size());
  const int width = std::clamp(room, kLeast, kMost);
  const double share =
      step.steps_per_epoch > 0
          ? std::clamp(static_cast<double>(step.step) / static_cast<double>(step.steps_per_epoch), 0.0, 1.0)
          : 0.0;
  const int done = static_cast<int>(share * width);
  std::string bar(static_cast<std::size_t>(done), '=');
  if (done < width) bar += '>';
  bar.resize(static_cast<std::size_t>(width), ' ');
  std::string line = left + bar + behind;
  line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(columns, 0))));
  return line;
}

std::string fault_line(const Fault& fault) {
  std::string line = fault.what;
  if (fault.detected_ms) line += kSeparator + ("detected after " + format_ms(*fault.detected_ms));
  if (fault.left_ms) line += kSeparator + ("left the collective after " + format_ms(*fault.left_ms));
  if (fault.resumed_ms) line += kSeparator + ("training again after " + format_ms(*fault.resumed_ms));
  return line;
}

std::string epoch_header(const Metrics& metrics) {
  std::string line = "epoch";
  for (const auto& [name, value] : columns_of(metrics)) line += right(name, width_of(name));
  return line + "  seconds";
}

std::string metrics_row(const std::string& label, const Metrics& metrics, double seconds) {
  std::string line = right(label, 5);
  for (const auto& [name, value] : columns_of(metrics)) {
    constexpr double kPercent = 100;
    line += right(name.ends_with("accuracy") ? fixed(value * kPercent, 2) + " %" : fixed(value, 4),
                  width_of(name));
  }
  return line + right(fixed(seconds, 1), 9);
}

std::string without_controls(std::string text) {
  constexpr char kDelete = 0x7f;
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\n') || c == kDelete; }, '?');
  return text;
}

std::string wrap(const std::string& text, int columns) {
  constexpr const char* kIndent = "  ";
  std::string out;
  std::size_t line = 0;  // columns taken on the line: a middle dot takes one and is two bytes
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(kSeparator, at + 1), text.size());
    std::string part = text.substr(at, end - at);
    const std::size_t width = part.size() - (part.starts_with(kSeparator) ? 1 : 0);
    if (line > 0 && line + width > static_cast<std::size_t>(std::max(columns, 0))) {
      out += "\n";
      out += kIndent;
      part.erase(0, 1);  // the separator's blank
      line = 1 + width;
    } else {
      line += width;
    }
    out += part;
    at = end;
  }
  return out;
}

std::string summary_line(const JobDone& done) {
  const std::int64_t ran = done.steps - done.begun_at;
  if (done.stopped && ran == 0) {
    return "stopped before the first step" +
           (done.steps == 0 ? "" : " of this run; " + std::to_string(done.steps) + " are done");
  }
  std::string line = plural(ran, "step") + " in " + fixed(done.seconds, 1) + " s";
  if (done.begun_at > 0) line += ", after " + std::to_string(done.begun_at) + " of earlier runs";
  if (done.faults > 0) line += ", " + plural(done.faults, "fault") + " survived";
  if (done.expired > 0) line += ", " + plural(done.expired, "deadline") + " expired";
  if (done.stopped) line += ", stopped early";
  return line;
}

std::string incomplete_line(int logs) {
  return (logs == 1 ? "A LOG IS" : std::to_string(logs) + " LOGS ARE") +
         std::string(" INCOMPLETE: see the warnings above");
}

std::string unsaved_line(const JobDone& done) {
  const std::string failed =
      done.failed_checkpoints > 0 ? " (" + plural(done.failed_checkpoints, "failure") + ")" : "";
  return *done.lost_after == 0 ? "NO CHECKPOINT WAS WRITTEN" + failed
                               : "THE FINAL STATE WAS NOT SAVED" + failed +
                                     ": the newest checkpoint is of step " + std::to_string(*done.lost_after);
}

}  // namespace troupe::report
