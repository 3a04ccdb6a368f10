/// A NodeMachine without a world: events go in by hand, and the actions that came out are looked at.
#pragma once

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/node/node_machine.hpp"

namespace troupe::node {

using namespace std::chrono_literals;

struct Fixture {
  static constexpr NodeId kNode{0xa};
  static constexpr NodeId kPeer{0xb};
  static constexpr JobId kJob{7};

  static Self self_with(const Limits& limits) {
    Self self;
    self.info = {kNode, "a", "10.0.0.1:1", std::string(40, 'a'), 4 * cluster::kCpu, false};
    self.host = "10.0.0.1";
    self.package = "own";
    self.limits = limits;
    return self;
  }
  explicit Fixture(const Limits& limits = {}) : machine(self_with(limits), ids) { on(HeadConnected{}); }

  SeededRandom ids{1};
  Instant now{1s};
  NodeMachine machine;

  /// The machine's actions, followed up by what a shell does at once: a region is made, output is drained.
  Actions on(const NodeEvent& event) {
    Actions all = machine.on(event, now);
    for (std::size_t i = 0; i < all.size(); ++i) {
      Actions more;
      if (const auto* drain = std::get_if<DrainOutput>(&all[i]))
        more = machine.on(OutputDrained{drain->process, last_line}, now);
      if (const auto* region = std::get_if<MakeRegion>(&all[i]))
        more = machine.on(RegionMade{region->region, std::nullopt}, now);
      if (const auto* ring = std::get_if<MakeRing>(&all[i]))
        more = machine.on(RingMade{ring->first, ring->second, ring->request, std::nullopt}, now);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
  std::string last_line;

  template <class T>
  Actions head(const T& action) {
    return on(HeadSaid{action});
  }
  template <class T>
  Actions said(ProcessId process, const T& message, std::size_t fds = 0) {
    return on(LocalSaid{process, message, fds});
  }
  template <class T>
  Actions peer_said(const T& message, NodeId from = kPeer, JobId job = {}, ProcessId to = {}) {
    wire::FrameHeader header;
    header.from.node = from;
    header.to = {kNode, to};
    header.job = job;
    return on(PeerSaid{header, message});
  }
  Actions tick(Duration later = 1s) {
    now += later;
    return on(Tick{});
  }

  /// A driver that has said hello and drives `job`.
  ProcessId driver(JobId job = kJob) {
    const Actions attached = on(DriverAttached{});
    const ProcessId process = find<AdoptDriver>(attached)->process;
    said(process, wire::Hello{}, 1);
    said(process, wire::JobAsk{1, "job"});
    head(cluster::JobAnswered{{kNode, process}, 1, job, 1, ""});
    return process;
  }
  static cluster::ActorSpec spec(bool isolated = false, JobId job = kJob,
                                 ProcessAddress driver = {kNode, {9}}, const std::string& package = "") {
    const auto bytes = wire::encode(wire::ActorPayload{5, "trainer 0", driver, package, {}});
    return {job,
            "T",
            "",
            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
            {isolated ? cluster::kCpu : 0, isolated, {}}};
  }
  /// A worker that was started for that actor and has said hello; the actor is up.
  ProcessId worker(ActorId actor, bool isolated = true, JobId job = kJob) {
    const Actions started = head(cluster::StartActor{kNode, actor, spec(isolated, job), ""});
    const auto* start = find<StartWorker>(started);
    const ProcessId process = start != nullptr ? start->process : machine.actors().process_of(actor);
    if (start != nullptr) said(process, wire::Hello{}, 1);
    said(process, wire::ActorUp{actor});
    return process;
  }
  /// A peer to which a connection is up.
  void link(NodeId peer = kPeer) {
    send_to({peer, {1}});
    head(cluster::PeerAnswered{kNode, true, info(peer), ""});
    on(PeerConnected{peer});
  }
  static cluster::NodeInfo info(NodeId node) {
    return {node, "b", "10.0.0.2:1", std::string(40, 'b'), cluster::kCpu, false};
  }
  /// A call of this node itself, as far as checks go.
  Route send_to(ProcessAddress to, std::size_t bytes = 100) {
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kCall;
    header.from.node = kNode;
    header.to = to;
    return machine.route({kNode, {}}, header, bytes, now);
  }
  Route call(ProcessId from, ProcessAddress to, wire::FrameKind kind = wire::FrameKind::kCall,
             JobId job = kJob, std::size_t bytes = 100) {
    wire::FrameHeader header;
    header.kind = kind;
    header.from = {kNode, from};
    header.to = to;
    header.job = job;
    header.id = 1;
    return machine.route({kNode, from}, header, bytes, now);
  }

  template <class T>
  static const T* find(const Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* found = std::get_if<T>(&action)) return found;
    }
    return nullptr;
  }
  template <class T>
  static std::size_t index_of(const Actions& actions) {
    std::size_t at = 0;
    while (at < actions.size() && !std::holds_alternative<T>(actions[at])) ++at;
    return at;
  }
  /// What the head is told of that type.
  template <class T>
  static const T* told(const Actions& actions) {
    for (const auto& action : actions) {
      const auto* tell = std::get_if<TellHead>(&action);
      if (tell != nullptr && std::holds_alternative<T>(tell->event)) return &std::get<T>(tell->event);
    }
    return nullptr;
  }
  /// A message of that type to that process.
  template <class T>
  static const T* sent(const Actions& actions, ProcessId to) {
    for (const auto& action : actions) {
      const auto* send = std::get_if<SendLocal>(&action);
      if (send != nullptr && send->process == to && std::holds_alternative<T>(send->message))
        return &std::get<T>(send->message);
    }
    return nullptr;
  }
  template <class T>
  static const T* sent_peer(const Actions& actions, NodeId to = kPeer) {
    for (const auto& action : actions) {
      const auto* send = std::get_if<SendPeer>(&action);
      if (send != nullptr && send->to.node == to && std::holds_alternative<T>(send->message))
        return &std::get<T>(send->message);
    }
    return nullptr;
  }
};

}  // namespace troupe::node
