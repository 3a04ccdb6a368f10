#include "actors/serve/fleet_machine.hpp"

#include <algorithm>

namespace troupe::serve {
namespace {

/// One that listened for so long begins anew with its failures.
constexpr Duration kWell = std::chrono::minutes(1);

}  // namespace

std::vector<StartProxy> FleetMachine::nodes(const std::vector<NodeId>& there, Instant now) {
  std::vector<StartProxy> starts;
  std::erase_if(places_, [&](const auto& one) {
    return one.second.proxy == 0 && std::find(there.begin(), there.end(), one.first) == there.end();
  });
  for (const NodeId& node : there) {
    Place& place = places_[node];
    if (place.proxy != 0 || place.leaves || now < place.not_before) continue;
    place.proxy = ++last_;
    place.listens = false;
    starts.push_back({node, place.proxy});
  }
  return starts;
}

FleetMachine::Place* FleetMachine::place_of(ProxyId proxy) {
  const auto at = std::find_if(places_.begin(), places_.end(),
                               [&](const auto& one) { return one.second.proxy == proxy; });
  return at == places_.end() ? nullptr : &at->second;
}

void FleetMachine::listens(ProxyId proxy, Instant now) {
  Place* place = place_of(proxy);
  if (place == nullptr) return;
  place->listens = true;
  place->since = now;
}

void FleetMachine::failed(ProxyId proxy, Instant now) {
  Place* place = place_of(proxy);
  if (place == nullptr) return;
  if (place->listens && now - place->since >= kWell) place->failures = 0;
  place->proxy = 0;
  place->not_before = now + restart_.pause_after(++place->failures);
}

void FleetMachine::leaves(ProxyId proxy, bool stays) {
  if (Place* place = place_of(proxy)) place->leaves = !stays;
}

bool FleetMachine::is_wanted(ProxyId proxy) const {
  return std::any_of(places_.begin(), places_.end(),
                     [&](const auto& one) { return one.second.proxy == proxy; });
}

}  // namespace troupe::serve
