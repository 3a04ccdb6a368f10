/// The actors that the head placed on this node: which process has which.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/node/graveyard.hpp"
#include "runtime/node/head_line.hpp"
#include "runtime/node/local_processes.hpp"
#include "runtime/node/package_fetches.hpp"

namespace troupe::node {

/// Not thread-safe.
class HostedActors {
 public:
  HostedActors(const Self& self, LocalProcesses& locals, HeadLine& head, PackageFetches& packages)
      : self_(self), locals_(locals), head_(head), packages_(packages), ended_(self.limits.dead) {}

  /// Told by the head, which may say it again: one that is here is left alone, of one that ended it hears
  /// again.
  void start(const cluster::StartActor& told, Instant now, Actions& out);
  /// Told by the head.
  void kill(ActorId actor, const std::string& reason, Actions& out);
  /// Asked by a process of `job`, here or on another node. False: no such actor of that job is here.
  bool kill_for(JobId job, ActorId actor, const std::string& reason, Actions& out);

  /// Told by the head, which wants to know whether it lives.
  void confirm(ActorId actor, std::uint64_t question, Actions& out);

  void up(const LocalProcess& process, ActorId actor, Actions& out);
  void not_up(const LocalProcess& process, ActorId actor, const ErrorInfo& error, Actions& out);
  void ended(const LocalProcess& process, ActorId actor, const std::string& reason, Actions& out);
  void lives(const LocalProcess& process, ActorId actor, std::uint64_t question, Actions& out);
  void process_up(const LocalProcess& process, Actions& out);
  void process_ended(const LocalProcess& process, Actions& out);
  void package_done(const PackageFetches::Done& done, Instant now, Actions& out);
  void end_job(JobId job, const std::string& reason, Actions& out);

  /// For NodeJoined.
  std::vector<cluster::LiveActor> live() const;
  ProcessId process_of(ActorId actor) const;

 private:
  struct Hosted {
    ProcessId process;
    JobId job;
    bool up = false;
    bool isolated = false;
    wire::StartActorHere start;  ///< until its process has said hello
  };
  void fail(ActorId actor, ErrorInfo error, Actions& out);
  void down(ActorId actor, const std::string& reason, Actions& out);
  Hosted* find(const LocalProcess& process, ActorId actor);

  const Self& self_;
  LocalProcesses& locals_;
  HeadLine& head_;
  PackageFetches& packages_;
  std::map<ActorId, Hosted> actors_;
  /// By the hash of the executable that they wait for.
  std::map<std::string, std::map<ActorId, cluster::StartActor>> waiting_;
  Graveyard<ActorId> ended_;
};

}  // namespace troupe::node
