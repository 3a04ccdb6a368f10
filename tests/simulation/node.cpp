/// The shell of a node: what runtime/node/node.cpp and peer_links.cpp are in production, over simulated
/// lines.
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

namespace {

constexpr std::uint64_t kPackageParts = 3;

const char* label_of(const cluster::ClusterEvent& event) {
  return std::visit(
      [](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, cluster::Heartbeat>) return "~heartbeat";
        if constexpr (std::is_same_v<E, cluster::NodeJoined>) return "node joined";
        if constexpr (std::is_same_v<E, cluster::NodeLeft>) return "node left";
        if constexpr (std::is_same_v<E, cluster::JobRegistered>) return "register job";
        if constexpr (std::is_same_v<E, cluster::JobEnded>) return "job ended";
        if constexpr (std::is_same_v<E, cluster::SpawnRequested>) return "spawn requested";
        if constexpr (std::is_same_v<E, cluster::SpawnCancelled>) return "spawn cancelled";
        if constexpr (std::is_same_v<E, cluster::ActorStarted>) return "actor started";
        if constexpr (std::is_same_v<E, cluster::ActorFailed>) return "actor failed";
        if constexpr (std::is_same_v<E, cluster::ActorDown>) return "actor down";
        if constexpr (std::is_same_v<E, cluster::PeerWanted>) return "peer wanted";
        if constexpr (std::is_same_v<E, cluster::KillRequested>) return "kill requested";
        return "to head";
      },
      event);
}

/// Whether it asks for something, or tells what a join does not: what a node repeats.
bool is_repeated(const cluster::ClusterEvent& event) {
  return std::holds_alternative<cluster::SpawnRequested>(event) ||
         std::holds_alternative<cluster::JobRegistered>(event) ||
         std::holds_alternative<cluster::PeerWanted>(event);
}

}  // namespace

Node::Node(Cluster& in, int on_host, std::int64_t cpus, bool gateway)
    : Process("node", on_host), cluster(in) {
  info.id = NodeId{in.ids.next()};
  info.name = (gateway ? "gateway" : "n") + std::to_string(on_host);
  info.cpu_e4 = gateway ? 0 : cpus;
  info.gateway = gateway;
  name = info.name + "." + to_string(info.id).substr(0, 4);
  info.address = name;
  info.public_key = "key of " + name;
  node::Self self;
  self.info = info;
  self.host = info.name;
  self.package = gateway && in.scenario.foreign_driver ? "the driver's" : "the cluster's";
  machine = std::make_unique<node::NodeMachine>(std::move(self), in.ids);
}

void Node::start() {
  head_ = std::make_shared<Dialer>(cluster.world, cluster.network, *this, info.id,
                                   [this]() -> Process* { return cluster.head; });
  head_->on_connected = [this] { tell(node::HeadConnected{}); };
  head_->on_lost = [this](const std::string& why) { tell(node::HeadLost{why}); };
  head_->dial();
  cluster.world.every(*this, seconds(1), "~node tick", [this] { tell(node::Tick{}); });
}

// Events and actions, as in production: one event at a time.

void Node::tell(node::NodeEvent event) {
  events_.push_back(std::move(event));
  if (std::exchange(busy_, true)) return;
  while (!events_.empty() && alive) {
    const node::NodeEvent next = std::move(events_.front());
    events_.pop_front();
    const auto* said = std::get_if<node::HeadSaid>(&next);
    const bool joins =
        std::holds_alternative<node::HeadConnected>(next) ||
        (said != nullptr && std::holds_alternative<cluster::RequestRegistration>(said->action));
    forgets_ = joins && cluster.scenario.floor.forget_requests;
    const bool line_lost =
        std::holds_alternative<node::PeerLost>(next) || std::holds_alternative<node::PeerFailed>(next);
    auto actions = machine->on(next, cluster.world.now());
    if (line_lost && cluster.scenario.floor.forget_peers) actions.clear();
    carry_out(std::move(actions));
    forgets_ = false;
  }
  busy_ = false;
}

void Node::carry_out(node::Actions actions) {
  for (auto& action : actions) {
    if (!alive) return;
    std::visit([this](auto& a) { act(a); }, action);
  }
}

void Node::act(node::TellHead& a) {
  if (forgets_ && is_repeated(a.event)) return;
  const auto event = std::make_shared<cluster::ClusterEvent>(std::move(a.event));
  Process* head = cluster.head;
  const bool sent = head != nullptr &&
                    head_->send(label_of(*event), [head, event] { static_cast<Head*>(head)->on(*event); });
  if (!sent) tell(node::HeadUnsaid{std::move(*event)});
}

void Node::act(node::TellMember& a) {
  if (!a.joined.ok()) return cluster.world.kill(*this, "the cluster does not take it");
  if (driver != nullptr) tell(node::DriverAttached{});
}

