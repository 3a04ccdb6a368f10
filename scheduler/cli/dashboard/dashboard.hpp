/// troupe dashboard: a page of the cluster, its jobs, sweeps and training runs, for a browser.
#pragma once

#include "scheduler/cli/dashboard/watcher.hpp"

namespace troupe::cli {

/// Serves until Ctrl-C, and prints its address first. Without a loopback address a token is needed, which
/// that address has.
int dashboard(const DashboardOptions& options);

}  // namespace troupe::cli
