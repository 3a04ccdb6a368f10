/// An embedded cluster of two nodes, and the one that the program is not on.
#pragma once

#include <stdexcept>

#include "scheduler/init/init.hpp"
#include "troupe/session.hpp"

namespace troupe::e2e {

inline DriverSession two_nodes() {
  return init(0, nullptr, {.nodes = 2, .cpus_per_node = 2});
}

inline NodeId other_node(const Session& session) {
  for (const auto& node : session.nodes()) {
    if (node.id != session.node()) return node.id;
  }
  throw std::runtime_error("the session has no second node");
}

}  // namespace troupe::e2e