void Node::act(node::EndLoop& /*a*/) {
  cluster.world.after(*this, milliseconds(5), "loop ended",
                      [this] { cluster.world.kill(*this, "it has left"); });
}

void Node::act(node::Log& a) {
  cluster.world.trace(name, a.text);
}

// Local processes.

void Node::act(node::StartWorker& a) {
  std::unique_ptr<Worker> made;
  if (a.label == "trainer") {
    made = std::make_unique<Trainer>(cluster, *this, a.process);
  } else {
    made = std::make_unique<Loader>(cluster, *this, a.process);
  }
  Worker& worker = cluster.own(std::move(made));
  locals[a.process] = {&worker, false};
  worker.on_death = [this, id = a.process] { local_died(id); };
  check_cpus();
}

void Node::act(node::AdoptDriver& a) {
  driver->process = a.process;
  locals[a.process] = {driver, false};
}

void Node::check_cpus() {
  std::int64_t used = 0;
  for (const auto& [worker_id, local] : locals) {
    const auto* worker = dynamic_cast<const Worker*>(local.process);
    if (worker != nullptr && worker->alive) used += worker->cpu_e4;
  }
  if (used > info.cpu_e4) cluster.world.violation("node " + name + " has more actors than CPUs");
}

void Node::local_died(ProcessId process) {
  World& world = cluster.world;
  const Duration seen = world.between(microseconds(10), milliseconds(1));
  world.after(*this, seen, "its lock is free", [this, process] {
    tell(node::ProcessEnding{process, "killed by signal 9 (SIGKILL)"});
  });
  world.after(*this, seen + world.between(milliseconds(1), milliseconds(20)), "it is reaped",
              [this, process] {
                tell(node::ProcessEnded{process, "killed by signal 9 (SIGKILL)"});
              });
}

void Node::act(node::KillProcess& a) {
  const auto at = locals.find(a.process);
  if (at != locals.end()) cluster.world.kill(*at->second.process, ("by its node: " + a.reason).c_str());
}

void Node::act(node::DrainOutput& a) {
  if (const auto at = locals.find(a.process); at != locals.end()) at->second.dropped = true;
  tell(node::OutputDrained{a.process, ""});
}

void Node::send_local(ProcessId process, const char* label, std::function<void(Hosted&)> what) {
  const auto at = locals.find(process);
  if (at == locals.end() || at->second.dropped) return;
  Hosted* to = at->second.process;
  cluster.world.send(*this, *to, label, [to, what = std::move(what)] { what(*to); });
}

void Node::act(node::SendLocal& a) {
  send_local(a.process, "from node",
             [message = std::move(a.message)](Hosted& to) { to.on_control(message); });
}

void Node::send_frame(ProcessId process, const FramePtr& frame) {
  send_local(process, frame->label, [frame](Hosted& to) { to.on_frame(frame); });
}

void Node::on_local_frame(ProcessId from, const FramePtr& frame) {
  const auto at = locals.find(from);
  if (at != locals.end() && !at->second.dropped) dispatch({info.id, from}, frame);
}

// Regions: a group's abort word is in one.

void Node::act(node::MakeRing& a) {
  tell(node::RingMade{a.first, a.second, a.request,
                      ErrorInfo{ErrorCode::kUnavailable, "no ring", "frames go through the node here", ""}});
}

void Node::act(node::MakeRegion& a) {
  regions_[a.region] = a.name;
  tell(node::RegionMade{a.region, std::nullopt});
}

void Node::act(node::AbortRegions& a) {
  for (const auto region : a.regions) {
    for (const auto& [generation, group] : cluster.groups) {
      if (regions_[region] == "group " + to_string(generation)) group->abort(host, a.reason);
    }
  }
}

// Frames.

void Node::dispatch(node::Source source, const FramePtr& frame) {
  constexpr std::size_t kBytes = 200;
  auto route = machine->route(source, frame->header, kBytes, cluster.world.now());
  switch (route.verdict) {
    case node::Verdict::kToProcess:
      send_frame(route.to.process, frame);
      break;
    case node::Verdict::kToPeer:
      send_peer(route.to.node, frame);
      break;
    case node::Verdict::kHold:
      peers_[route.to.node].held.push_back(frame);
      break;
    case node::Verdict::kToNode:
      if (source.node != info.id) {
        tell(node::PeerSaid{frame->header, *frame->control});
      } else {
        const bool hello = std::holds_alternative<wire::Hello>(*frame->control);
        tell(node::LocalSaid{source.process, *frame->control, hello ? std::size_t{1} : 0});
      }
      break;
    case node::Verdict::kRefuse:
      refuse(frame->header, route.error);
      break;
    case node::Verdict::kBreach:
      cluster.world.violation(name + " refuses a frame: " + route.error.why);
      break;
    case node::Verdict::kDrop:
      break;
  }
  carry_out(std::move(route.actions));
}

