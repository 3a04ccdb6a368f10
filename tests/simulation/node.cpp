/// The shell of a node: what runtime/node/node.cpp and peer_links.cpp are in production, over simulated
/// lines.
#include <algorithm>
#include <cmath>

#include "runtime/wire/region_answer.hpp"
#include "tests/simulation/cluster.hpp"
#include "tests/simulation/group.hpp"

namespace troupe::sim {

namespace {

constexpr std::uint64_t kPackageParts = 3;

const char* label_of(const cluster::ClusterEvent& event) {
  return std::visit(
      [](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, cluster::Heartbeat>) return "~heartbeat";
        if constexpr (std::is_same_v<E, cluster::NodeJoined>) return "node joined";
        if constexpr (std::is_same_v<E, cluster::NodeLeaving>) return "node leaving";
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
         std::holds_alternative<cluster::PeerWanted>(event) ||
         std::holds_alternative<cluster::ResolveActor>(event);
}

}  // namespace

Node::Node(Cluster& in, int on_host, std::int64_t cpus, bool gateway)
    : Process("node", on_host), cluster(in) {
  info.id = NodeId{in.ids.next()};
  info.name = (gateway ? "gateway" : "n") + std::to_string(on_host);
  info.cpu_e4 = gateway ? 0 : cpus;
  // As many trainers find GPUs as find CPUs.
  const double share = in.scenario.job.settings.trainer_gpus;
  const double gpus = share > 0 ? std::ceil(share * static_cast<double>(info.cpu_e4 / cluster::kCpu)) : 0;
  for (int gpu = 0; gpu < gpus; ++gpu) info.gpus.push_back("gpu " + std::to_string(gpu));
  info.gateway = gateway;
  name = info.name + "." + to_string(info.id).substr(0, 4);
  info.address = name;
  info.public_key = "key of " + name;
  node::Self self;
  self.info = info;
  self.host = info.name;
  if (in.scenario.store_bytes != 0) self.limits.regions_bytes = in.scenario.store_bytes;
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
    const auto* start = said == nullptr ? nullptr : std::get_if<cluster::StartActor>(&said->action);
    if (start != nullptr) cpus_asked_[start->actor] = start->spec.demand.cpu_e4;
    const bool joins =
        std::holds_alternative<node::HeadConnected>(next) ||
        (said != nullptr && std::holds_alternative<cluster::RequestRegistration>(said->action));
    forgets_ = joins && cluster.scenario.floor.forget_requests;
    const bool line_lost =
        std::holds_alternative<node::PeerLost>(next) || std::holds_alternative<node::PeerFailed>(next);
    auto actions = machine->on(next, cluster.now_at(*this));
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
  const bool sent = head != nullptr && head_->send(label_of(*event), [head, event] {
    static_cast<Head*>(head)->on(*event);
  }) == Sent::kQueued;
  if (!sent) tell(node::HeadUnsent{std::move(*event)});
}

void Node::act(node::TellMember& a) {
  if (!a.joined.ok()) return cluster.world.kill(*this, "the cluster does not take it");
  is_member = true;
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
  const std::string kind = a.label.substr(0, a.label.find(' '));  // "trainer 3"
  if (kind == "trainer") {
    made = std::make_unique<Trainer>(cluster, *this, a.process, cluster::kCpu, kind);
  } else {
    made = std::make_unique<Worker>(cluster, *this, a.process, kind == "trial" ? cluster::kCpu : 0, kind);
  }
  Worker& worker = cluster.own(std::move(made));
  locals[a.process].process = &worker;
  worker.gpus = a.gpus;
  worker.on_death = [this, id = a.process] { local_died(id); };
  check_cpus();
  check_gpus();
}

void Node::act(node::AdoptDriver& a) {
  driver->process = a.process;
  locals[a.process].process = driver;
}

/// Of workers of tasks its start alone says how many CPUs they hold.
void Node::act(node::ActorBegins& a) {
  auto* worker = dynamic_cast<Worker*>(locals.at(a.process).process);
  if (worker == nullptr || !worker->name.starts_with("task ")) return;
  worker->cpu_e4 = cpus_asked_.at(a.actor);
  check_cpus();
}

/// Those aside whose task has waited: others got its CPUs, and may have them still when it goes on.
void Node::check_cpus() {
  std::int64_t used = 0;
  std::string who;
  for (const auto& [worker_id, local] : locals) {
    const auto* worker = dynamic_cast<const Worker*>(local.process);
    if (worker == nullptr || !worker->alive || worker->has_waited) continue;
    used += worker->cpu_e4;
    if (worker->cpu_e4 > 0) who += " " + worker->name + " " + std::to_string(worker->cpu_e4);
  }
  if (used > info.cpu_e4)
    cluster.world.violation("node " + name + " has more actors than its " + std::to_string(info.cpu_e4) +
                            ":" + who);
}

/// Every trainer sees one GPU if the job asks for any, and no GPU is seen by more than may share it.
void Node::check_gpus() {
  const double share = cluster.scenario.job.settings.trainer_gpus;
  std::map<std::string, double> held;
  for (const auto& [worker_id, local] : locals) {
    const auto* worker = dynamic_cast<const Worker*>(local.process);
    if (worker == nullptr || !worker->alive) continue;
    const bool trains = dynamic_cast<const Trainer*>(worker) != nullptr;
    if (worker->gpus.size() != (trains && share > 0 ? 1U : 0U))
      cluster.world.violation(worker->name + " sees " + std::to_string(worker->gpus.size()) + " GPUs");
    for (const std::string& gpu : worker->gpus) {
      if ((held[gpu] += share) > 1) cluster.world.violation("node " + name + " dealt " + gpu + " twice");
    }
  }
}

void Node::local_died(ProcessId process) {
  World& world = cluster.world;
  if (const auto at = locals.find(process); at != locals.end()) {
    at->second.process->from_node->close();
    at->second.process->to_node->close();
  }
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

/// As LocalLinks::send has it.
void Node::send_local(ProcessId process, const Message& message, std::vector<UniqueFd> fds) {
  const auto at = locals.find(process);
  if (at == locals.end() || at->second.dropped) return;
  Local& local = at->second;
  const auto& header = message.header;
  if (local.kept.empty() && local.process->from_node->send(header, message.body, fds) != Sent::kFull) return;
  switch (node::when_full(header, local.kept_bytes, stuck_bytes())) {
    case node::WhenFull::kRefuse:
      return refuse(header, {ErrorCode::kUnavailable, "its process does not take messages now", "", ""});
    case node::WhenFull::kKeep:
      local.kept_bytes += wire::kHeaderBytes + message.body.size();
      local.kept.push_back({header, message.body, std::move(fds)});
      return;
    case node::WhenFull::kClose:
      if (!std::exchange(local.stuck, true)) tell(node::LocalStuck{process, local.kept_bytes});
  }
}

/// Enough for a driver's orders to all of its trainers, and for objects in parts.
std::size_t Node::stuck_bytes() const {
  const std::size_t parts = cluster.scenario.putters == 0 ? 0 : std::size_t{16} << 20;
  return std::max<std::size_t>(16384 + parts, 8 * cluster.scenario.link_bytes);
}

void Node::room_for(ProcessId process) {
  const auto at = locals.find(process);
  if (at == locals.end()) return;
  Local& local = at->second;
  while (!local.kept.empty()) {
    Message& first = local.kept.front();
    if (local.process->from_node->send(first.header, first.body, first.fds) == Sent::kFull) return;
    local.kept_bytes -= wire::kHeaderBytes + first.body.size();
    local.kept.pop_front();
  }
}

void Node::act(node::SendLocal& a) {
  std::vector<UniqueFd> fds;
  if (a.attach.kind == node::Attach::kRegion) fds.push_back(memory_.descriptor(a.attach.region).value());
  send_local(a.process, *control_frame({info.id, a.process}, a.message), std::move(fds));
}

void Node::on_local_frame(ProcessId from, Message message) {
  const auto at = locals.find(from);
  if (at != locals.end() && !at->second.dropped)
    dispatch({info.id, from}, std::make_shared<const Message>(std::move(message)));
}

// Rings.

std::shared_ptr<RingMemory> Node::ring(ProcessId one, ProcessId other) const {
  return rings_.at(std::minmax(one, other));
}

void Node::act(node::MakeRing& a) {
  if (cluster.world.chance(cluster.scenario.no_rings)) {
    return tell(node::RingMade{a.first, a.second, a.request,
                               ErrorInfo{ErrorCode::kIo, "no ring", "too many files are open", ""}});
  }
  auto memory = std::make_shared<RingMemory>();
  memory->capacity = cluster.scenario.ring_bytes;
  memory->ends[0] = {locals.at(a.first).process, a.first, nullptr, {}, 0};
  memory->ends[1] = {locals.at(a.second).process, a.second, nullptr, {}, 0};
  rings_[std::minmax(a.first, a.second)] = std::move(memory);
  send_local(a.second, *control_frame({info.id, a.second}, a.offer_to_second));
  send_local(a.first, *control_frame({info.id, a.first}, a.offer_to_first));
  tell(node::RingMade{a.first, a.second, a.request, std::nullopt});
}

// Regions: a group's abort word is in one.

void Node::act(node::MakeRegion& a) {
  regions_.erase(a.instead_of);
  regions_[a.region] = a.name;
  memory_.make(a).value();
  tell(node::RegionMade{a.region, std::nullopt});
}

std::vector<std::string> Node::object_regions() const {
  std::vector<std::string> names;
  for (const auto& [number, region] : regions_) {
    if (region.starts_with(wire::kObjectRegions) || region.starts_with(wire::kCopyRegions))
      names.push_back(region);
  }
  return names;
}

void Node::act(node::AbortRegions& a) {
  for (const auto region : a.regions) {
    for (const auto& [generation, group] : cluster.groups) {
      if (regions_[region].ends_with("/group/" + to_string(generation))) group->abort(host, a.reason);
    }
  }
}

// Frames.

void Node::dispatch(node::Source source, const FramePtr& frame) {
  auto route =
      machine->route(source, frame->header, wire::kHeaderBytes + frame->body.size(), cluster.now_at(*this));
  switch (route.verdict) {
    case node::Verdict::kToProcess:
      send_local(route.to.process, *frame);
      break;
    case node::Verdict::kToPeer:
      send_peer(route.to.node, frame);
      break;
    case node::Verdict::kHold:
      hold(peers_[route.to.node], frame);
      break;
    case node::Verdict::kToNode:
      take(source, *frame);
      break;
    case node::Verdict::kRefuse:
      carry_out(std::exchange(route.actions, {}));
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

void Node::take(node::Source source, const Message& frame) {
  auto message = wire::decode_control(frame.header, frame.body);
  if (!message) return cluster.world.violation(name + " cannot read a frame: " + message.error().message());
  if (source.node != info.id) return tell(node::PeerSaid{frame.header, *std::move(message)});
  const bool hello = std::holds_alternative<wire::Hello>(*message);
  tell(node::LocalSaid{source.process, *std::move(message), hello ? std::size_t{1} : 0});
}

void Node::refuse(const wire::FrameHeader& header, const ErrorInfo& error) {
  if (!wire::wants_reply(header) || !header.from.process) return;
  Message reply;
  reply.body = wire::refusal(header, error, reply.header);
  if (header.from.node == info.id) return send_local(header.from.process, reply);
  dispatch({info.id, {}}, std::make_shared<const Message>(std::move(reply)));
}

FramePtr Node::control_frame(ProcessAddress to, const wire::Control& message, ProcessId from,
                             JobId job) const {
  auto frame = std::make_shared<Message>();
  frame->header.kind = wire::FrameKind::kControl;
  frame->header.from = {info.id, from};
  frame->header.to = to;
  frame->header.job = job;
  frame->body = wire::encode_control(message, frame->header);
  return frame;
}

// Peers.

void Node::act(node::ConnectPeer& a) {
  Peer& peer = peers_[a.peer.id];
  if (peer.dialer) peer.dialer->close();
  const NodeId to = a.peer.id;
  peer.dialer = std::make_shared<Dialer>(
      cluster.world, cluster.network, *this, info.id,
      [this, to]() -> Process* { return cluster.find_any_node(to); }, cluster.scenario.link_bytes);
  peer.stuck = false;
  peer.dialer->on_connected = [this, to] { tell(node::PeerConnected{to}); };
  peer.dialer->on_room = [this, to] {
    if (const auto at = peers_.find(to); at != peers_.end() && at->second.released) release(to);
  };
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

// As PeerLinks has it.

Sent Node::post(NodeId to, const FramePtr& frame) {
  Process* there = cluster.find_any_node(to);
  const auto at = peers_.find(to);
  if (there == nullptr || at == peers_.end() || !at->second.dialer) return Sent::kClosed;
  return at->second.dialer->send(
      label_of(frame->header),
      [there, from = info.id, frame] {
        static_cast<Node*>(there)->dispatch({from, {}}, frame);
      },
      wire::kHeaderBytes + frame->body.size());
}

void Node::hold(Peer& peer, const FramePtr& frame) {
  peer.held_bytes += wire::kHeaderBytes + frame->body.size();
  peer.held.push_back(frame);
}

void Node::release(NodeId to) {
  const auto at = peers_.find(to);
  if (at == peers_.end() || !at->second.dialer) return;
  at->second.released = true;
  while (!at->second.held.empty()) {
    const FramePtr first = at->second.held.front();
    if (post(to, first) != Sent::kQueued) return;  // room, or the loss, is told
    at->second.held_bytes -= wire::kHeaderBytes + first->body.size();
    at->second.held.pop_front();
  }
  at->second.released = false;
}

void Node::send_peer(NodeId to, const FramePtr& frame) {
  Peer& peer = peers_[to];
  const Sent sent = peer.held.empty() ? post(to, frame) : Sent::kFull;
  if (sent == Sent::kQueued) return;
  auto when = wire::wants_reply(frame->header) ? node::WhenFull::kRefuse : node::WhenFull::kClose;
  if (sent == Sent::kFull) when = node::when_full(frame->header, peer.held_bytes, stuck_bytes());
  if (when == node::WhenFull::kKeep) {
    peer.released = true;
    return hold(peer, frame);
  }
  if (when == node::WhenFull::kRefuse) {
    return refuse(frame->header, {ErrorCode::kUnavailable, "the actor cannot be reached now",
                                  "the link to its node is full or broke", ""});
  }
  if (sent == Sent::kFull && !std::exchange(peer.stuck, true)) tell(node::PeerStuck{to, peer.held_bytes});
  tell_incoming(to, "a message could not be sent");
}

void Node::act(node::SendPeer& a) {
  const auto frame = control_frame(a.to, a.message, a.from, a.job);
  if (a.hold) {
    hold(peers_[a.to.node], frame);
  } else {
    send_peer(a.to.node, frame);
  }
}

void Node::act(node::ReleaseHeld& a) {
  release(a.node);
}

void Node::act(node::RefuseHeld& a) {
  Peer& peer = peers_[a.node];
  peer.held_bytes = 0;
  peer.released = false;
  for (const FramePtr& frame : std::exchange(peer.held, {})) refuse(frame->header, a.error);
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
    hold(peers_[a.to], frame);
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
