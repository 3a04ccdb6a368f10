/// A sweep as a person sees it. Text is a pure function of the trials.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/report/terminal.hpp"
#include "actors/tune/sweep_machine.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::tune {

/// What a table needs to know of its sweep.
struct TableOf {
  std::string metric;
  int epochs = 1;  ///< of a trial, at most; 0: as many as it makes
  int trials = 0;  ///< of the sweep; 0: not known
};

/// "97.25 %" for what ends in "accuracy", else "0.01234".
std::string format_value(const std::string& metric, double value);
/// "trial  3  lr=0.01  epoch 4/9  validation/accuracy 97.25 %  stopped: below the cutoff".
std::string trial_line(const Trial& trial, const TableOf& of);
/// "best so far: ...", "2 running, 5 waiting, 3 stopped, 1 finished, 0 failed".
/// "about 4 min left", if `over` of them in `elapsed` say what `left` need; empty where nothing does.
std::string time_left(Duration elapsed, int over, int left);
std::vector<std::string> status_lines(const SweepMachine& sweep, const TableOf& of);
/// All trials, the best first.
std::vector<std::string> final_table(const SweepMachine& sweep, const TableOf& of);
/// "best: trial 3 with lr=0.01: validation/accuracy 97.25 % after epoch 9".
std::string best_line(const Trial& best, const TableOf& of);

/// "lr=0.01: validation/accuracy 96.10 % with a deviation of 0.42 % over 3 trials".
std::string repeats_line(const Repeats& of, const std::string& metric);

/// On a terminal a block that updates in place below the lines that stay; elsewhere those lines alone. Not
/// thread-safe.
class SweepTable {
 public:
  /// `output` must outlive it.
  SweepTable(report::Output& output, TableOf of) : output_(output), of_(std::move(of)) {}
  SweepTable(const SweepTable&) = delete;
  SweepTable& operator=(const SweepTable&) = delete;
  ~SweepTable() { clear(); }

  /// A line that stays.
  void line(const std::string& text);
  /// Redraws the block, ten times a second at most.
  void update(const SweepMachine& sweep, Instant now);
  void clear();

 private:
  report::Output& output_;
  TableOf of_;
  std::size_t drawn_ = 0;           ///< lines of the block
  std::optional<Instant> began_{};  ///< the first update
  int over_then_ = 0;               ///< trials
  Instant drawn_at_{};
};

}  // namespace troupe::tune
