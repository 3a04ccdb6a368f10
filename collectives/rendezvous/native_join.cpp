#include "collectives/native/native_group.hpp"
#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/connect/mesh.hpp"

namespace troupe::collectives {

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
  options.region = share_memory(context, locals, "troupe-group",
                                native_region_bytes(options.machines, context.rank, given.data_bytes), false);
  if (!mesh.peers.empty()) {
    auto connector = std::make_unique<Mesh>(context.listener, context.key, std::move(mesh));
    options.remote = connector->meet(native_peers(options.machines, context.rank), context.wait()).value();
    options.connector = std::move(connector);
  }
  return make_native_group(std::move(options));
}

}  // namespace troupe::collectives
