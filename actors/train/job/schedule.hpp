/// Learning rates over time: LibTorch's schedulers, a step or an epoch at a time, and one by a function.
/// Those that have a name (warm-up, cosine, ...) are in schedules.hpp.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace troupe::train {

/// When a scheduler steps: after each step of training, or after each epoch's last.
enum class Every : std::uint8_t { kEpoch, kStep };

/// What a run comes to, once its data are known.
struct RunLength {
  std::int64_t steps = 0;  ///< of the whole job, those of earlier runs too; 0: not known
  std::int64_t steps_per_epoch = 0;
};

/// A scheduler whose rates depend on how long the run is: it is told before the first step.
class KnowsRun {
 public:
  virtual ~KnowsRun() = default;
  /// Throws BadConfig where the two do not fit. Called once, before any step().
  virtual void know(const RunLength& run) = 0;
};

/// A scheduler that a job's scheduler() returns, and when it steps.
template <class Scheduler>
struct Scheduled {
  using type = Scheduler;
  Scheduler scheduler;
  Every every = Every::kEpoch;
};

/// `auto scheduler(Optimizer& o) const { return every_step(torch::optim::StepLR(o, 100, 0.9)); }`
template <class Scheduler>
Scheduled<Scheduler> every_step(Scheduler scheduler) {
  return {std::move(scheduler), Every::kStep};
}

/// torch.optim.lr_scheduler.LambdaLR: each group's learning rate is what the job gave it, times
/// `factor(steps)`, steps being how often the scheduler has stepped. `factor` is a pure function.
class LambdaLR final : public torch::optim::LRScheduler, public KnowsRun {
 public:
  using OfRun = std::function<double(std::int64_t steps, const RunLength& run)>;

  LambdaLR(torch::optim::Optimizer& optimizer, std::function<double(std::int64_t)> factor)
      : LRScheduler(optimizer), optimizer_(&optimizer), factor_(std::move(factor)) {
    take_rates();
    set_first_rates();
  }
  /// `factor(steps, run)`. By hand, outside of train::run: call know() before the first step.
  LambdaLR(torch::optim::Optimizer& optimizer, OfRun factor)
      : LRScheduler(optimizer), optimizer_(&optimizer), of_run_(std::move(factor)) {
    take_rates();
  }

  void know(const RunLength& run) override {
    if (!of_run_) return;
    factor_ = [of_run = of_run_, run](std::int64_t steps) { return of_run(steps, run); };
    set_first_rates();
  }

 private:
  void take_rates() {
    for (auto& group : optimizer_->param_groups()) rates_.push_back(group.options().get_lr());
  }
  void set_first_rates() {
    const double first = factor_(0);
    std::size_t i = 0;
    for (auto& group : optimizer_->param_groups()) group.options().set_lr(rates_[i++] * first);
  }
  // LibTorch asks before it counts.
  std::vector<double> get_lrs() override {
    std::vector<double> rates = rates_;
    if (!factor_) return rates;
    for (double& rate : rates) rate *= factor_(static_cast<std::int64_t>(step_count_) + 1);
    return rates;
  }

  torch::optim::Optimizer* optimizer_;
  OfRun of_run_;                                ///< empty: the factor needs no run
  std::function<double(std::int64_t)> factor_;  ///< empty: the run is not known
  std::vector<double> rates_;                   ///< as the job gave them
};

}  // namespace troupe::train
