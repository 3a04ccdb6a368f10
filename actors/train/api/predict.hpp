/// What trained weights say of each sample of a dataset.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "actors/train/api/train.hpp"

namespace troupe::train {

struct PredictOptions {
  data::Split split = data::Split::kTest;
  std::int64_t batch = 250;  ///< samples that are computed together, in a task
  std::uint64_t seed = 0;    ///< of what samples draw
  double num_cpus = 1;       ///< that a task holds
};

/// The part of predict() that does not depend on the job's type; see evaluate_weights.
torch::Tensor predict_with(const DriverSession& session, const RunPlan& plan, const std::string& path,
                           std::span<const std::byte> bytes, const PredictOptions& options);

/// [samples, ...] in the order of job.dataset(split), on the CPU: what `job.predict(net, batch.input)`
/// returns, or net->forward(batch.input), in evaluation mode; of a job with ema() the averages say it. The
/// cluster's free workers compute a batch each, as tasks; batches of a worker that dies are computed again.
/// The bits do not depend on how many there are. `weights`: a path, as TrainOptions::from. Throws BadConfig
/// for weights that do not fit, and what the job's code throws.
///     const auto logits = train::predict(session, job, result, {.split = data::Split::kTest});
template <class Job>
torch::Tensor predict(const DriverSession& session, const Job& job, const std::string& weights,
                      const PredictOptions& options = {}) {
  (void)&JobEntry<Job>::registered;
  return predict_with(session, {JobEntry<Job>::kId, wire::encode(job), {}}, weights, {}, options);
}
template <class Job>
torch::Tensor predict(const DriverSession& session, const Job& job, const RunResult& trained,
                      const PredictOptions& options = {}) {
  (void)&JobEntry<Job>::registered;
  return predict_with(session, {JobEntry<Job>::kId, wire::encode(job), {}}, "", trained.weights, options);
}

}  // namespace troupe::train
