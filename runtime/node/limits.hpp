/// Bounds of a node: everything that others can make it keep has one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/core/clock.hpp"
#include "runtime/core/result.hpp"
#include "runtime/link/link.hpp"

namespace troupe::node {

struct Limits {
  std::uint64_t region_bytes = std::uint64_t{8} << 30;    ///< one region; half of usable_memory()
  std::uint64_t regions_bytes = std::uint64_t{12} << 30;  ///< all of them; three quarters of it
  std::size_t regions = 4096;
  std::size_t key_bytes = 256;
  std::size_t requests = std::size_t{1} << 17;  ///< unanswered, of one process
  std::size_t request_bytes = std::size_t{256} << 20;
  std::size_t held_bytes = kLinkQueueBytes;           ///< waiting for one peer's connection
  std::size_t unknown_peers = 1024;                   ///< of which the head has not said where they are
  std::size_t inbound_bytes = std::size_t{64} << 20;  ///< of other nodes' frames, not looked at yet
  std::size_t stuck_bytes = std::size_t{256} << 20;   ///< waiting for a process or peer that does not read
  std::size_t output_window = std::size_t{128}
                              << 10;  ///< of output, sent to a driver that has not written it
  std::size_t dead = 4096;            ///< remembered, of each kind
  std::size_t fetches = 8;            ///< executables on their way at a time
  std::size_t packages = 4;           ///< kept though no process runs them
  std::size_t kept_events = 4096;     ///< for a head that is away
  std::size_t waiting_tasks = 256;    ///< that have given their CPUs away: for each, one more process may run
};

struct Times {
  Duration tick = std::chrono::seconds(1);
  Duration join =
      std::chrono::seconds(10);  ///< until the first answer of the head: a node without one does not come up
  Duration head_away = std::chrono::seconds(5);     ///< until it is told that the head does not answer
  Duration head_silence = std::chrono::seconds(6);  ///< no answer over a link that is up: it is made anew
  Duration silence = std::chrono::seconds(6);       ///< of a process that has said hello: it is killed
  /// Until its hello: it loads its libraries, LibTorch among them, on a machine that may be busy.
  Duration start = std::chrono::seconds(60);
  Duration connect = std::chrono::seconds(10);  ///< frames wait this long for a connection to a peer
  Duration leave_grace = std::chrono::seconds(2);
  Duration part_again = std::chrono::seconds(3);  ///< a piece of an executable is asked for again
  Duration part_silence = std::chrono::seconds(20);
};

/// Limits of this machine and of the control groups that this process is in; TROUPE_REGION_BYTES and
/// TROUPE_REGIONS_BYTES in the environment override the sizes of regions. Errors: kBadConfig, for a value
/// that is no size.
Result<Limits> limits_of_this_machine();

}  // namespace troupe::node
