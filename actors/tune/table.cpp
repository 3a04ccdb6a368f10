#include "actors/tune/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "actors/report/format.hpp"

namespace troupe::tune {
namespace {

constexpr Duration kRedraw = std::chrono::milliseconds(100);
constexpr std::size_t kMostRunningShown = 8;

template <class... Args>
std::string format(const char* how, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, how, args...);
  return text;
}

/// As many digits as a person compares.
std::string short_text(const Config& config) {
  std::string text;
  for (const Setting& setting : config.settings) {
    const auto* real = std::get_if<double>(&setting.value);
    text += (text.empty() ? "" : " ") + setting.name + "=" +
            (real != nullptr ? format("%.4g", *real) : to_text(setting.value));
  }
  return text;
}

int count(const SweepMachine& sweep, TrialState state) {
  return static_cast<int>(std::count_if(sweep.trials().begin(), sweep.trials().end(),
                                        [&](const Trial& trial) { return trial.state == state; }));
}

}  // namespace

std::string format_value(const std::string& metric, double value) {
  if (std::isnan(value)) return "nan";
  return metric.ends_with("accuracy") ? format("%.2f %%", 100 * value) : format("%.4g", value);
}

std::string trial_line(const Trial& trial, const TableOf& of) {
  std::string text =
      format("trial %2d  ", trial.number) + short_text(trial.config) +
      (of.epochs > 0 ? format("  epoch %d/%d", trial.epoch, of.epochs) : format("  epoch %d", trial.epoch));
  if (trial.value) text += "  " + of.metric + " " + format_value(of.metric, *trial.value);
  text += "  " + std::string(name_of(trial.state));
  if (!trial.clones.empty())
    text +=
        format(" (clone of trial %d after epoch %d)", trial.clones.back().donor, trial.clones.back().epoch);
  const std::string why = trial.state == TrialState::kFailed ? trial.error : trial.why;
  const bool told = trial.is_over() && trial.state != TrialState::kFinished && !why.empty();
  return report::without_controls(told ? text + ": " + why : text);
}

std::string best_line(const Trial& best, const TableOf& of) {
  return report::without_controls(format("best: trial %d with ", best.number) + short_text(best.config) +
                                  ": " + of.metric + " " + format_value(of.metric, *best.value) +
                                  format(" after epoch %d", best.epoch));
}

std::string repeats_line(const Repeats& of, const std::string& metric) {
  if (of.trials == 0) return report::without_controls(short_text(of.config) + ": no result");
  return report::without_controls(short_text(of.config) + ": " + metric + " " +
                                  format_value(metric, of.mean) + " with a deviation of " +
                                  format_value(metric, of.deviation) + format(" over %d trials", of.trials));
}

std::string time_left(Duration elapsed, int over, int left) {
  if (over < 1 || left < 1) return "";
  const double seconds = to_seconds(elapsed) / over * left;
  if (seconds < 60) return format("about %.0f s left", std::max(seconds, 1.0));
  return seconds < 3600 ? format("about %.0f min left", seconds / 60)
                        : format("about %.1f h left", seconds / 3600);
}

std::vector<std::string> status_lines(const SweepMachine& sweep, const TableOf& of) {
  std::vector<std::string> lines;
  std::size_t shown = 0;
  for (const Trial& trial : sweep.trials()) {
    if (trial.state == TrialState::kRunning && shown++ < kMostRunningShown)
      lines.push_back(trial_line(trial, of));
  }
  lines.push_back(format("%d running, %d waiting, %d stopped, %d finished, %d failed",
                         count(sweep, TrialState::kRunning) + count(sweep, TrialState::kEnding),
                         count(sweep, TrialState::kWaiting), count(sweep, TrialState::kStopped),
                         count(sweep, TrialState::kFinished), count(sweep, TrialState::kFailed)));
  if (const Trial* best = sweep.best_so_far()) lines.push_back("so far the " + best_line(*best, of));
  return lines;
}

std::vector<std::string> final_table(const SweepMachine& sweep, const TableOf& of) {
  std::vector<const Trial*> order;
  for (const Trial& trial : sweep.trials()) order.push_back(&trial);
  std::stable_sort(order.begin(), order.end(), [&](const Trial* a, const Trial* b) {
    if (!a->value || !b->value) return a->value && !b->value;
    return sweep.is_better(*a->value, *b->value);
  });
  std::vector<std::string> lines;
  for (const Trial* trial : order) lines.push_back(trial_line(*trial, of));
  return lines;
}

void SweepTable::line(const std::string& text) {
  clear();
  output_.write(text + "\n");
}

void SweepTable::update(const SweepMachine& sweep, Instant now) {
  if (!output_.is_terminal() || (drawn_ > 0 && now - drawn_at_ < kRedraw)) return;
  std::string text;
  const auto columns = static_cast<std::size_t>(std::max(output_.columns() - 1, 20));
  auto lines = status_lines(sweep, of_);
  const auto over = static_cast<int>(std::count_if(sweep.trials().begin(), sweep.trials().end(),
                                                   [](const Trial& trial) { return trial.is_over(); }));
  if (!began_) {
    began_ = now;
    over_then_ = over;
  }
  if (const std::string left = time_left(now - *began_, over - over_then_, of_.trials - over); !left.empty())
    lines.push_back(left);
  for (const std::string& line : lines) text += line.substr(0, columns) + "\n";
  clear();
  output_.write(text);
  drawn_ = lines.size();
  drawn_at_ = now;
}

void SweepTable::clear() {
  if (drawn_ == 0) return;
  output_.write("\x1b[" + std::to_string(std::exchange(drawn_, 0)) + "A\x1b[J");
}

}  // namespace troupe::tune
