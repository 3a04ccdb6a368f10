/// The standard placement policy: a pure function from the nodes and a demand to a node, with a sentence of
/// why.
///
/// Affinity first. Light actors are packed (onto the fullest node that has room, so that whole nodes stay
/// free for large demands), isolated ones are spread (onto the node that is least used afterwards, so that
/// trainers get cores of their own and one node's death takes few). Ties go to fewer (spread) or more (pack)
/// actors, then to the lower id.
#pragma once

#include <vector>

#include "scheduler/placement/policy.hpp"

namespace troupe::scheduler {

cluster::Placement place(const std::vector<cluster::NodeView>& nodes, const cluster::ActorDemand& demand);

}  // namespace troupe::scheduler
