/// Processes in which jobs construct light actors by themselves: one a job on each node.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/node/head_line.hpp"
#include "runtime/node/local_processes.hpp"
#include "runtime/node/package_fetches.hpp"
#include "runtime/node/peers.hpp"

namespace troupe::node {

/// Not thread-safe. The head is asked once a job whether it runs; then the job's worker is started or found,
/// and who asked hears of it once it has said hello.
class Leases {
 public:
  Leases(const Self& self, LocalProcesses& locals, HeadLine& head, PackageFetches& packages, Peers& peers)
      : self_(self), locals_(locals), head_(head), packages_(packages), peers_(peers) {}

  /// A process of this node asks, for this node or another.
  void ask(const LocalProcess& process, const wire::LeaseAsk& ask, Instant now, Actions& out);
  /// Another node asks.
  void ask(NodeId peer, const wire::PeerLeaseAsk& ask, Instant now, Actions& out);
  /// The head's answer.
  void answered(const cluster::LeaseAnswered& answer, Instant now, Actions& out);
  /// Another node's answer.
  void answered(NodeId peer, const wire::Answer& answer, Actions& out);
  void process_up(const LocalProcess& process, Instant now, Actions& out);
  void process_ended(const LocalProcess& process, Instant now, Actions& out);
  void package_done(const PackageFetches::Done& done, Instant now, Actions& out);
  void end_job(JobId job, const ErrorInfo& error, Instant now, Actions& out);
  /// That driver is dead, or all on that node (process 0): the head is asked anew whose job it is.
  void driver_gone(ProcessAddress driver, const std::string& reason, Instant now, Actions& out);
  /// A driver's job goes on without it: what it asked of other nodes it does not get.
  void replaced(const LocalProcess& driver, Actions& out);
  /// The node leaves: no worker is started any more.
  void close(const ErrorInfo& error, Instant now, Actions& out);
  /// The node drains: who asks anew is refused, what was granted stays. None: it does not any more.
  void hold(std::optional<ErrorInfo> error) { closed_ = std::move(error); }
  /// What was asked of that node gets no answer from it.
  void peer_lost(NodeId node, const ErrorInfo& error, Actions& out);

  /// Asks the head again what it has not answered.
  void repeat(Actions& out) const;
  /// Jobs of which this node may hold light actors.
  std::vector<JobId> jobs() const;

 private:
  struct Asker {
    ProcessAddress from;  ///< process 0: the node, for one of its processes
    std::uint64_t request = 0;
  };
  struct Lease {
    bool granted = false;  ///< the head says that the job runs; until EndJob
    std::string package;
    ProcessAddress driver;
    NodeId package_from;
    int failures = 0;            ///< workers that died before their hello, since the last that did not
    std::vector<Asker> waiting;  ///< Invariant: bounded by Limits::requests
  };
  struct Passed {
    NodeId node;
    ProcessId process;
    std::uint64_t request = 0;
  };

  void add(JobId job, const std::string& package, ProcessAddress driver, Asker asker, Instant now,
           Actions& out);
  /// Goes as far as it can with a granted lease: package, worker, answers.
  void advance(JobId job, Lease& lease, Instant now, Actions& out);
  void answer(const Asker& asker, const Result<ProcessAddress>& process, Instant now, Actions& out);
  void answer_all(Lease& lease, const Result<ProcessAddress>& process, Instant now, Actions& out);

  const Self& self_;
  LocalProcesses& locals_;
  HeadLine& head_;
  PackageFetches& packages_;
  Peers& peers_;
  std::map<JobId, Lease> leases_;
  std::map<std::uint64_t, Passed> passed_;  ///< asked of other nodes, by our own number
  std::uint64_t last_ = 0;
  std::optional<ErrorInfo> closed_;
};

}  // namespace troupe::node
