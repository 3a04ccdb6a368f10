#include <algorithm>

#include "collectives/native/native_group.hpp"
#include "collectives/rendezvous/backends.hpp"
#include "collectives/rendezvous/exchange.hpp"
#include "collectives/rendezvous/mesh.hpp"
#include "collectives/rendezvous/region_share.hpp"

namespace troupe::collectives {
namespace {

/// What a rank tells the others once it is known who is where: "TOKEN ENDPOINT", "-" for what it has not.
struct PeerInfo {
  std::string token = "-";     ///< of the rank that has its machine's region
  std::string endpoint = "-";  ///< where ranks of other machines connect
  std::string text() const { return token + " " + endpoint; }
  static PeerInfo parse(const std::string& text) {
    const auto space = text.find(' ');
    if (space == std::string::npos) return {};
    return {text.substr(0, space), text.substr(space + 1)};
  }
};

class NativeJoin {
 public:
  explicit NativeJoin(const BackendContext& context) : c_(context), until_(clock_.now() + context.timeout) {}

  std::shared_ptr<ProcessGroup> run() {
    const auto hosts = all_gather("host", c_.host);
    std::vector<int> machines;  // a machine is numbered by its first rank
    for (int r = 0; r < c_.size; ++r) {
      const auto& host = hosts[static_cast<std::size_t>(r)];
      if (host == c_.host) locals_.push_back(r);
      machines.push_back(static_cast<int>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin()));
    }
    const bool leads = locals_.front() == c_.rank;
    const bool shares = locals_.size() > 1;
    const bool many_machines = locals_.size() < hosts.size();
    std::optional<RegionOffer> offer;
    std::optional<DataListener> listener;
    PeerInfo mine;
    if (leads && shares) {
      offer = RegionOffer::open().value();
      mine.token = offer->token();
    }
    if (many_machines) {
      listener = DataListener::bind({c_.address, 0}).value();
      mine.endpoint = to_string(listener->endpoint());
    }
    std::vector<std::string> infos(hosts.size());
    if (shares || many_machines) infos = all_gather("info", mine.text());

    NativeGroupOptions options{.rank = c_.rank,
                               .size = c_.size,
                               .generation = c_.generation,
                               .name = c_.group,
                               .timeout = c_.operation_timeout,
                               .data_bytes = c_.data_bytes,
                               .machines = machines};
    options.region = std::make_shared<SharedMemory>(region(offer, infos));
    if (many_machines) options.remote = connect(*listener, infos);
    return make_native_group(std::move(options));
  }

 private:
  Duration left() const { return std::max(until_ - clock_.now(), Duration::zero()); }

  std::vector<std::string> all_gather(const std::string& topic, const std::string& value) {
    return exchange(
        c_.store, topic, value,
        {.rank = c_.rank, .size = c_.size, .timeout = left(), .purpose = c_.purpose, .name = c_.name});
  }

  SharedMemory region(std::optional<RegionOffer>& offer, const std::vector<std::string>& infos) {
    const ShareOptions options{.timeout = left(), .aborted = c_.aborted};
    if (locals_.front() != c_.rank) {
      const auto info = PeerInfo::parse(infos[static_cast<std::size_t>(locals_.front())]);
      return take_region(info.token, c_.rank, options).value();
    }
    const auto bytes = native_region_bytes(static_cast<int>(locals_.size()), c_.data_bytes);
    auto memory = SharedMemory::create("troupe-group", bytes, false).value();
    if (offer) offer->hand_out(memory, {locals_.begin() + 1, locals_.end()}, options).value();
    return memory;
  }

  std::map<int, UniqueFd> connect(const DataListener& listener, const std::vector<std::string>& infos) {
    MeshOptions options{.self = {c_.generation, c_.size, c_.rank}, .timeout = left(), .aborted = c_.aborted};
    for (int r = 0; r < c_.size; ++r) {
      if (std::binary_search(locals_.begin(), locals_.end(), r)) continue;
      options.peers[r] = parse_endpoint(PeerInfo::parse(infos[static_cast<std::size_t>(r)]).endpoint).value();
    }
    return std::move(connect_mesh(listener, c_.key, options).value().sockets);
  }

  const BackendContext& c_;
  MonotonicClock clock_;
  Instant until_;
  std::vector<int> locals_;
};

}  // namespace

std::shared_ptr<ProcessGroup> join_native_group(const BackendContext& context) {
  return NativeJoin(context).run();
}

}  // namespace troupe::collectives
