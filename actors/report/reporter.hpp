/// Shows a job to a person: a progress bar that redraws itself on a terminal, plain lines elsewhere.
#pragma once

#include <optional>
#include <string>

#include "actors/report/sink.hpp"
#include "actors/report/terminal.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::report {

struct ReporterOptions {
  int plain_every_steps = 100;  ///< off a terminal: a line at every so many steps
  Duration redraw_interval = std::chrono::milliseconds{100};  ///< on one: the bar moves at most so often
};

/// The end of a job is the line "state sha256 <hash>", where there is one. Not thread-safe.
class Reporter final : public Sink {
 public:
  /// `output` and `clock` must outlive the reporter.
  Reporter(Output& output, const Clock& clock, ReporterOptions options = {});
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;
  /// Clears the bar, so that what comes after begins on a clean line.
  ~Reporter() override;

  /// Shows an event. Steps are shown as often as the options say, everything else at once.
  void show(const Event& event);
  Result<void> take(const Event& event) override {
    show(event);
    return {};
  }
  /// Clears the bar; it comes back with the next step.
  void clear();

 private:
  void on(const JobStarted& event);
  void on(const Resumed& event);
  void on(const StepDone& event);
  void on(const Fault& event);
  void on(const Resized& event);
  void on(const Evaluating& event);
  void on(const EpochDone& event);
  void on(const Evaluated& event);
  void row(const std::string& label, const Metrics& metrics, double seconds);
  void on(const Checkpointed& event);
  void on(const Warning& event);
  void on(const JobDone& event);
  /// A line that stays, above the bar.
  void line(const std::string& raw, const char* colour = "");
  void draw(const StepDone& step);
  /// From the steps so far; none before the second one.
  std::optional<double> seconds_left(const StepDone& step) const;

  Output& output_;
  const Clock& clock_;
  ReporterOptions options_;
  int epochs_ = 0;
  bool bar_shown_ = false;
  bool table_begun_ = false;
  bool line_since_row_ = false;
  std::optional<Instant> drawn_at_;
  std::optional<Instant> first_step_at_;
  std::int64_t first_step_ = 0;  ///< of the job, from 0
  std::optional<StepDone> last_step_;
};

}  // namespace troupe::report
