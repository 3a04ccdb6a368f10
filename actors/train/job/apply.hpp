/// What a job does with the reduced gradients: clip, skip, step.
///
///     void apply(troupe::train::Apply& a) const {
///       a.clip_grad_norm(1.0);
///       a.step();
///     }
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/train/job/figures.hpp"
#include "actors/train/job/setup.hpp"

namespace troupe::train {

/// What a trainer that has a part of each parameter and its gradient asks of all, or of what optimizers keep.
struct GradientsOfAll {
  /// Gets what the others have stepped of an optimizer's parameters. Collective.
  std::function<void(torch::optim::Optimizer&)> complete{};
  /// The norm of the whole gradient of each parameter, in their order. Collective.
  std::function<std::vector<torch::Tensor>(double norm_type)> norms{};
  /// The norm of each whole parameter that is trained, in their order. Collective.
  std::function<std::vector<torch::Tensor>()> parameter_norms{};
  /// Whether it holds on every trainer. Collective.
  std::function<bool(bool mine)> all{};
};

/// Every trainer applies the same step to the same state: it may depend on nothing else. Without an apply()
/// of the job's own all optimizers step. Schedulers step by themselves. With Shard::kGradients and
/// kParameters a parameter and its gradient are here what the trainer keeps of it, in one dimension.
class Apply {
 public:
  /// How an optimizer steps. A trainer with shards steps some of its parameters, and gets the others.
  using StepOptimizer = std::function<void(torch::optim::Optimizer&)>;
  Apply(
      Setup& setup, std::int64_t global_step, int in_epoch,
      StepOptimizer how = [](torch::optim::Optimizer& one) { one.step(); }, GradientsOfAll of_all = {});

  const std::int64_t step_number;  ///< of the job, from 0
  const int epoch;                 ///< from 0

  /// Scales all gradients so that their common norm is at most `max_norm`, as torch.nn.utils.clip_grad_norm_
  /// does. Returns the norm before, which is the figure step/gradient_norm.
  double clip_grad_norm(double max_norm, double norm_type = 2);
  /// That norm without clipping, and the same figure.
  double grad_norm(double norm_type = 2);
  /// Figures of this step: parameter_norm/<name> of each parameter that is trained, and parameter_norm of all
  /// of them, as they are now. On a GPU the host waits for them: not for every step.
  void count_parameters();
  /// A figure of this step: step/<name> in the logs.
  void count(const std::string& name, double value) { values_[name] = value; }
  /// Clamps every gradient to [-limit, limit].
  void clip_grad_value(double limit);
  /// Whether all gradients are finite.
  bool gradients_are_finite() const;
  /// The optimizers leave this step out where a gradient is not finite; buffers and schedules go on. Returns
  /// whether it is left out.
  bool skip_if_not_finite();

  /// All optimizers, or one, update their parameters.
  void step();
  void step(const std::string& optimizer);
  /// Throws BadConfig, naming the optimizers that there are. The name is empty for a job with optimizer().
  /// With shards one that steps by itself has stepped on all trainers when apply() has returned.
  torch::optim::Optimizer& optimizer(const std::string& name = {});

  /// Parameters of what optimizer() gave out are as all trainers have stepped them.
  void complete() const;
  /// What was counted, and the norm if it was asked for.
  const StepValues& values() const { return values_; }

 private:
  std::vector<torch::Tensor> gradients() const;
  double clip_parts(double max_norm, double norm_type) const;
  torch::optim::Optimizer& find(const std::string& name) const;

  Setup& setup_;
  const StepOptimizer how_;
  const GradientsOfAll of_all_;
  std::set<torch::optim::Optimizer*> given_out_;
  bool skipped_ = false;
  StepValues values_;
};

/// Of its first group; nothing for an optimizer that has none.
std::optional<double> learning_rate_of(const torch::optim::Optimizer& optimizer);

}  // namespace troupe::train
