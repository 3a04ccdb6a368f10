#include "collectives/native/native_group.hpp"
#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/connect/mesh.hpp"

namespace troupe::collectives {
namespace {

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

}  // namespace

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

}  // namespace troupe::collectives
