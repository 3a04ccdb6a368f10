#include "collectives/rendezvous/backends.hpp"

#include <map>
#include <mutex>

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

}  // namespace troupe::collectives
