/// TrainEngine over StepEngine and a job's model.
#pragma once

#include <memory>

#include "actors/train/engine/engine.hpp"
#include "actors/train/settings.hpp"

namespace troupe::train {

/// Makes the model. What the job's code throws is told as its part's.
std::unique_ptr<TrainEngine> make_torch_engine(const RunSettings& settings);

}  // namespace troupe::train
