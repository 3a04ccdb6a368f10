/// What a run begins with that names another one's weights or state on disk (TrainOptions::from).
#pragma once

#include "actors/train/api/train.hpp"

namespace troupe::train {

/// Reads it, makes the job's model in this process, and gives the plan the state that all trainers begin
/// with, and what is to be told. Throws BadConfig for what does not fit the job, IoError.
void begin_from(RunPlan& plan);
/// The same from the weights in a safetensors file's bytes, called `name`.
void begin_with(RunPlan& plan, const std::string& name, std::span<const std::byte> bytes);
/// Those weights, as a safetensors file, in place of which a job with ema() has its averages; `bytes` where
/// the path is empty.
wire::Bytes weights_to_use(const RunPlan& plan, const std::string& path, std::span<const std::byte> bytes);

}  // namespace troupe::train
