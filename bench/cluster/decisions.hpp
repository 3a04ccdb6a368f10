/// How fast bundles of placement groups are decided: by the planner alone, and by the head's machine with its
/// log on this machine's disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::bench {

struct DecisionRow {
  std::string name;
  std::uint64_t nodes = 0;
  double bundles_a_second = 0;
  double p50_us = 0;  ///< of one group of eight bundles
  double p99_us = 0;
  // Of the head with its log on disk.
  double write_p50_us = 0;  ///< of a write to the disk, which groups share
  double write_p99_us = 0;
  double loop_p99_us = 0;  ///< of what the head's loop does at a time
};

/// A row for each strategy and what bundles ask for: a CPU, and memory and a resource or a GPU besides. The
/// groups are of eight bundles; full clusters are emptied.
std::vector<DecisionRow> decide_by_planner(std::uint64_t nodes);
/// Groups are asked for, and answered once they are on the disk; `outstanding` at a time.
DecisionRow decide_by_head(std::uint64_t nodes, std::size_t outstanding);

}  // namespace troupe::bench
