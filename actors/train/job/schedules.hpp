/// Schedules of learning rates by name, a step at a time, by the formulas of PyTorch and Transformers:
///
///     auto scheduler(torch::optim::AdamW& o) const { return train::cosine(o, {.warmup_steps = 500}); }
///
/// A schedule is as long as the run unless it says how many steps it has; then it may not be longer than the
/// run, and stays at its end. The rate that the job gave the optimizer is the highest; `end` is a part of it.
/// docs/training.md has the formulas' names.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

#include "actors/train/job/schedule.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

/// Of constant(), linear(), cosine() and polynomial().
struct ScheduleOptions {
  std::int64_t warmup_steps = 0;  ///< from 0 to the job's rate, linearly
  std::int64_t steps = 0;         ///< of the whole schedule, with its warm-up; 0: the run's
  double end = 0;                 ///< a part of the job's rate; not of constant()
  double power = 1;               ///< of polynomial()
  double cycles = 0.5;            ///< of cosine(): 0.5 goes down once
};

struct OneCycleOptions {
  std::int64_t steps = 0;   ///< of the whole schedule; 0: the run's
  double rise = 0.3;        ///< the part of the steps in which the rate grows (PyTorch's pct_start)
  double start = 1.0 / 25;  ///< a part of the job's rate: 1 / div_factor
  double end = 1.0 / 25e4;  ///< the same: 1 / (div_factor * final_div_factor)
  bool linear = false;      ///< straight lines in place of half cosines
};

namespace schedule_formulas {

/// Steps of the schedule `name` in a run. Throws BadConfig where it is longer than that.
inline std::int64_t steps_of(const char* name, std::int64_t steps, std::int64_t warmup,
                             const RunLength& run) {
  const auto refuse = [&](const std::string& why) {
    throw BadConfig("the schedule does not fit the run", std::string(name) + " " + why,
                    "give it at most the run's steps, or none: then it is as long as the run");
  };
  const std::int64_t all = steps > 0 ? steps : run.steps;
  if (all > run.steps && run.steps > 0)
    refuse("has " + std::to_string(all) + " steps, and the run " + std::to_string(run.steps));
  if (warmup < 0 || steps < 0 || (warmup > 0 && all > 0 && warmup > all))
    refuse("has " + std::to_string(warmup) + " steps of warm-up, and the " +
           (steps > 0 ? "schedule " : "run ") + std::to_string(all));
  return all;
}

/// How far behind the warm-up, from 0 to 1.
inline double progress(std::int64_t step, std::int64_t warmup, std::int64_t all) {
  const auto behind = static_cast<double>(std::max<std::int64_t>(all - warmup, 1));
  return std::clamp(static_cast<double>(step - warmup) / behind, 0.0, 1.0);
}

inline double warmup(std::int64_t step, std::int64_t steps) {
  return static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(steps, 1));
}

/// `shape(progress)` goes from 1 to 0.
template <class Shape>
LambdaLR::OfRun after_warmup(const char* name, const ScheduleOptions& o, Shape shape) {
  return [=](std::int64_t step, const RunLength& run) {
    const std::int64_t all = steps_of(name, o.steps, o.warmup_steps, run);
    if (step < o.warmup_steps) return warmup(step, o.warmup_steps);
    return o.end + (1 - o.end) * shape(progress(step, o.warmup_steps, all));
  };
}

}  // namespace schedule_formulas

/// Transformers' get_constant_schedule_with_warmup.
inline Scheduled<LambdaLR> constant(torch::optim::Optimizer& optimizer, const ScheduleOptions& options = {}) {
  return every_step(LambdaLR(
      optimizer, schedule_formulas::after_warmup("constant()", options, [](double) { return 1.0; })));
}

/// get_linear_schedule_with_warmup; without a warm-up PyTorch's LinearLR from 1 to `end`.
inline Scheduled<LambdaLR> linear(torch::optim::Optimizer& optimizer, const ScheduleOptions& options = {}) {
  return every_step(LambdaLR(
      optimizer, schedule_formulas::after_warmup("linear()", options, [](double p) { return 1 - p; })));
}

/// get_cosine_with_min_lr_schedule_with_warmup; without a warm-up PyTorch's CosineAnnealingLR.
inline Scheduled<LambdaLR> cosine(torch::optim::Optimizer& optimizer, const ScheduleOptions& options = {}) {
  const auto shape = [cycles = options.cycles](double p) {
    return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * cycles * 2 * p)));
  };
  return every_step(LambdaLR(optimizer, schedule_formulas::after_warmup("cosine()", options, shape)));
}

/// get_polynomial_decay_schedule_with_warmup; without a warm-up and an end PyTorch's PolynomialLR.
inline Scheduled<LambdaLR> polynomial(torch::optim::Optimizer& optimizer,
                                      const ScheduleOptions& options = {}) {
  const auto shape = [power = options.power](double p) { return std::pow(1 - p, power); };
  return every_step(LambdaLR(optimizer, schedule_formulas::after_warmup("polynomial()", options, shape)));
}

/// PyTorch's OneCycleLR of two phases, without its cycle of the momentum.
inline Scheduled<LambdaLR> one_cycle(torch::optim::Optimizer& optimizer, const OneCycleOptions& o = {}) {
  return every_step(LambdaLR(optimizer, [o](std::int64_t step, const RunLength& run) {
    const auto all = static_cast<double>(schedule_formulas::steps_of("one_cycle()", o.steps, 0, run));
    const double top = o.rise * all - 1;  // at which step the rate is the highest
    const double last = std::max(all - 1, top + 1);
    const auto at = std::min(static_cast<double>(step), last);
    const auto between = [&](double from, double to, double part) {
      if (o.linear) return from + (to - from) * part;
      return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * part));
    };
    if (at <= top && top > 0) return between(o.start, 1, at / top);
    return between(1, o.end, (at - top) / (last - top));
  }));
}

}  // namespace troupe::train
