/// Hyperparameter sweeps over a training job's struct: troupe::tune::run(session, job, options).
///
/// Link troupe::tune (docs/tune.md). Includes torch/torch.h.
#pragma once

#include "actors/tune/sweep_fields.hpp"
#include "actors/tune/tune.hpp"
#include "troupe/train.hpp"
