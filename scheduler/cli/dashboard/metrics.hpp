/// What Prometheus scrapes of a cluster: its head, nodes, actors, submitted jobs, training runs and sweeps.
/// Deployments have a page of their own, of the program that serves (actors/serve/http_endpoint.hpp).
#pragma once

#include <string>

#include "scheduler/cli/dashboard/snapshot.hpp"

namespace troupe::cli {

/// The text (exposition format 0.0.4). While the head does not answer there is troupe_head_up 0, and nothing
/// of the cluster: what it said last is not how it is. Of nodes there are at most 500. Pure.
std::string metrics_of(const ClusterView& view);

}  // namespace troupe::cli
