/// Post-local SGD (Lin et al. 2020; PyTorch's post_localSGD_hook and PeriodicModelAverager): gradients are
/// averaged over all ranks at first, then over a subgroup or not at all, and parameters now and then.
///
///   ddp.register_comm_hook(troupe::train::post_local_sgd({.start_iteration = 100}));
///   troupe::train::PeriodicModelAverager averager(group, {.period = 4, .warmup_steps = 100});
///   ...
///   loss.backward();
///   optimizer.step();
///   averager.average_parameters(net->parameters());
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/ddp/comm_hook.hpp"

namespace troupe::train {

struct PostLocalSgdOptions {
  int start_iteration = 100;  ///< the steps before it are averaged over all ranks
  /// Whose ranks average from then on: one of ProcessGroup::new_group's that this rank is in. Null: this
  /// rank's gradients stay its own, and nothing is sent.
  std::shared_ptr<collectives::ProcessGroup> subgroup{};
};
/// Its state belongs to one wrapped module. Throws BadConfig for a negative start_iteration.
CommHook post_local_sgd(PostLocalSgdOptions options = {});

struct AveragerOptions {
  int period = 1;        ///< steps from one average to the next
  int warmup_steps = 0;  ///< without an average, at the beginning
};

/// Averages parameters over the ranks of a group every so many steps. Not thread-safe.
class PeriodicModelAverager {
 public:
  /// Throws BadConfig for a null group, a period below 1 or negative warmup_steps.
  PeriodicModelAverager(std::shared_ptr<collectives::ProcessGroup> group, AveragerOptions options);

  /// After every step of the optimizer, on every rank: the mean of each parameter, of the first step after
  /// warmup_steps and of every period-th from there. Returns whether it averaged. Throws as the group's
  /// operations do.
  bool average_parameters(const std::vector<torch::Tensor>& parameters);

 private:
  std::shared_ptr<collectives::ProcessGroup> group_;
  AveragerOptions options_;
  std::int64_t step_ = 0;
};

}  // namespace troupe::train
