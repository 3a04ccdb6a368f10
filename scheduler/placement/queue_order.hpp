/// Whose turn it is among queues of jobs, and what a queue may still hold. Pure.
///
/// Dominant-resource fairness (Ghodsi et al., NSDI 2011): a queue's dominant share is the largest of its
/// parts of the cluster's CPUs, GPUs, memory and custom resources, divided by its weight; the queue with the
/// least goes first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/wire/queues.hpp"

namespace troupe::scheduler {

/// CPUs and GPUs in 1/10000, memory and custom resources.
struct Room {
  std::int64_t cpu_e4 = 0;
  std::int64_t gpu_e4 = 0;
  cluster::ResourceAmounts other{};
  bool operator==(const Room&) const = default;

  /// What an actor, a bundle or a submission asks for.
  template <class Demand>
  static Room of(const Demand& demand) {
    return {demand.cpu_e4, demand.gpu_e4, demand.other.amounts};
  }
  /// So much more is held, or (sign -1) less.
  void add(const Room& more, int sign = 1) {
    cpu_e4 += sign * more.cpu_e4;
    gpu_e4 += sign * more.gpu_e4;
    cluster::add_amounts(other, more.other, sign);
  }
};

/// A queue, and what its jobs hold.
struct QueueLoad {
  cluster::QueueRecord queue;
  Room used;
  Room programs{};  ///< of it what programs of its jobs hold themselves
};

/// Why the queue may not hold `more` now; empty: it may. Of a resource nothing more is always allowed.
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
