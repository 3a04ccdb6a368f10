#include <algorithm>

#include "collectives/nccl/api.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "collectives/rendezvous/backends.hpp"

namespace troupe::collectives {
namespace {

/// CUDA's index of this rank's GPU: the one chosen, else its place among the ranks of its machine, modulo the
/// GPUs that the launcher lets it see.
int device_of(const BackendContext& c, const nccl::Api& api) {
  int count = 0;
  const int code = api.cuda.cudaGetDeviceCount(&count);
  if (code != nccl::kCudaSuccess || count < 1) {
    throw_error({ErrorCode::kUnavailable, "the nccl backend is not there",
                 "rank " + c.name(c.rank) + " has no GPU: " +
                     (code == nccl::kCudaSuccess ? "CUDA counts none" : api.cuda.cudaGetErrorString(code)),
                 "use the backend native, or run it where CUDA finds a GPU"});
  }
  if (c.options.device >= count || c.options.device < -1) {
    throw BadConfig(c.purpose,
                    "rank " + c.name(c.rank) + " is to use GPU " + std::to_string(c.options.device) +
                        ", and its process sees " + std::to_string(count) + ", which count from 0",
                    "give InitOptions::device one of these, or see CUDA_VISIBLE_DEVICES");
  }
  if (c.options.device >= 0) return c.options.device;
  if (c.local_rank >= 0) return c.local_rank % count;
  const auto here = [&](const PeerInfo& peer) {
    return peer.host == c.peers[static_cast<std::size_t>(c.rank)].host;
  };
  return static_cast<int>(std::count_if(c.peers.begin(), c.peers.begin() + c.rank, here)) % count;
}

}  // namespace

std::shared_ptr<ProcessGroup> join_nccl_group(const BackendContext& context, const nccl::Api& api) {
  // A rank without a GPU says so before others wait for it.
  const int device = device_of(context, api);
  NcclGroupOptions options{.rank = context.rank,
                           .size = context.size,
                           .device = device,
                           .hosts = numbered_hosts(context.peers),
                           .name = context.group,
                           .generation = context.generation,
                           .timeout = context.options.operation_timeout,
                           .share_gpu = context.options.share_gpu,
                           .compare_calls = context.options.compare_calls};
  options.host = join_native_group(context);
  // Over the store, whose waits end once a rank has given up.
  options.exchange = [&](const std::string& mine, const NcclGroupOptions::Answer& answer) {
    const auto key = [](int rank) { return "says/" + std::to_string(rank); };
    if (context.rank != 0) {
      context.store.set(key(context.rank), mine);
      return context.store.get("invitation", context.left());
    }
    std::vector<std::string> said{mine};
    for (int r = 1; r < context.size; ++r) said.push_back(context.store.get(key(r), context.left()));
    std::string answered = answer(said);
    context.store.set("invitation", answered);
    return answered;
  };
  options.is_vain = context.aborted;
  // Where nobody is gone there is nothing to shrink.
  if (!context.gone.empty())
    return succeed_nccl_group(*context.predecessor, context.gone, std::move(options));
  return make_nccl_group(std::move(options), api);
}

std::shared_ptr<ProcessGroup> join_nccl_group(const BackendContext& context) {
  return join_nccl_group(context, nccl::real_api());
}

}  // namespace troupe::collectives
