/// A group of many hosts without any: production's layout, choice, plans and routes of an operation, followed
/// frame by frame, and counted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/native/host_plan.hpp"
#include "collectives/op.hpp"

namespace troupe::collectives::testing {

struct HostTraffic {
  Choice choice;
  std::size_t rounds = 0;
  int steps = 0;                ///< the longest chain of frames, each sent once the one before is in
  std::size_t frames = 0;       ///< most that a host sends
  std::size_t rank_frames = 0;  ///< most that a rank sends
  std::size_t bytes = 0;        ///< payload, most that a host sends
  std::size_t received = 0;     ///< most that a host receives
  std::size_t connections = 0;  ///< most of a rank
  std::string broken;           ///< empty: everything that is read arrives, once, where it fits
};

/// `hosts`: by rank. `leaves`: of the tree, empty for one a rank.
/// `route`: another than the one that is chosen. REQUIRES: the operation can take it.
HostTraffic follow(const std::vector<int>& hosts, const Op& op, std::vector<LeafInterval> leaves = {},
                   std::optional<Route> route = {});

/// `ranks` on each of `hosts`, adjacent.
std::vector<int> even_hosts(int hosts, int ranks);

}  // namespace troupe::collectives::testing
