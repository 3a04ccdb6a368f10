/// The local half of a step: what the job makes of the reduced gradients, and its schedules.
#pragma once

#include <cstdint>
#include <utility>

#include "actors/train/job/model.hpp"

namespace troupe::train {

struct ApplyInfo {
  std::int64_t step = 0;  ///< of the job, from 0
  int epoch = 0;          ///< from 0
  bool ends_epoch = false;
};

/// Learning rates as the step was made with them, into `values`; then the schedules go on.
inline void step_schedules(TrainingModel& model, bool ends_epoch, StepValues& values) {
  for (const TrainedBy& trained : model.optimizers()) {
    if (const auto rate = learning_rate_of(*trained.optimizer))
      values.emplace("learning_rate" + (trained.name.empty() ? "" : "/" + trained.name), *rate);
    if (trained.scheduler != nullptr && (ends_epoch || trained.every == Every::kStep))
      trained.scheduler->step();
  }
}

/// What the state was evaluated to, before a step is applied to it.
inline void observe_plateaus(TrainingModel& model, const StepValues& evaluated) {
  for (const TrainedBy& trained : model.optimizers()) {
    if (auto* plateau = dynamic_cast<ReduceOnPlateau*>(trained.scheduler)) plateau->observe(evaluated);
  }
}

/// Learning rates are those that the step was made with. REQUIRES: every parameter has its reduced gradient.
/// `how`, `of_all`: see Apply.
inline StepValues apply_step(
    TrainingModel& model, const ApplyInfo& info,
    Apply::StepOptimizer how = [](torch::optim::Optimizer& one) { one.step(); }, GradientsOfAll of_all = {}) {
  Apply apply(model.setup(), info.step, info.epoch, std::move(how), std::move(of_all));
  model.apply(apply);
  apply.complete();
  model.applied();
  StepValues values = apply.values();
  step_schedules(model, info.ends_epoch, values);
  return values;
}

}  // namespace troupe::train
