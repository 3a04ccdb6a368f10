#include "actors/report/reporter.hpp"

#include "actors/report/format.hpp"
#include "runtime/core/count.hpp"

namespace troupe::report {
namespace {

constexpr const char* kRed = "\x1b[31m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kPlain = "\x1b[0m";
constexpr const char* kEraseLine = "\r\x1b[K";

}  // namespace

Reporter::Reporter(Output& output, const Clock& clock, ReporterOptions options)
    : output_(output), clock_(clock), options_(options) {}

Reporter::~Reporter() {
  clear();
}

void Reporter::show(const Event& event) {
  std::visit([this](const auto& one) { on(one); }, event);
}

void Reporter::clear() {
  if (bar_shown_) output_.write(kEraseLine);
  bar_shown_ = false;
}

void Reporter::line(const std::string& raw, const char* colour) {
  const std::string text = without_controls(raw);
  const bool coloured = output_.has_colour() && *colour != '\0';
  std::string all = bar_shown_ ? kEraseLine : "";
  const std::string shown = output_.is_terminal() ? wrap(text, output_.columns()) : text;
  all += coloured ? colour + shown + kPlain : shown;
  output_.write(all + "\n");
  const bool redraw = bar_shown_;
  bar_shown_ = false;
  line_since_row_ = true;
  if (redraw && last_step_) draw(*last_step_);
}

void Reporter::draw(const StepDone& step) {
  // One column stays free: a terminal wraps when the last one is written.
  output_.write(kEraseLine + progress_bar(step, epochs_, output_.columns() - 1, seconds_left(step)));
  bar_shown_ = true;
  drawn_at_ = clock_.now();
}

void Reporter::on(const JobStarted& event) {
  epochs_ = event.epochs;
  line(event.what);
}

void Reporter::on(const Resumed& event) {
  if (event.global_step == 0) return line("begins from " + event.path);
  line("resumed at step " + std::to_string(event.global_step) + " (epoch " + std::to_string(event.epoch) +
       ") from " + event.path);
}

std::optional<double> Reporter::seconds_left(const StepDone& step) const {
  const std::int64_t done = (step.epoch - 1) * step.steps_per_epoch + step.step - first_step_;
  if (!first_step_at_ || done <= 0) return {};
  const std::int64_t all = step.total_steps > 0 ? step.total_steps : epochs_ * step.steps_per_epoch;
  const std::int64_t to_do = all - done - first_step_;
  return to_seconds(clock_.now() - *first_step_at_) / static_cast<double>(done) * static_cast<double>(to_do);
}

void Reporter::on(const StepDone& event) {
  last_step_ = event;
  if (event.total_steps > 0)
    epochs_ = static_cast<int>((event.total_steps + event.steps_per_epoch - 1) / event.steps_per_epoch);
  if (!first_step_at_) {
    first_step_at_ = clock_.now();
    first_step_ = (event.epoch - 1) * event.steps_per_epoch + event.step;
  }
  const bool last = event.step == event.steps_per_epoch;
  if (output_.is_terminal()) {
    if (last || !drawn_at_ || clock_.now() - *drawn_at_ >= options_.redraw_interval) draw(event);
  } else if (last || event.step % options_.plain_every_steps == 0) {
    line(step_line(event, epochs_));
  }
}

void Reporter::on(const Fault& event) {
  line(fault_line(event), kRed);
}

void Reporter::on(const Resized& event) {
  line(count_of(event.trainers, "trainer") + (event.why.empty() ? "" : ": " + event.why), kYellow);
}

void Reporter::on(const Evaluating& event) {
  if (!output_.is_terminal()) return;
  output_.write(std::string(kEraseLine) + "epoch " + std::to_string(event.epoch) + "/" +
                std::to_string(epochs_) + "  evaluating");
  bar_shown_ = true;
}

void Reporter::row(const std::string& label, const Metrics& metrics, double seconds) {
  clear();
  // Rows that other lines have torn apart get their head again.
  if (!table_begun_ || line_since_row_) line(epoch_header(metrics));
  line(metrics_row(label, metrics, seconds));
  table_begun_ = true;
  line_since_row_ = false;
}

void Reporter::on(const EpochDone& event) {
  row(std::to_string(event.epoch), event.metrics, event.seconds);
}

void Reporter::on(const Evaluated& event) {
  row("@" + std::to_string(event.global_step), event.metrics, event.seconds);
}

void Reporter::on(const Checkpointed& event) {
  line("checkpoint of step " + std::to_string(event.global_step) + " saved: " + event.path);
}

void Reporter::on(const Warning& event) {
  line("warning: " + event.text, kYellow);
}

void Reporter::on(const JobDone& event) {
  clear();
  line(summary_line(event), kGreen);
  if (event.lost_after) line(unsaved_line(event), kRed);
  if (event.incomplete_logs > 0) line(incomplete_line(event.incomplete_logs), kRed);
  if (!event.state_hash.empty()) line("state sha256 " + event.state_hash);
}

}  // namespace troupe::report
