#include "collectives/rendezvous/init.hpp"

#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>

#include "collectives/rendezvous/world.hpp"

namespace troupe::collectives {
namespace {

const char* variable(const char* name) {
  return std::getenv(name);
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(std::string_view backend, std::string_view url,
                                                 InitOptions options) {
  const Rendezvous place = read_rendezvous(url, options.rank, options.size, variable).value();
  const std::string purpose = "cannot initialise the process group '" + options.name + "'";
  const std::string name = options.name;
  const auto world = World::join(backend, place, std::move(options), variable);
  std::vector<int> everybody(static_cast<std::size_t>(place.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  return world->form({.key = kWorldPrefix, .members = everybody, .name = name, .purpose = purpose});
}

}  // namespace troupe::collectives
