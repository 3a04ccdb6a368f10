/// What a process stands on. The default is production's: threads, a socket, shared memory. A simulation
/// brings its own, and has everything happen in one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "runtime/host/actor_threads.hpp"
#include "runtime/host/node_channel.hpp"
#include "runtime/host/object_limits.hpp"
#include "runtime/link/ring/rings.hpp"

namespace troupe {

namespace objects {
class DirectConnections;
class SpillDisk;
}  // namespace objects

/// Bounds of what may be under way; see routes.hpp.
struct RouteLimits {
  std::size_t calls = std::size_t{16} << 20;          ///< of calls without an answer
  std::size_t transit = std::size_t{8} << 20;         ///< of routed frames that were not taken up
  std::size_t credit_step = std::size_t{1} << 20;     ///< routed bytes taken up are given back in such steps
  std::size_t one_way_step = std::size_t{256} << 10;  ///< and those of one-way calls in these
  std::size_t congested = std::size_t{32} << 20;  ///< of answers that wait: no further call is carried out
  std::size_t drained = std::size_t{16} << 20;    ///< until no more than this waits
};

struct ProcessFloor {
  std::unique_ptr<NodeChannel> channel;
  std::function<std::unique_ptr<Rings>(NodeId, Rings::Handlers)> make_rings;
  std::uint64_t light_ids = 0;  ///< what the ids of light actors are mixed from; unlike in all processes
  RouteLimits limits{};
  ObjectLimits object_limits{};
  std::shared_ptr<objects::SpillDisk> spill_disk;                  ///< for objects that leave memory
  std::unique_ptr<objects::DirectConnections> direct_connections;  ///< null: objects come over the links
  /// Shared with other lives of the driver, and ended by whoever made them; null: it has its own.
  std::shared_ptr<ActorThreads> actor_threads;
  bool threads = true;  ///< false: actors take their turns when Process::turns() says so
};

}  // namespace troupe
