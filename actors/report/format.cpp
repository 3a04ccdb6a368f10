#include "actors/report/format.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

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

std::string progress_bar(const StepDone& step, int epochs, int columns) {
  const std::string left = epoch_of(step, epochs) + " [";
  const std::string behind = "] " + step_of(step) + "  " + figures(step);
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

std::string epoch_header() {
  return "epoch  train loss  test accuracy          correct  seconds";
}

std::string epoch_row(const EpochDone& epoch) {
  const double share =
      epoch.total > 0 ? static_cast<double>(epoch.correct) / static_cast<double>(epoch.total) : 0.0;
  return right(std::to_string(epoch.epoch), 5) + right(fixed(epoch.train_loss, 4), 12) +
         right(fixed(share * 100, 2) + " %", 15) +
         right(std::to_string(epoch.correct) + "/" + std::to_string(epoch.total), 17) +
         right(fixed(epoch.seconds, 1), 9);
}

std::string summary_line(const JobDone& done) {
  std::string line = plural(done.steps, "step") + " in " + fixed(done.seconds, 1) + " s";
  if (done.faults > 0) line += ", " + plural(done.faults, "fault") + " survived";
  return line;
}

}  // namespace troupe::report
