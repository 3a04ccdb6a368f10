/// Whose turn it is among queues of jobs, and what a queue may still hold. Pure.
///
/// Dominant-resource fairness (Ghodsi et al., NSDI 2011): a queue's dominant share is the larger of its parts
/// of the cluster's CPUs and GPUs, divided by its weight; the queue with the least goes first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/wire/queues.hpp"

namespace troupe::scheduler {

/// CPUs and GPUs in 1/10000.
struct Room {
  std::int64_t cpu_e4 = 0;
  std::int64_t gpu_e4 = 0;
  bool operator==(const Room&) const = default;
};

/// A queue, and what its jobs hold.
struct QueueLoad {
  cluster::QueueRecord queue;
  Room used;
  Room programs{};  ///< of it what programs of its jobs hold themselves
};

/// Why the queue may not hold `more` now; empty: it may. Of CPUs, and of GPUs, nothing more is always
/// allowed.
std::string over_quota(const QueueLoad& load, const Room& more);

/// Of actors of a job, which end before programs do: why `more` never fits beside the programs that run,
/// which may wait for just such actors; empty: it may, once other actors have ended. The end of a sentence.
std::string stuck_beside_programs(const QueueLoad& load, const Room& more);

/// In 1/10000. A queue that holds what the cluster has none of has a share of 1 before its weight.
std::int64_t dominant_share_e4(const QueueLoad& load, const Room& cluster);

/// The next job of a queue that waits.
struct QueueTurn {
  const QueueLoad* load = nullptr;
  std::int32_t priority = 0;  ///< the highest first
  std::uint64_t number = 0;   ///< then who came first
};
/// The one that goes first: of the queue with the least dominant share; of queues with the same the job of
/// the highest priority, then the one that came first. REQUIRES: !turns.empty().
std::size_t next_turn(const std::vector<QueueTurn>& turns, const Room& cluster);

}  // namespace troupe::scheduler
