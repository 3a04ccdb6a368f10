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

/// REQUIRES: every parameter has its reduced gradient.
inline void apply_step(TrainingModel& model, const ApplyInfo& info) {
  Apply apply(model.setup(), info.step, info.epoch);
  model.apply(apply);
  for (const TrainedBy& trained : model.optimizers()) {
    if (trained.scheduler != nullptr && (info.ends_epoch || trained.every == Every::kStep))
      trained.scheduler->step();
  }
}

}  // namespace troupe::train
