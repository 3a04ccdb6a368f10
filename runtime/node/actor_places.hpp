/// Where actors are that are started again when they die: asked of the head once a node, told to the
/// processes that asked.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "runtime/node/head_line.hpp"
#include "runtime/node/local_processes.hpp"

namespace troupe::node {

/// Not thread-safe.
class ActorPlaces {
 public:
  ActorPlaces(const Self& self, HeadLine& head) : self_(self), head_(head) {}

  /// A process calls that actor: it is told where it is, now and whenever that changes.
  void ask(const LocalProcess& process, ActorId actor, Actions& out);
  /// A process of `job` here spawned it: this node wants to hear of its end.
  void own(ActorId actor, JobId job, Actions& out);
  void told(const cluster::ActorPlace& place, Actions& out);
  void process_ended(ProcessId process);
  /// Asks again; for a head that came back.
  void repeat(Actions& out) const;

 private:
  struct Watched {
    JobId job;
    std::set<ProcessId> by;
    bool owned = false;
    std::optional<cluster::ActorPlace> last;
  };
  Watched& watch(ActorId actor, JobId job, Actions& out);

  const Self& self_;
  HeadLine& head_;
  std::map<ActorId, Watched> actors_;  ///< Invariant: somebody here watches each, or owns it
};

}  // namespace troupe::node
