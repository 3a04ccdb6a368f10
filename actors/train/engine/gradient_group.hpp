/// The group that reduces gradients on GPUs, beside the one over which trainers agree on everything else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/nccl/api.hpp"
#include "collectives/process_group.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::train {

struct GradientGroupOptions {
  double trainer_gpus = 0;      ///< what each trainer holds
  bool encrypt = false;         ///< what goes between nodes has to be
  std::vector<int> nodes;       ///< which one every rank is on, by rank, as any numbers
  std::vector<bool> have_nccl;  ///< by rank, whether its trainer has the library
  int device = 0;               ///< CUDA's index of this trainer's GPU
  Duration timeout;             ///< of an operation, and of making the group
};

/// Why gradients go through the host's memory; empty: over NCCL. Pure, and the same on every rank.
std::string why_not_nccl(const GradientGroupOptions& options);

/// The gradients' group of the generation before, and its ranks that are gone, ascending; null: start anew.
struct GradientsBefore {
  std::shared_ptr<collectives::ProcessGroup> group;
  std::vector<int> gone;
};

/// Collective over `group`, the trainers' own: a group of the backend nccl with the same ranks and leaves.
/// It and `group` end together: an abort of either is one of both, with its reason. Throws as
/// make_nccl_group, and as succeed_nccl_group where there is one before. REQUIRES: why_not_nccl is empty.
std::shared_ptr<collectives::ProcessGroup> make_gradient_group(
    std::shared_ptr<collectives::ProcessGroup> group, const GradientGroupOptions& options,
    const GradientsBefore& before, const collectives::nccl::Api& api);

/// The ranks of `before` that `now` has lost, where it has all others, in their order, and nobody else;
/// empty: there are none, or it is another list. Pure.
std::vector<int> ranks_gone(const std::vector<ActorId>& before, const std::vector<ActorId>& now);

}  // namespace troupe::train
