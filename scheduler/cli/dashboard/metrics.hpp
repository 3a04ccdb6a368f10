/// What Prometheus scrapes of a cluster: its head, nodes, actors, submitted jobs, training runs and sweeps,
/// and the pages of the programs that serve on the dashboard's machine.
#pragma once

#include <string>
#include <vector>

#include "scheduler/cli/dashboard/snapshot.hpp"

namespace troupe::cli {

/// What programs that serve say of themselves.
struct ServingPages {
  struct Page {
    int process = 0, port = 0;
    std::string text;  ///< in exposition format
  };
  std::vector<Page> pages;
  int answered = 0, silent = 0;  ///< programs; silent: not in time
};

/// The troupe_serve_... series of all pages in one: each family once, and each series with its `process` and
/// `port`. Lines that are none are left out. Pure.
std::string merged(const ServingPages& serving);

/// The text (exposition format 0.0.4). While the head does not answer there is troupe_head_up 0, and nothing
/// of the cluster: what it said last is not how it is. Of nodes there are at most 500. Pure.
std::string metrics_of(const ClusterView& view, const ServingPages& serving = {});

}  // namespace troupe::cli
