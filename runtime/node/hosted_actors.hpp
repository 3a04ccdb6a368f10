/// The actors that the head placed on this node: which process has which.
#pragma once

#include <compare>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runtime/node/end_reasons.hpp"
#include "runtime/node/head_line.hpp"
#include "runtime/node/local_processes.hpp"
#include "runtime/node/package_fetches.hpp"

namespace troupe::node {

/// One life of an actor: one that is started again has several, and may have two here for a moment.
struct ActorLifeId {
  ActorId actor;
  std::uint32_t incarnation = 1;
  auto operator<=>(const ActorLifeId&) const = default;
};

}  // namespace troupe::node

template <>
struct std::hash<troupe::node::ActorLifeId> {
  std::size_t operator()(const troupe::node::ActorLifeId& of) const noexcept {
    return std::hash<troupe::ActorId>()({of.actor.value + of.incarnation});
  }
};

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
  void kill(ActorLifeId actor, const std::string& reason, Actions& out);
  /// Asked by a process of `job`, here or on another node. False: no such actor of that job is here.
  bool kill_for(JobId job, ActorId actor, const std::string& reason, Actions& out);

  /// Told by the head, which wants to know whether it lives.
  void confirm(ActorLifeId actor, std::uint64_t question, Actions& out);

  void up(const LocalProcess& process, ActorId actor, Actions& out);
  void not_up(const LocalProcess& process, ActorId actor, const ErrorInfo& error, Actions& out);
  void ended(const LocalProcess& process, const wire::ActorEnded& ended, Actions& out);
  void lives(const LocalProcess& process, ActorId actor, std::uint64_t question, Actions& out);
  /// Of a worker of tasks: the one that it runs waits, and its CPUs are others', or it goes on. Said again it
  /// changes nothing. Beyond Limits::waiting_tasks the CPUs stay its own until one of the others goes on.
  void task_waits(const LocalProcess& process, bool waits, Actions& out);
  void process_up(const LocalProcess& process, Actions& out);
  void process_ended(const LocalProcess& process, Actions& out);
  void package_done(const PackageFetches::Done& done, Instant now, Actions& out);
  /// Those in `stays` outlive it.
  void end_job(JobId job, const std::string& reason, const std::vector<ActorId>& stays, Actions& out);

  /// For the next life of a detached actor.
  struct Kept {
    std::string payload;
    std::string hash;  ///< of its executable
    cluster::SavedState state;
  };
  /// What a detached actor is constructed with, and what it has saved. The executable comes from `from` if it
  /// is not here. Kept until `let_go`.
  void keep(const cluster::KeepArguments& told, Instant now, Actions& out);
  /// Of one that is kept here; ignored otherwise, or if a newer one is. Whether that or a newer one is here.
  bool keep_state(const cluster::KeepState& told);
  /// Null: it is not kept here.
  const Kept* kept(ActorId actor) const;
  void let_go(ActorId actor);
  /// What the head is told of that. Error: no such actor is in that process, or none that is kept; or the
  /// state is too large, and the one before stays.
  Result<cluster::StateSaved> saved(const LocalProcess& process, const wire::SaveAsk& ask);
  bool is_here(ActorLifeId life) const { return actors_.contains(life); }
  /// Workers of tasks whose CPUs are others' now.
  std::size_t waiting() const { return waiting_tasks_.size(); }

  /// For NodeJoined.
  std::vector<cluster::LiveActor> live() const;
  ProcessId process_of(ActorId actor) const;
  std::set<ProcessId> processes_of(const std::vector<ActorId>& actors) const;

 private:
  struct Hosted {
    ProcessId process;
    JobId job;
    bool up = false;
    bool isolated = false;
    wire::StartActorHere start;  ///< until its process has said hello
  };
  using Lives = std::map<ActorLifeId, Hosted>;
  /// `not_begun`: as of cluster::ActorFailed.
  void fail(ActorLifeId actor, ErrorInfo error, Actions& out, bool not_begun = false);
  void down(ActorLifeId actor, const std::string& reason, Actions& out, bool on_purpose = false);
  /// What the head is told of a life that ended. It is kept: one that asks again hears the same.
  using End = std::variant<cluster::ActorFailed, cluster::ActorDown>;
  void end(ActorLifeId actor, End how, Actions& out);
  /// True: it has ended, which the head is told again.
  bool told_again(ActorLifeId actor, Actions& out);
  /// To a head that takes it for one that is here: it has ended, or never began, and then never does.
  void not_here(ActorLifeId actor, Actions& out);
  /// The life of that actor which satisfies `which`; end() if there is none.
  template <class Which>
  Lives::iterator find_if(ActorId actor, const Which& which);
  Lives::iterator find(const LocalProcess& process, ActorId actor);

  void goes_on(ActorLifeId actor, Actions& out);

  const Self& self_;
  LocalProcesses& locals_;
  HeadLine& head_;
  PackageFetches& packages_;
  Lives actors_;
  std::set<ActorLifeId> waiting_tasks_;  ///< whose CPUs are others'. Invariant: they are in actors_
  std::vector<ActorLifeId> keep_cpus_;   ///< the same of those beyond the limit, the first that waits first
  /// By the hash of the executable that they wait for.
  std::map<std::string, std::map<ActorLifeId, cluster::StartActor>> waiting_;
  EndReasons<ActorLifeId, End> ended_;
  std::map<ActorId, Kept> kept_;
};

}  // namespace troupe::node
