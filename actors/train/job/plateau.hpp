/// A learning rate that goes down when a figure has stopped getting better, as PyTorch's ReduceLROnPlateau:
///
///     auto scheduler(torch::optim::SGD& o) const {
///       return train::reduce_on_plateau(o, {.metric = "validation/loss", .factor = 0.5, .patience = 2});
///     }
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "actors/train/job/figures.hpp"
#include "actors/train/job/user_state.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

struct PlateauOptions {
  std::string metric = "test/loss";  ///< looked at after each evaluation
  bool larger_is_better = false;
  double factor = 0.1;      ///< the rate becomes so much of itself
  int patience = 10;        ///< evaluations that are no better, and are let pass
  double threshold = 1e-4;  ///< a part of the best value, that a better one must be better by
  int cooldown = 0;         ///< evaluations after a reduction that are not counted
  double least = 0;         ///< rates do not go below
};

/// What of it changes; a part of the TrainState.
struct PlateauState {
  double best = std::numeric_limits<double>::quiet_NaN();  ///< none so far
  std::int64_t bad = 0;
  std::int64_t cooldown = 0;
};

/// Whether the rate goes down, now that an evaluation came to `value`. Pure.
inline bool reduces(PlateauState& state, const PlateauOptions& o, double value) {
  const bool better =
      o.larger_is_better ? value > state.best * (1 + o.threshold) : value < state.best * (1 - o.threshold);
  const bool first = state.best != state.best && value == value;  // a NaN is no better than anything
  state.bad = better || first ? 0 : state.bad + 1;
  if (better || first) state.best = value;
  if (state.cooldown > 0) {
    --state.cooldown;
    state.bad = 0;
  }
  if (state.bad <= o.patience) return false;
  state.cooldown = o.cooldown;
  state.bad = 0;
  return true;
}

class ReduceOnPlateau final : public torch::optim::LRScheduler {
 public:
  ReduceOnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options)
      : LRScheduler(optimizer), optimizer_(&optimizer), options_(std::move(options)) {
    if (!(options_.factor > 0 && options_.factor < 1))
      throw BadConfig("a plateau schedule has the factor " + std::to_string(options_.factor),
                      "it is a part of the rate", "use a number between 0 and 1");
  }

  /// The figures of an evaluation. Throws BadConfig where the metric is none of them.
  void observe(const StepValues& metrics) {
    const auto found = metrics.find(options_.metric);
    if (found == metrics.end()) {
      std::string all;
      for (const auto& [name, value] : metrics) all += (all.empty() ? "" : ", ") + name;
      throw BadConfig("a plateau schedule has no metric '" + options_.metric + "'", "the job has " + all,
                      "name one of them, or count it in the job's loss() or evaluate()");
    }
    if (!reduces(state_, options_, found->second)) return;
    constexpr double kLeastChange = 1e-8;
    for (auto& group : optimizer_->param_groups()) {
      const double rate = group.options().get_lr();
      const double lower = std::max(rate * options_.factor, options_.least);
      if (rate - lower > kLeastChange) group.options().set_lr(lower);
    }
  }

  /// Registers what changes; this stays where it is from then on. `name`: of its optimizer.
  void add_to(StateRegistry& state, const std::string& name) {
    const std::string prefix = "plateau" + (name.empty() ? "" : "[" + name + "]") + "/";
    state.add(prefix + "best", state_.best, ChangedIn::kApply);
    state.add(prefix + "bad", state_.bad, ChangedIn::kApply);
    state.add(prefix + "cooldown", state_.cooldown, ChangedIn::kApply);
  }

 private:
  /// step() changes nothing.
  std::vector<double> get_lrs() override { return get_current_lrs(); }

  torch::optim::Optimizer* optimizer_;
  PlateauOptions options_;
  PlateauState state_;
};

inline ReduceOnPlateau reduce_on_plateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {}) {
  return {optimizer, std::move(options)};
}

}  // namespace troupe::train
