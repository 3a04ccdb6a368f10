/// A node's decisions as a pure state machine: events in, actions out; no clock, no I/O, no descriptor.
///
/// Its parts own what they decide on; the machine brings events to them and carries the news from one to the
/// others. The order of a death is fixed: abort words first, then the tellings.
#pragma once

#include <optional>
#include <set>

#include "runtime/node/actor_places.hpp"
#include "runtime/node/head_line.hpp"
#include "runtime/node/hosted_actors.hpp"
#include "runtime/node/leases.hpp"
#include "runtime/node/local_processes.hpp"
#include "runtime/node/output_lines.hpp"
#include "runtime/node/package_fetches.hpp"
#include "runtime/node/peers.hpp"
#include "runtime/node/region_names.hpp"
#include "runtime/node/route.hpp"
#include "runtime/node/submissions.hpp"

namespace troupe::node {

/// Not thread-safe. `now` never goes back.
class NodeMachine {
 public:
  /// `ids` gives identities to processes and must outlive the machine.
  NodeMachine(Self self, Random& ids);
  NodeMachine(const NodeMachine&) = delete;
  NodeMachine& operator=(const NodeMachine&) = delete;

  std::vector<NodeAction> on(const NodeEvent& event, Instant now);
  /// Where a frame of `bytes` from `source` goes. Decides by the header alone.
  Route route(Source source, const wire::FrameHeader& header, std::size_t bytes, Instant now) {
    return router_.route(source, header, bytes, now);
  }

  bool leaving() const { return leaving_; }
  /// It leaves because the driver that it hosts was gone without a goodbye.
  bool has_lost_driver() const { return lost_driver_; }
  /// It was told to leave for good when nothing runs here.
  bool drains() const { return drain_.has_value(); }

  // For the shell's attachments, for status and tests.
  const Self& self() const { return self_; }
  LocalProcesses& locals() { return locals_; }
  const RegionNames& regions() const { return regions_; }
  const HeadLine& head() const { return head_; }
  const HostedActors& actors() const { return actors_; }
  /// Workers and programs that this node started, with what they asked for: the shell looks at what they have
  /// and tells MemoryMeasured.
  std::vector<MemoryClaim> memory_claims();
  /// Of jobs that start here once those have come.
  std::vector<PackageOnItsWay> packages_on_their_way() const { return submissions_.packages(); }

 private:
  // The head.
  void handle(const HeadConnected& e);
  void handle(const HeadLost& e);
  void handle(const HeadUnsent& e);
  void handle(const HeadRefused& e);
  void handle(const HeadUnreachable& e);
  void handle(const HeadSaid& e);
  void said(const cluster::StartActor& e);
  void said(const cluster::KillActor& e);
  void said(const cluster::ConfirmActor& e);
  void said(const cluster::SpawnAnswered& e);
  void said(const cluster::SpawnWaits& e);
  void said(const cluster::HeartbeatAnswered& /*e*/) { head_answers_ = true; }
  void said(const cluster::NameAnswered& e);
  void said(const cluster::JobAnswered& e);
  void said(const cluster::NodeAccepted& e);
  void said(const cluster::LeaseAnswered& e);
  void said(const cluster::ExpectPeer& e);
  void said(const cluster::PeerAnswered& e);
  void said(const cluster::NodesAnswered& e);
  void said(const cluster::GroupAnswered& e);
  void said(const cluster::Acknowledged& e);
  void said(const cluster::NodeDead& e);
  void said(const cluster::RefuseNode& e);
  void said(const cluster::RequestRegistration& e);
  void said(const cluster::StartDriver& e);
  void said(const cluster::StopDriver& e);
  void said(const cluster::DriverSettled& e);
  void said(const cluster::ForgetSubmission& e);
  void said(const cluster::ActorPlaced& e);  // this and the next five: node_restarts.cpp
  void said(const cluster::ArgumentsWanted& e);
  void said(const cluster::KeepArguments& e);
  void said(const cluster::KeepState& e);
  void said(const cluster::EndJob& e);
  void said(const cluster::JobTaken& e);
  void said(const cluster::DrainNode& e);  // this and the next: node_drains.cpp
  void said(const cluster::ActorLeaves& e);
  template <class Other>
  void said(const Other& /*for the head's own shell*/) {}

