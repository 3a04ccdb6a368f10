/// Queues of submitted jobs: what the jobs of one may hold together, and whose turn it is.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/wire/resources.hpp"

namespace troupe::cluster {

/// Of jobs that name none. It is always there.
inline constexpr const char* kDefaultQueue = "default";

/// What the store keeps of a queue.
struct QueueRecord {
  std::string name;
  /// CPUs and GPUs in 1/10000 that its jobs may hold together: their programs and what these spawn; below 0:
  /// no limit.
  std::int64_t cpu_e4 = -1;
  std::int64_t gpu_e4 = -1;
  std::int64_t weight_e4 = 10000;  ///< of two queues the one of weight 2 gets twice the share
  ResourceAmounts other{};         ///< the same limits of memory and custom resources; 0 counts
  bool operator==(const QueueRecord&) const = default;
};

/// A queue as it is now.
struct QueueStatus {
  QueueRecord queue;
  std::int64_t cpu_used_e4 = 0;
  std::int64_t gpu_used_e4 = 0;
  /// The largest of its parts of what the cluster has, divided by its weight, in 1/10000: its dominant share.
  /// The queue with the least goes first.
  std::int64_t share_e4 = 0;
  std::uint32_t waits = 0;  ///< jobs
  std::uint32_t runs = 0;   ///< jobs that hold a node
  ResourceAmounts other_used{};
};

/// A queue is set, or (`removed`) is there no more.
struct QueueChanged {
  QueueRecord queue;
  bool removed = false;
};

}  // namespace troupe::cluster
