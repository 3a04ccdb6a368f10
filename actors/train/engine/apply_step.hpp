/// The local half of a step: what the job makes of the reduced gradients, and its schedules.
#pragma once

#include <cstdint>

#include "actors/train/job/model.hpp"

namespace troupe::train {

struct ApplyInfo {
  std::int64_t step = 0;  ///< of the job, from 0
  int epoch = 0;          ///< from 0
  bool ends_epoch = false;
};

/// Learning rates are those that the step was made with. REQUIRES: every parameter has its reduced gradient.
inline StepValues apply_step(TrainingModel& model, const ApplyInfo& info) {
  Apply apply(model.setup(), info.step, info.epoch);
  model.apply(apply);
  StepValues values = apply.values();
  for (const TrainedBy& trained : model.optimizers()) {
    if (const auto rate = learning_rate_of(*trained.optimizer))
      values.emplace("learning_rate" + (trained.name.empty() ? "" : "/" + trained.name), *rate);
    if (trained.scheduler != nullptr && (info.ends_epoch || trained.every == Every::kStep))
      trained.scheduler->step();
  }
  return values;
}

}  // namespace troupe::train
