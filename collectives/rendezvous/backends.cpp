#include "collectives/rendezvous/backends.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "collectives/native/native_group.hpp"
#include "collectives/nccl/api.hpp"
#include "collectives/nccl/nccl_group.hpp"
#include "collectives/rendezvous/connect/mesh.hpp"
#include "collectives/texts.hpp"

namespace troupe::collectives {
namespace {

struct Registry {
  std::mutex mutex;
  /// use_gloo() and use_mpi() add theirs, so that a program without them does not load those libraries.
  std::map<std::string, BackendFactory, std::less<>> factories = {
      {"native", join_native_group},
      {"nccl", [](const BackendContext& context) { return join_nccl_group(context); }}};
};

Registry& registry() {
  static Registry all;
  return all;
}

/// Memory of `ranks`, which are on this host, this one too: the first makes it and hands it to the others.
std::shared_ptr<SharedMemory> share_memory(const BackendContext& context, const std::vector<int>& ranks,
                                           std::size_t bytes) {
  const int first = ranks.front();
  if (first != context.rank) {
    const std::string& token = context.peers[static_cast<std::size_t>(first)].token;
    return std::make_shared<SharedMemory>(take_region(token, context.rank, context.wait()).value());
  }
  auto memory = SharedMemory::create("troupe-group", bytes, false).value();
  if (ranks.size() > 1)
    context.offer->hand_out(memory, {ranks.begin() + 1, ranks.end()}, context.wait()).value();
  return std::make_shared<SharedMemory>(std::move(memory));
}

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

void register_backend(const std::string& name, BackendFactory factory) {
  const std::lock_guard lock(registry().mutex);
  registry().factories[name] = std::move(factory);
}

BackendFactory find_backend(std::string_view name) {
  const std::lock_guard lock(registry().mutex);
  const auto& factories = registry().factories;
  if (const auto found = factories.find(name); found != factories.end()) return found->second;
  std::vector<std::string> names;
  names.reserve(factories.size());
  for (const auto& [known, factory] : factories) names.push_back(known);
  throw BadConfig("there is no backend '" + std::string(name.substr(0, 32)) + "'",
                  "this build has " + listed(names),
                  "use one of these, or add another before: gloo by use_gloo(), mpi by use_mpi()");
}

std::vector<int> numbered_hosts(const std::vector<PeerInfo>& peers) {
  std::map<std::string, int> first;
  std::vector<int> numbers;
  numbers.reserve(peers.size());
  for (const PeerInfo& peer : peers) {
    numbers.push_back(first.try_emplace(peer.host, static_cast<int>(numbers.size())).first->second);
  }
  return numbers;
}

std::shared_ptr<ProcessGroup> join_native_group(const BackendContext& context) {
  const InitOptions& given = context.options;
  NativeGroupOptions options{.rank = context.rank,
                             .size = context.size,
                             .generation = context.generation,
                             .name = context.group,
                             .timeout = given.operation_timeout,
                             .data_bytes = given.data_bytes,
                             .progress_thread = given.progress_thread};
  options.machines = numbered_hosts(context.peers);
  MeshOptions mesh{
      .self = {context.generation, context.size, context.rank, "data", given.encrypt_data_plane}};
  std::vector<int> locals;
  const auto here = options.machines[static_cast<std::size_t>(context.rank)];
  for (int r = 0; r < context.size; ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (options.machines[at] == here) {
      locals.push_back(r);
    } else {
      mesh.peers[r] = parse_endpoint(context.peers[at].endpoint).value();
    }
  }
  options.region =
      share_memory(context, locals, native_region_bytes(options.machines, context.rank, given.data_bytes));
  if (!mesh.peers.empty()) {
    auto connector = std::make_unique<Mesh>(context.listener, context.key, std::move(mesh));
    options.remote = connector->meet(native_peers(options.machines, context.rank), context.wait()).value();
    options.connector = std::move(connector);
  }
  return make_native_group(std::move(options));
}

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
