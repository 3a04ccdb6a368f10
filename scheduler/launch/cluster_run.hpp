/// A run on the nodes of a cluster: one agent a node, and the RunMachine here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "scheduler/launch/run_driver.hpp"

namespace troupe::launch {

struct ClusterChoice {
  std::string address;     ///< HOST:PORT of the head
  std::string folder;      ///< of the keys; empty: the default
  std::string token_file;  ///< empty: none
  /// Ranks on a node that has so many CPUs and GPUs; 0: it takes none.
  std::function<std::uint32_t(std::uint32_t cpus, std::uint32_t gpus)> processes;
};

/// Until the run has ended; returns the exit code. Throws when the cluster does not let us in. REQUIRES: one
/// thread.
int run_on_cluster(const RunConfig& config, RunSpec spec, const ClusterChoice& cluster);

}  // namespace troupe::launch
