/// Which deaths were the kernel's doing, for want of memory: a signal alone does not tell.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "runtime/core/clock.hpp"
#include "runtime/core/control_groups.hpp"
#include "runtime/node/node_events.hpp"

namespace troupe::node {

/// "killed by signal 9 (SIGKILL) by the kernel, since memory ran out".
std::string ended_for_memory(const std::string& how);

/// Each kill that the counter of this node's control group tells of explains one SIGKILL that the node did
/// not send, if that comes within seconds.
class OomDeaths {
 public:
  using Count = std::function<std::optional<std::uint64_t>()>;

  explicit OomDeaths(Count count = [] { return oom_kills(); });

  /// The node itself ends that worker, or a submission's program.
  void node_ends(ProcessId process) { not_asked_.insert(process); }
  void node_ends(const std::string& submission) { ended_.insert(submission); }
  /// Names the kernel in an event that tells of a death, if it was its doing.
  void explain(NodeEvent& event);
  void tick(Instant now);

 private:
  bool take();

  Count count_;
  std::uint64_t known_;          ///< those up to there explain nothing more
  std::uint64_t last_look_ = 0;  ///< how many there were
  Instant looked_{};
  std::set<ProcessId> not_asked_;  ///< the node ends them, or their end is told
  std::set<std::string> ended_;
};

}  // namespace troupe::node
