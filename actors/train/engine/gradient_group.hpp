/// The group that reduces gradients on GPUs, beside the one over which trainers agree on everything else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/nccl/api.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

struct GradientGroupOptions {
  double trainer_gpus = 0;  ///< what each trainer holds
  bool encrypt = false;     ///< what goes between nodes has to be
  std::vector<int> nodes;   ///< which one every rank is on, by rank, as any numbers
  int device = 0;           ///< CUDA's index of this trainer's GPU
  Duration timeout;         ///< of an operation, and of making the group
};

/// Why NCCL has no part in a job like this, whatever the machine has; empty: it may have. Pure.
std::string why_not_nccl(const GradientGroupOptions& options);

/// Collective over `group`, the trainers' own: a group of the backend nccl with the same ranks and leaves.
/// It and `group` end together: an abort of either is one of both, with its reason. Null where a trainer
/// cannot take part; then rank 0 logs why, and gradients go through the host's memory. Throws as
/// make_nccl_group. `load`: the library; tests have another.
std::shared_ptr<collectives::ProcessGroup> make_gradient_group(
    std::shared_ptr<collectives::ProcessGroup> group, const GradientGroupOptions& options,
    const std::function<const collectives::nccl::Api&()>& load = collectives::nccl::real_api);

}  // namespace troupe::train
