#include "actors/train/engine/gradient_group.hpp"

#include <algorithm>

#include "collectives/nccl/api.hpp"
#include "collectives/nccl/beside_host.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"

namespace troupe::train {
namespace {

using collectives::ProcessGroup;

/// `missing`: why this trainer cannot take part; empty: it can.
bool all_can(ProcessGroup& group, const std::string& missing) {
  const auto said = collectives::said_by_all(group, missing);
  const auto lacks = std::find_if(said.begin(), said.end(), [](const auto& why) { return !why.empty(); });
  if (lacks == said.end()) return true;
  if (group.rank() == 0) {
    log(LogLevel::kInfo, "gradients go through the host's memory: the trainer of rank " +
                             std::to_string(lacks - said.begin()) + ": " + *lacks);
  }
  return false;
}

}  // namespace

std::string why_not_nccl(const GradientGroupOptions& options) {
  if (options.trainer_gpus <= 0) return "trainers compute on the CPU";
  if (options.trainer_gpus < 1) return "trainers share a GPU, which NCCL refuses";
  const bool several = std::adjacent_find(options.nodes.begin(), options.nodes.end(),
                                          std::not_equal_to<>()) != options.nodes.end();
  if (options.encrypt && several) return "they are to be encrypted between nodes, which NCCL does not do";
  return "";
}

std::shared_ptr<ProcessGroup> make_gradient_group(
    std::shared_ptr<ProcessGroup> group, const GradientGroupOptions& options,
    const std::function<const collectives::nccl::Api&()>& load) {
  if (const std::string why = why_not_nccl(options); !why.empty()) {
    if (group->rank() == 0 && options.trainer_gpus > 0)
      log(LogLevel::kInfo, "gradients go through the host's memory: " + why);
    return nullptr;
  }
  const collectives::nccl::Api* api = nullptr;
  std::string missing;
  try {
    api = &load();
  } catch (const Unavailable& error) {
    missing = error.what();
  }
  if (!all_can(*group, missing)) return nullptr;
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
  return collectives::make_nccl_group(std::move(nccl), *api);
}

}  // namespace troupe::train
