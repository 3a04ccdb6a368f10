#include "collectives/native/native_group.hpp"
#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/connect/mesh.hpp"

namespace troupe::collectives {
namespace {

class NativeJoin {
 public:
  explicit NativeJoin(const BackendContext& context)
      : c_(context), until_(clock_.now() + context.timeout), me_(peer(context.rank)) {}

  std::shared_ptr<ProcessGroup> run() {
    NativeGroupOptions options{.rank = c_.rank,
                               .size = c_.size,
                               .generation = c_.generation,
                               .name = c_.group,
                               .timeout = c_.options.operation_timeout,
                               .data_bytes = c_.options.data_bytes,
                               .progress_thread = c_.options.progress_thread};
    options.machines = numbered_hosts(c_.peers);
    for (int r = 0; r < c_.size; ++r) {
      if (peer(r).host == me_.host) locals_.push_back(r);
    }
    options.region = std::make_shared<SharedMemory>(region(options.machines));
    if (locals_.size() < c_.peers.size()) {
      auto mesh = std::make_unique<Mesh>(c_.listener, c_.key, mesh_options());
      const WaitOptions wait{.timeout = left(), .aborted = c_.aborted, .abort_fd = c_.abort_fd};
      options.remote = mesh->meet(native_peers(options.machines, c_.rank), wait).value();
      options.connector = std::move(mesh);
    }
    return make_native_group(std::move(options));
  }

 private:
  Duration left() const { return std::max(until_ - clock_.now(), Duration::zero()); }
  const PeerInfo& peer(int rank) const { return c_.peers[static_cast<std::size_t>(rank)]; }

  SharedMemory region(const std::vector<int>& machines) {
    const WaitOptions options{.timeout = left(), .aborted = c_.aborted, .abort_fd = c_.abort_fd};
    if (locals_.front() != c_.rank) return take_region(peer(locals_.front()).token, c_.rank, options).value();
    const auto bytes = native_region_bytes(machines, c_.rank, c_.options.data_bytes);
    auto memory = SharedMemory::create("troupe-group", bytes, false).value();
    if (locals_.size() > 1) c_.offer->hand_out(memory, {locals_.begin() + 1, locals_.end()}, options).value();
    return memory;
  }

  MeshOptions mesh_options() const {
    MeshOptions options{.self = {c_.generation, c_.size, c_.rank, "data", c_.options.encrypt_data_plane}};
    for (int r = 0; r < c_.size; ++r) {
      if (peer(r).host != me_.host) options.peers[r] = parse_endpoint(peer(r).endpoint).value();
    }
    return options;
  }

  const BackendContext& c_;
  MonotonicClock clock_;
  Instant until_;
  const PeerInfo& me_;
  std::vector<int> locals_;
};

}  // namespace

std::shared_ptr<ProcessGroup> join_native_group(const BackendContext& context) {
  return NativeJoin(context).run();
}

}  // namespace troupe::collectives