  // Local processes.
  void handle(const DriverAttached& e);
  void handle(const LocalSaid& e);
  void handle(const LocalBroke& e);
  void handle(const LocalStuck& e);
  void handle(const WorkerNotStarted& e);
  void handle(const WorkerWrote& e);
  void handle(const ProcessEnding& e);
  void handle(const OutputDrained& e);
  void handle(const ProcessEnded& e);
  void handle(const RegionMade& e);
  void handle(const RingMade& e);
  void asked(LocalProcess& from, const wire::Hello& ask);
  void asked(LocalProcess& from, const wire::SpawnAsk& ask);
  void asked(LocalProcess& from, const wire::SpawnCancel& ask);
  void asked(LocalProcess& from, const wire::LeaseAsk& ask);
  void asked(LocalProcess& from, const wire::JobAsk& ask);
  void asked(LocalProcess& from, const wire::JobEnd& ask);
  void asked(LocalProcess& from, const wire::RingAsk& ask);
  void asked(LocalProcess& from, const wire::RegionAsk& ask);
  void asked(LocalProcess& from, const wire::RegionDrop& ask);
  void asked(LocalProcess& from, const wire::NodesAsk& ask);
  void asked(LocalProcess& from, const wire::GroupAsk& ask);
  void asked(LocalProcess& from, const wire::FindAsk& ask);
  void asked(LocalProcess& from, const wire::KillAsk& ask);
  void asked(LocalProcess& from, const wire::ActorUp& ask);
  void asked(LocalProcess& from, const wire::ConfirmActor& ask);
  void asked(LocalProcess& from, const wire::ActorNotUp& ask);
  void asked(LocalProcess& from, const wire::ActorEnded& ask);
  void asked(LocalProcess& from, const wire::OutputTaken& ask);
  void asked(LocalProcess& from, const wire::Leave& ask);
  void asked(LocalProcess& from, const wire::ResolveAsk& ask);
  void asked(LocalProcess& from, const wire::SaveAsk& ask);
  void asked(LocalProcess& from, const wire::TaskWaits& ask) { actors_.task_waits(from, ask.waits, out_); }
  /// Of a worker, to be heard is enough. A driver outlives its node, and must know that it goes on.
  void asked(LocalProcess& from, const wire::Pulse& pulse) {
    if (from.is_driver) out_.push_back(SendLocal{from.id, pulse, {}});
  }
  template <class Other>
  void asked(LocalProcess& from, const Other& ask);

  // Peers.
  void handle(const PeerConnected& e);
  void handle(const PeerUnusable& e);
  void handle(const PeerCameIn& e);
  void handle(const PeerLost& e);
  void handle(const PeerFailed& e);
  void handle(const PeerStuck& e);
  void handle(const PeerSaid& e);
  void handle(const PartTaken& e);

  // Submissions (node_submissions.cpp).
  void handle(const JobFilesFound& e);
  void handle(const ExecutablesFound& e) { packages_.found(e.hashes); }
  void handle(const ProgramStarted& e);
  void handle(const ProgramNotStarted& e);
  void handle(const ProgramEnded& e);
  void handle(const DriverKnocked& e);
  void handle(const JobUnpacked& e);
  void handle(const HeadGavePart& e);
  void handle(const JobPartTaken& e);

  void handle(const LeaveAsked& e);
  void handle(const DrainAsked& e);
  void handle(const Tick& e);
  void handle(const MemoryMeasured& e);  // node_memory.cpp

  // node_drains.cpp
  void drain(Duration grace, const std::string& reason, bool by_machine);
  void tell_drain();
  void watch_drain(Duration slip);

  void keep(const cluster::KeepArguments& e);
  void join();
  void watch_head(Duration passed);
  void miss_head(Duration passed);
  void head_is_back();
  void wait_for_head(Duration passed);
  void ask_head(LocalProcess& from, std::uint64_t request, cluster::ClusterEvent event, std::size_t bytes);
  void give_answer(const cluster::Requester& to, Result<wire::Bytes> value);
  void begin_end(LocalProcess& process, const std::string& how);
  bool refuse_replaced(const LocalProcess& from, std::uint64_t request, std::string what);
  void kill_workers_of(ProcessAddress driver, const std::string& reason);
  void package_done(const PackageFetches::Done& done);
  void libraries_done(const std::optional<JobLibraries::Done>& done);
  void output_taken(ProcessAddress driver, std::size_t bytes);
  void peer_refused(NodeId node, const Peers::Refused& error);
  void leave(const std::string& reason);
  void finish_leaving();

  const Self self_;
  LocalProcesses locals_;
  HeadLine head_;
  Peers peers_;
  JobLibraries libraries_;
  PackageFetches packages_;
  HostedActors actors_;
  ActorPlaces places_;
  Leases leases_;
  RegionNames regions_;
  Submissions submissions_;
  Router router_;
  OutputWindows windows_;
  std::set<std::pair<ProcessId, ProcessId>> rings_;  ///< Invariant: first < second, both live.

  bool head_answered_ = false;  ///< at least once
  std::string unreachable_;     ///< why it has not, or does not again
  Duration head_away_{};        ///< since it was lost, until it says something
  bool away_told_ = false;
  bool head_answers_ = false;  ///< heartbeats, over the present link
  Duration head_silent_{};     ///< since its last word over the present link
  Duration joining_{};         ///< how long this node has asked for it
  int refusals_ = 0;           ///< handshakes that the head refused, one after the other
  bool member_told_ = false;
  struct Drain {
    Instant until{};
    std::string reason;
    bool by_machine = false;  ///< by its own machine, which the head cannot cancel
    bool is_idle = false;     ///< nothing ran here at the last tick
  };
  std::optional<Drain> drain_;
  bool leaving_ = false;
  bool lost_driver_ = false;
  bool left_ = false;
  Instant leave_deadline_{};
  Instant last_tick_{-1};

  Instant now_{};        ///< of the event at hand
  Actions out_;          ///< of the event at hand
  std::size_t fds_ = 0;  ///< that came with the message at hand
};

}  // namespace troupe::node
