#include "actors/train/engine/gradient_group.hpp"

#include <algorithm>

#include "collectives/nccl/api.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

using collectives::ProcessGroup;

std::string why_not_nccl(const GradientGroupOptions& options) {
  if (options.trainer_gpus <= 0) return "trainers compute on the CPU";
  if (options.trainer_gpus < 1) return "trainers share a GPU, which NCCL refuses";
  const bool several = std::adjacent_find(options.nodes.begin(), options.nodes.end(),
                                          std::not_equal_to<>()) != options.nodes.end();
  if (options.encrypt && several) return "they are to be encrypted between nodes, which NCCL does not do";
  const auto& have = options.have_nccl;
  const auto lacks = std::find(have.begin(), have.end(), false);
  if (lacks != have.end())
    return "the trainer of rank " + std::to_string(lacks - have.begin()) + " has no NCCL";
  return "";
}

std::shared_ptr<ProcessGroup> make_gradient_group(std::shared_ptr<ProcessGroup> group,
                                                  const GradientGroupOptions& options,
                                                  const GradientsBefore& before,
                                                  const collectives::nccl::Api& api) {
  collectives::NcclGroupOptions nccl{.rank = group->rank(),
                                     .size = group->size(),
                                     .device = options.device,
                                     .leaves = group->facts().leaves,
                                     .hosts = options.nodes,
                                     .name = "gradients",
                                     .generation = group->generation(),
                                     .timeout = options.timeout};
  nccl.host = group;
  nccl.messages = false;
  try {
    if (before.group) return collectives::succeed_nccl_group(*before.group, before.gone, std::move(nccl));
    return collectives::make_nccl_group(std::move(nccl), api);
  } catch (const std::exception& error) {
    group->abort("rank " + std::to_string(group->rank()) +
                 " cannot make the gradients' group: " + error.what());
    throw;
  }
}

std::vector<int> ranks_gone(const std::vector<ActorId>& before, const std::vector<ActorId>& now) {
  std::vector<int> gone;
  std::size_t stayed = 0;
  for (std::size_t r = 0; r < before.size(); ++r) {
    if (stayed < now.size() && before[r] == now[stayed]) {
      ++stayed;
    } else {
      gone.push_back(static_cast<int>(r));
    }
  }
  return stayed == now.size() ? gone : std::vector<int>();
}

}  // namespace troupe::train
