#include "actors/serve/fleet_machine.hpp"

#include <algorithm>

namespace troupe::serve {
namespace {

/// One that listened for so long begins anew with its failures.
constexpr Duration kWell = std::chrono::minutes(1);
/// So many that did not listen, and another port is taken: somebody else has this one.
constexpr int kMostMissed = 3;

}  // namespace

std::vector<StartProxy> FleetMachine::nodes(const std::vector<NodeId>& there, Instant now) {
  std::vector<StartProxy> starts;
  knows_nodes_ = true;
  std::erase_if(places_, [&](const auto& one) {
    return one.second.proxy == 0 && std::find(there.begin(), there.end(), one.first) == there.end();
  });
  for (const NodeId& node : there) {
    Place& place = places_[node];
    if (place.proxy != 0 || place.leaves || now < place.not_before) continue;
    place.proxy = ++last_;
    place.listens = place.is_placed = false;
    starts.push_back({node, place.proxy, place.port});
  }
  return starts;
}

FleetMachine::Place* FleetMachine::place_of(ProxyId proxy) {
  const auto at = std::find_if(places_.begin(), places_.end(),
                               [&](const auto& one) { return one.second.proxy == proxy; });
  return at == places_.end() ? nullptr : &at->second;
}

void FleetMachine::listens(ProxyId proxy, std::uint16_t port, Instant now) {
  Place* place = place_of(proxy);
  if (place == nullptr) return;
  place->listens = true;
  place->since = now;
  place->port = port;
  place->missed = 0;
}

void FleetMachine::placed(ProxyId proxy) {
  if (Place* place = place_of(proxy)) place->is_placed = true;
}

void FleetMachine::failed(ProxyId proxy, Instant now) {
  Place* place = place_of(proxy);
  if (place == nullptr) return;
  if (place->listens && now - place->since >= kWell) place->failures = 0;
  if (!place->listens && ++place->missed >= kMostMissed) place->port = 0;
  place->proxy = 0;
  place->not_before = now + restart_.pause_after(++place->failures);
}

void FleetMachine::leaves(ProxyId proxy, bool stays) {
  if (Place* place = place_of(proxy)) place->leaves = !stays;
}

bool FleetMachine::all_placed() const {
  return knows_nodes_ && std::all_of(places_.begin(), places_.end(), [](const auto& one) {
           const Place& place = one.second;
           return place.leaves || (place.proxy != 0 && place.is_placed);
         });
}

bool FleetMachine::is_leaving(ProxyId proxy) const {
  return std::any_of(places_.begin(), places_.end(),
                     [&](const auto& one) { return one.second.proxy == proxy && one.second.leaves; });
}

bool FleetMachine::is_wanted(ProxyId proxy) const {
  return std::any_of(places_.begin(), places_.end(),
                     [&](const auto& one) { return one.second.proxy == proxy; });
}

}  // namespace troupe::serve
