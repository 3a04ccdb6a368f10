/// Batches that no file is needed for.
#pragma once

#include <troupe/distributed_optimizer.hpp>
#include <utility>

/// [64, 32] inputs and their classes; other ones on every rank and step.
inline std::pair<torch::Tensor, torch::Tensor> batch_of(int step, int rank) {
  torch::manual_seed(1000 * step + rank);
  const torch::Tensor x = torch::randn({64, 32});
  return {x, (x.slice(1, 0, 4)).argmax(1)};
}
