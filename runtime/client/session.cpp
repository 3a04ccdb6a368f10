#include "runtime/client/session.hpp"

namespace troupe {

std::shared_ptr<CallState> Session::start(ActorOptions options, std::uint64_t constructor,
                                          wire::Bytes args) const {
  if (options.here) return process_->spawn_here(constructor, std::move(args), options.isolated);
  if (!(options.num_cpus >= 0) || options.num_cpus > 1e6) {
    throw BadConfig("cannot spawn an actor", "num_cpus = " + std::to_string(options.num_cpus),
                    "ask for 0 to 1,000,000 CPUs");
  }
  wire::ActorPayload payload{constructor, options.label, process_->address(), process_->config().package, std::move(args)};
  const auto bytes = wire::encode(payload);
  cluster::ActorSpec spec;
  spec.job = process_->config().job;
  spec.type = std::move(options.label);
  spec.name = std::move(options.name);
  spec.payload.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  spec.demand = {std::llround(options.num_cpus * cluster::kCpu), options.isolated, options.node};
  return process_->ask([&](std::uint64_t request) { return wire::SpawnAsk{request, std::move(spec)}; });
}

void Session::kill(const ActorAddress& actor, const std::string& reason) const {
  if (actor.home() == process_->address()) return process_->stop_here(actor.actor, reason);
  process_->tell(wire::KillAsk{actor, reason});
}

std::vector<cluster::NodeInfo> Session::nodes() const {
  const Future<wire::NodesAnswer> answer(
      process_->ask([](std::uint64_t request) { return wire::NodesAsk{request}; }));
  return answer.get(std::chrono::seconds(30)).nodes;
}

SharedMemory Session::open_region(const std::string& key, std::size_t bytes, const std::string& label,
                                  bool abortable) const {
  return process_->open_region(key, bytes, label, abortable).value();
}

void Session::drop_region(const std::string& key) const {
  process_->tell(wire::RegionDrop{key});
}

}  // namespace troupe