void Node::refuse(const wire::FrameHeader& header, const ErrorInfo& error) {
  if (!wire::wants_reply(header) || !header.from.process) return;
  Frame reply;
  reply.header.kind = wire::FrameKind::kReply;
  reply.header.flags = wire::kFlagError | wire::kFlagRefused;
  reply.header.id = header.id;
  reply.header.from = {info.id, {}};
  reply.header.to = header.from;
  reply.label = "refusal";
  reply.error = error;
  auto shared = std::make_shared<const Frame>(std::move(reply));
  if (header.from.node == info.id) return send_frame(header.from.process, shared);
  dispatch({info.id, {}}, shared);
}

FramePtr Node::control_frame(ProcessAddress to, wire::Control message, ProcessId from, JobId job) const {
  Frame frame;
  frame.header.kind = wire::FrameKind::kControl;
  frame.header.from = {info.id, from};
  frame.header.to = to;
  frame.header.job = job;
  frame.label = "node to node";
  frame.control = std::move(message);
  return std::make_shared<const Frame>(std::move(frame));
}

// Peers.

void Node::act(node::ConnectPeer& a) {
  Peer& peer = peers_[a.peer.id];
  if (peer.dialer) peer.dialer->close();
  const NodeId to = a.peer.id;
  peer.dialer = std::make_shared<Dialer>(cluster.world, cluster.network, *this, info.id,
                                         [this, to]() -> Process* { return cluster.find_any_node(to); });
  peer.dialer->on_connected = [this, to] { tell(node::PeerConnected{to}); };
  peer.dialer->on_lost = [this, to](const std::string& why) { tell(node::PeerLost{to, true, why}); };
  peer.dialer->dial();
}

void Node::act(node::DisconnectPeer& a) {
  const auto at = peers_.find(a.node);
  if (at == peers_.end()) return;
  if (at->second.dialer) at->second.dialer->close();
  peers_.erase(at);
}

bool Node::accept(const LinePtr& line) {
  if (!allowed_.contains(line->from)) return false;
  LinePtr& known = incoming_[line->from];
  if (known) known->server_open = false;
  known = line;
  // A peer's connection is up before its node's loop hears of it.
  tell(node::PeerCameIn{line->from});
  return true;
}

void Node::line_lost(const LinePtr& line, const std::string& why) {
  const auto at = incoming_.find(line->from);
  if (at == incoming_.end() || at->second != line) return;
  incoming_.erase(at);
  tell(node::PeerLost{line->from, false, why});
}

void Node::post_peer(Peer& peer, NodeId to, const FramePtr& frame) {
  Process* there = cluster.find_any_node(to);
  const auto deliver = [there, from = info.id, frame] {
    static_cast<Node*>(there)->dispatch({from, {}}, frame);
  };
  if (there != nullptr && peer.dialer && peer.dialer->send(frame->label, deliver)) return;
  if (!wire::wants_reply(frame->header)) return tell_incoming(to, "a message could not be sent");
  refuse(frame->header, {ErrorCode::kUnavailable, "the actor cannot be reached now", "the link broke", ""});
}

void Node::send_peer(NodeId to, const FramePtr& frame) {
  post_peer(peers_[to], to, frame);
}

void Node::act(node::SendPeer& a) {
  const auto frame = control_frame(a.to, std::move(a.message), a.from, a.job);
  if (a.hold) {
    peers_[a.to.node].held.push_back(frame);
  } else {
    send_peer(a.to.node, frame);
  }
}

void Node::act(node::ReleaseHeld& a) {
  Peer& peer = peers_[a.node];
  for (const FramePtr& frame : std::exchange(peer.held, {})) post_peer(peer, a.node, frame);
}

void Node::act(node::RefuseHeld& a) {
  for (const FramePtr& frame : std::exchange(peers_[a.node].held, {})) refuse(frame->header, a.error);
}

void Node::tell_incoming(NodeId node, const std::string& reason) {
  const auto at = incoming_.find(node);
  if (at == incoming_.end()) return;
  auto* client = static_cast<Node*>(at->second->client);
  at->second->to_client(cluster.world, "may never come", [client, id = info.id, reason] {
    client->tell(node::PeerFailed{id, reason});
  });
}

void Node::act(node::GivePart& a) {
  const auto frame =
      control_frame({a.to, {}}, wire::PackagePart{a.ask.hash, a.ask.offset, kPackageParts, wire::Bytes(1)});
  if (a.hold) {
    peers_[a.to].held.push_back(frame);
  } else {
    send_peer(a.to, frame);
  }
}

void Node::act(node::TakePart& a) {
  cluster.world.after(
      *this, cluster.world.between(microseconds(50), milliseconds(5)), "part taken", [this, part = a.part] {
        std::optional<ErrorInfo> error;
        if (part.total == 0)
          error = ErrorInfo{ErrorCode::kUnavailable, "no executable", "it is not there", ""};
        tell(node::PartTaken{part.hash, part.offset + 1, part.offset + 1 == part.total, error});
      });
}

}  // namespace troupe::sim
