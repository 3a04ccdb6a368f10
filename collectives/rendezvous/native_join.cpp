#include <algorithm>

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
                               .timeout = c_.operation_timeout,
                               .data_bytes = c_.data_bytes,
                               .progress_thread = c_.progress_thread};
    for (int r = 0; r < c_.size; ++r) {
      if (peer(r).messages == c_.peers.front().messages) continue;
      throw BadConfig(c_.purpose,
                      "rank 0 was given messages_between_hosts = " +
                          std::string(c_.peers.front().messages ? "true" : "false") + " and rank " +
                          std::to_string(r) + " was not",
                      "give it on every rank, or on none");
    }
    options.machines = numbered_hosts(c_.peers);
    for (int r = 0; r < c_.size; ++r) {
      if (peer(r).host == me_.host) locals_.push_back(r);
    }
    options.region = std::make_shared<SharedMemory>(region(options.machines));
    if (locals_.size() < c_.peers.size()) {
      Mesh mesh = connect(options.machines);
      options.remote = std::move(mesh.sockets);
      options.keys = std::move(mesh.keys);
    }
    return make_native_group(std::move(options));
  }

 private:
  Duration left() const { return std::max(until_ - clock_.now(), Duration::zero()); }
  const PeerInfo& peer(int rank) const { return c_.peers[static_cast<std::size_t>(rank)]; }

  SharedMemory region(const std::vector<int>& machines) {
    const ShareOptions options{.timeout = left(), .aborted = c_.aborted, .abort_fd = c_.abort_fd};
    if (locals_.front() != c_.rank) return take_region(peer(locals_.front()).token, c_.rank, options).value();
    const auto bytes = native_region_bytes(machines, c_.rank, c_.data_bytes);
    auto memory = SharedMemory::create("troupe-group", bytes, false).value();
    if (locals_.size() > 1) c_.offer->hand_out(memory, {locals_.begin() + 1, locals_.end()}, options).value();
    return memory;
  }

  Mesh connect(const std::vector<int>& machines) {
    MeshOptions options{.self = {c_.generation, c_.size, c_.rank, "data", c_.encrypt_data_plane},
                        .timeout = left(),
                        .aborted = c_.aborted,
                        .abort_fd = c_.abort_fd};
    const std::vector<int> needed = native_peers(machines, c_.rank);
    for (int r = 0; r < c_.size; ++r) {
      const bool wanted = c_.messages_between_hosts || std::binary_search(needed.begin(), needed.end(), r);
      if (wanted && peer(r).host != me_.host) options.peers[r] = parse_endpoint(peer(r).endpoint).value();
    }
    return connect_mesh(*c_.listener, c_.key, options).value();
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
