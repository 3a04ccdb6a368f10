/// Learning rates over time: LibTorch's schedulers, a step or an epoch at a time, and one by a function.
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
class LambdaLR final : public torch::optim::LRScheduler {
 public:
  LambdaLR(torch::optim::Optimizer& optimizer, std::function<double(std::int64_t)> factor)
      : LRScheduler(optimizer), factor_(std::move(factor)) {
    for (auto& group : optimizer.param_groups()) {
      rates_.push_back(group.options().get_lr());
      group.options().set_lr(rates_.back() * factor_(0));
    }
  }

 private:
  // LibTorch asks before it counts.
  std::vector<double> get_lrs() override {
    std::vector<double> rates = rates_;
    for (double& rate : rates) rate *= factor_(static_cast<std::int64_t>(step_count_) + 1);
    return rates;
  }

  std::function<double(std::int64_t)> factor_;
  std::vector<double> rates_;  ///< as the job gave them
};

}  // namespace troupe::train
