// The node's part that receives, routes and sends frames.

#include <algorithm>

#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "runtime/node/node.hpp"
#include "runtime/link/ring/doorbell.hpp"
#include "runtime/link/ring/ring.hpp"

namespace troupe {
namespace {

/// What may wait for a process that does not read. A process that is this far behind is stuck.
constexpr std::size_t kMaxOutgoingBytes = std::size_t{256} << 20;
constexpr int kPacketsATurn = 64;

wire::Bytes whole_frame(NodeId from, const wire::Control& message, ProcessAddress to = {}) {
  return wire::control_frame(message, {from, {}}, to);
}

/// A connection that is not there yet: the peer may not have heard of our key so far.
bool is_coming(LinkState state) {
  return state == LinkState::kConnecting || state == LinkState::kRefused;
}

std::uint64_t parse_node_name(const std::string& name) {
  return std::strtoull(name.c_str(), nullptr, 16);
}

}  // namespace

// From the processes of this node.

void Node::read_link(LocalProcess& process) {
  transport::Packet packet;
  for (int i = 0; i < kPacketsATurn && !process.ended; ++i) {
    const auto status = process.child.link.receive(packet, false);
    if (status == transport::LinkStatus::kWouldBlock) return;
    if (status == transport::LinkStatus::kClosed) {
      if (process.child.pid < 0) return process_ended(process);
      loop_.forget(process.child.link.fd());  // it is ending; its pidfd says how
      return;
    }
    process.heard = clock_.now();
    on_local_packet(process, std::move(packet));
  }
}

void Node::on_local_packet(LocalProcess& process, transport::Packet packet) {
  const auto header = wire::decode_header(packet.bytes);
  if (!header || header->from != ProcessAddress{id_, process.id}) {
    const std::string why = header ? "it speaks in another's name" : header.error().message();
    log(LogLevel::kError, "refused a frame of " + process.label + ": " + why);
    if (process.child.pid > 0) return kill_process(process, "it broke the protocol: " + why);
    return;
  }
  if (header->kind != wire::FrameKind::kControl) return route(*header, packet.bytes);
  for (auto& fd : packet.fds) process.received_fds.push_back(std::move(fd));
  const auto body = local_assembler_.feed(*header, wire::ByteView(packet.bytes).subspan(wire::kHeaderBytes));
  if (!body) return;
  auto message = wire::decode_control(*header, *body);
  if (!message) return log(LogLevel::kError, message.error().message());
  on_local_control(process, *std::move(message));
}

void Node::on_local_control(LocalProcess& process, wire::Control message) {
  const ProcessAddress from{id_, process.id};
  if (std::get_if<wire::Pulse>(&message) != nullptr) return;
  if (auto* hello = std::get_if<wire::Hello>(&message)) {
    if (process.received_fds.size() != 1 || hello->version != wire::kProtocolVersion) {
      return kill_process(process, "its hello does not fit: both sides must run the same build");
    }
    process.doorbell = std::move(process.received_fds.front());
    process.received_fds.clear();
    if (process.lock) deaths_.add(process.id, std::move(process.lock));
    for (const auto& start : std::exchange(process.starts, {})) send(process, start);
  } else if (auto* ask = std::get_if<wire::SpawnAsk>(&message)) {
    cluster::ClusterEvent event = cluster::SpawnRequested{{from, ask->request}, std::move(ask->spec)};
    unanswered_.emplace(std::pair(process.id, ask->request), event);
    to_head(std::move(event));
  } else if (auto* job = std::get_if<wire::JobAsk>(&message)) {
    cluster::ClusterEvent event = cluster::JobRegistered{job->name, from, job->request};
    unanswered_.emplace(std::pair(process.id, job->request), event);
    to_head(std::move(event));
  } else if (auto* cancel = std::get_if<wire::SpawnCancel>(&message)) {
    unanswered_.erase({process.id, cancel->request});
    to_head(cluster::SpawnCancelled{{from, cancel->request}});
  } else if (auto* ring = std::get_if<wire::RingAsk>(&message)) {
    on_ask(process, *ring);
  } else if (auto* region = std::get_if<wire::RegionAsk>(&message)) {
    on_ask(process, *region);
  } else if (auto* drop = std::get_if<wire::RegionDrop>(&message)) {
    regions_.drop(drop->key);
  } else if (auto* nodes = std::get_if<wire::NodesAsk>(&message)) {
    answer(process, nodes->request, wire::encode(wire::NodesAnswer{nodes_}));
  } else if (auto* kill = std::get_if<wire::KillAsk>(&message)) {
    if (kill->actor.node == id_) {
      kill_actor(kill->actor.actor, kill->reason);
    } else {
      to_peer(kill->actor.node, whole_frame(id_, *kill));
    }
  } else if (auto* up = std::get_if<wire::ActorUp>(&message)) {
    if (!process.actors.contains(up->actor)) return;
    process.actors[up->actor] = LocalProcess::ActorState::kUp;
    to_head(cluster::ActorStarted{id_, up->actor, process.id});
  } else if (auto* not_up = std::get_if<wire::ActorNotUp>(&message)) {
    if (process.actors.erase(not_up->actor) == 0) return;
    hosts_.erase(not_up->actor);
    to_head(cluster::ActorFailed{id_, not_up->actor, not_up->error});
    if (process.isolated) send(process, wire::Leave{"its actor could not be constructed"});
  } else if (auto* ended = std::get_if<wire::ActorEnded>(&message)) {
    if (process.actors.erase(ended->actor) == 0) return;
    hosts_.erase(ended->actor);
    const wire::ActorGone gone{{id_, process.id, ended->actor}, ended->reason};
    to_locals(gone);
    to_peers(gone);
    to_head(cluster::ActorDown{id_, ended->actor, ended->reason});
    if (process.isolated) send(process, wire::Leave{"its actor has ended"});
  } else if (auto* leaving = std::get_if<wire::Leave>(&message); leaving != nullptr && &process == driver_) {
    leave(leaving->reason);
  }
}

void Node::on_ask(LocalProcess& process, const wire::RingAsk& ask) {
  LocalProcess* peer = find(ask.peer);
  if (peer == nullptr || peer->ended || !peer->doorbell || peer == &process) {
    return answer(process, ask.request,
                  ErrorInfo{ErrorCode::kActorDied, "no ring", "that process is gone", ""});
  }
  if (!process.rings.contains(peer->id)) {
    auto memory = SharedMemory::create("troupe-ring", 2 * transport::kRingBytes, true);
    if (!memory) return answer(process, ask.request, memory.error());
    const auto offer = [&](LocalProcess& to, LocalProcess& other, bool first) {
      std::vector<UniqueFd> fds;
      auto ring = UniqueFd(::dup(memory->fd()));
      auto bell = other.doorbell.duplicate();
      if (!ring || !bell) return false;
      fds.push_back(std::move(ring));
      fds.push_back(*std::move(bell));
      send(to, wire::RingOffer{other.id, first}, std::move(fds));
      return true;
    };
    if (!offer(*peer, process, false) || !offer(process, *peer, true)) {
      return answer(process, ask.request,
                    ErrorInfo{ErrorCode::kIo, "no ring", "no descriptors left", "raise ulimit -n"});
    }
    process.rings.insert(peer->id);
    peer->rings.insert(process.id);
  }
  answer(process, ask.request, wire::Bytes{});
}

void Node::on_ask(LocalProcess& process, const wire::RegionAsk& ask) {
  auto fd = regions_.open(ask.key, ask.bytes, ask.abortable, process.id, ask.label);
  if (!fd) return answer(process, ask.request, fd.error());
  std::vector<UniqueFd> fds;
  fds.emplace_back(::dup(*fd));
  if (!fds.front())
    return answer(process, ask.request,
                  ErrorInfo{ErrorCode::kIo, "no region", "no descriptors left", "raise ulimit -n"});
  answer(process, ask.request, wire::Bytes{}, std::move(fds));
}

// Routing.

void Node::route(const wire::FrameHeader& header, wire::ByteView frame) {
  if (header.to.node != id_) return to_peer(header.to.node, frame);
  LocalProcess* to = find(header.to.process);
  if (to == nullptr || to->ended) return refuse_call(header, "its process is gone");
  send_packet(*to, frame);
}

void Node::refuse_call(const wire::FrameHeader& header, const std::string& why) {
  if (header.kind != wire::FrameKind::kCall || (header.flags & (wire::kFlagOneWay | wire::kFlagMore)) != 0)
    return;
  wire::FrameHeader reply;
  reply.kind = wire::FrameKind::kReply;
  reply.flags = wire::kFlagError;
  reply.to = header.from;
  reply.from = header.to;
  reply.id = header.id;
  const auto bytes = wire::encode_header(reply);
  wire::Bytes frame(bytes.begin(), bytes.end());
  const auto body =
      wire::encode(std::tuple(ErrorInfo{ErrorCode::kActorDied, "the actor is gone", why, "spawn it again"}));
  frame.insert(frame.end(), body.begin(), body.end());
  route(reply, frame);
}

void Node::to_peer(NodeId node, wire::ByteView frame) {
  const auto at = peers_.find(node);
  const bool sent = at != peers_.end() && at->second.client != nullptr && at->second.client->send(frame);
  if (sent) return;
  if (at != peers_.end() && at->second.client != nullptr && at->second.waiting.size() < 4096 &&
      is_coming(at->second.client->state())) {
    at->second.waiting.emplace_back(frame.begin(), frame.end());
    return;
  }
  if (const auto header = wire::decode_header(frame)) {
    if (header->from.node == id_) refuse_call(*header, "node " + to_string(node) + " cannot be reached");
  }
}

void Node::to_peers(const wire::Control& message) {
  const auto frame = whole_frame(id_, message);
  for (const auto& [node, peer] : peers_) to_peer(node, frame);
}

void Node::to_process(ProcessAddress to, const wire::Control& message) {
  if (to.node != id_) return to_peer(to.node, whole_frame(id_, message, to));
  if (LocalProcess* process = find(to.process); process != nullptr && !process->ended)
    send(*process, message);
}

void Node::on_peer_frame(const PeerName& from, wire::ByteView frame) {
  const NodeId node{parse_node_name(from)};
  const auto header = wire::decode_header(frame);
  if (!header || header->from.node != node) {
    return log(LogLevel::kError, "refused a frame of node " + from + ": " +
                                     (header ? "it speaks in another's name" : header.error().message()));
  }
  if (header->kind != wire::FrameKind::kControl)
    return header->to.node == id_ ? route(*header, frame) : void();
  const auto body = peer_assemblers_[node].feed(*header, frame.subspan(wire::kHeaderBytes));
  if (!body) return;
  auto message = wire::decode_control(*header, *body);
  if (!message) return log(LogLevel::kError, message.error().message());
  if (std::get_if<wire::Output>(&*message) != nullptr) return to_process(header->to, *message);
  on_peer_control(node, *std::move(message));
}

void Node::on_peer_control(NodeId from, wire::Control message) {
  const auto* down = std::get_if<wire::ProcessDown>(&message);
  const auto* gone = std::get_if<wire::ActorGone>(&message);
  if ((down != nullptr && down->process.node == from) || (gone != nullptr && gone->actor.node == from)) {
    to_locals(message);  // a node speaks of its own alone
  } else if (auto* kill = std::get_if<wire::KillAsk>(&message)) {
    kill_actor(kill->actor.actor, kill->reason);
  } else if (auto* ask = std::get_if<wire::PackageAsk>(&message)) {
    give_package(from, *ask);
  } else if (auto* part = std::get_if<wire::PackagePart>(&message)) {
    take_package_part(from, *part);
  }
}

// From the head.

void Node::on_head_frame(wire::ByteView frame) {
  const auto header = wire::decode_header(frame);
  if (!header) return log(LogLevel::kError, header.error().message());
  auto message = wire::decode_control(*header, frame.subspan(wire::kHeaderBytes));
  if (!message) return log(LogLevel::kError, message.error().message());
  if (auto* from_head = std::get_if<wire::FromHead>(&*message)) on_head_action(std::move(from_head->action));
}

void Node::on_head_action(cluster::ClusterAction action) {
  if (auto* start = std::get_if<cluster::StartActor>(&action)) {
    start_actor(start->actor, start->spec);
  } else if (auto* kill = std::get_if<cluster::KillActor>(&action)) {
    kill_actor(kill->actor, kill->reason);
  } else if (auto* spawned = std::get_if<cluster::SpawnAnswered>(&action)) {
    unanswered_.erase({spawned->to.from.process, spawned->to.request});
    LocalProcess* process = find(spawned->to.from.process);
    if (process == nullptr) return;
    const ActorAddress at{spawned->address.node, spawned->address.process, spawned->actor};
    answer(*process, spawned->to.request,
           spawned->ok ? Result<wire::Bytes>(wire::encode(wire::SpawnAnswer{at}))
                       : Result<wire::Bytes>(spawned->error));
  } else if (auto* job = std::get_if<cluster::JobAnswered>(&action)) {
    unanswered_.erase({job->to.process, job->request});
    LocalProcess* process = find(job->to.process);
    if (process == nullptr) return;
    process->job = job->job;
    answer(*process, job->request, wire::encode(wire::JobAnswer{job->job, job->incarnation}));
  } else if (auto* nodes = std::get_if<cluster::AnnounceNodes>(&action)) {
    set_nodes(nodes->nodes);
  } else if (auto* dead = std::get_if<cluster::NodeDead>(&action)) {
    node_dead(dead->node, dead->reason);
  } else if (auto* job_end = std::get_if<cluster::EndJob>(&action)) {
    for (const auto& [id, process] : locals_) {
      if (process->job == job_end->job && process.get() != driver_)
        kill_process(*process, "its job ended: " + job_end->reason);
    }
  } else if (auto* refused = std::get_if<cluster::RefuseNode>(&action)) {
    log(LogLevel::kError, "the head refuses this node: " + refused->reason);
    tell_member(ErrorInfo{ErrorCode::kRefused, "the head at " + options_.config.head + " refuses this node",
                          refused->reason, "join anew"});
    leave("the head refused it");
  } else if (std::get_if<cluster::RequestRegistration>(&action) != nullptr) {
    join_head();
  }
}

void Node::set_nodes(const std::vector<cluster::NodeInfo>& nodes) {
  nodes_ = nodes;
  // A node that the head no longer lists is dead. The head says so when it happens, but to those that are
  // connected: one that comes back to a head that has started again learns it from the list.
  std::vector<NodeId> dead;
  for (const auto& [peer, unused] : peers_) {
    const auto is_peer = [id = peer](const auto& info) { return info.id == id; };
    if (std::none_of(nodes.begin(), nodes.end(), is_peer)) dead.push_back(peer);
  }
  for (const NodeId peer : dead) node_dead(peer, "the head has it as dead");
  for (const auto& info : nodes) {
    if (info.id == id_ || peers_.contains(info.id)) continue;
    const auto key = parse_public_key(info.public_key);
    const auto endpoint = parse_endpoint(info.address);
    if (!key || !endpoint) {
      log(LogLevel::kError, "node " + info.name + " has no usable address or key");
      continue;
    }
    authorizer_->allow(*key, to_hex(info.id.value));
    ClientHandlers handlers;
    handlers.on_frame = [](std::span<const std::byte>) {};  // each direction has a connection of its own
    handlers.on_state = [this, node = info.id](LinkState state, const std::string&) {
      if (state != LinkState::kConnected) return;
      loop_.post([this, node] {
        const auto at = peers_.find(node);
        if (at == peers_.end()) return;
        for (const auto& frame : std::exchange(at->second.waiting, {})) to_peer(node, frame);
      });
    };
    auto client = transport_.connect({*endpoint, *key, options_.keys, Duration::zero()}, std::move(handlers));
    if (!client) {
      log(LogLevel::kError, client.error().message());
      continue;
    }
    peers_[info.id] = Peer{info, *std::move(client), {}};
  }
  const bool member =
      std::any_of(nodes.begin(), nodes.end(), [this](const auto& info) { return info.id == id_; });
  if (member) tell_member({});
}

void Node::node_dead(NodeId node, const std::string& reason) {
  to_locals(wire::NodeDown{node, reason});
  end_fetches_from(node, reason);
  const auto at = peers_.find(node);
  if (at == peers_.end()) return;
  if (const auto key = parse_public_key(at->second.info.public_key)) authorizer_->revoke(*key);
  peers_.erase(at);
}

// To the processes of this node.

void Node::to_locals(const wire::Control& message) {
  for (const auto& [id, process] : locals_) {
    if (!process->ended) send(*process, message);
  }
}

void Node::answer(LocalProcess& process, std::uint64_t request, Result<wire::Bytes> value,
                  std::vector<UniqueFd> fds) {
  wire::Answer reply;
  reply.request = request;
  reply.ok = value.ok();
  if (value) {
    reply.value = *std::move(value);
  } else {
    reply.error = value.error();
  }
  send(process, reply, std::move(fds));
}

void Node::send(LocalProcess& process, const wire::Control& message, std::vector<UniqueFd> fds) {
  wire::FrameHeader header;
  header.from = {id_, {}};
  const auto body = wire::encode_control(message, header);
  wire::fragment(header, body, transport::kPacketMax, [&](wire::ByteView head, wire::ByteView part) {
    wire::Bytes packet(head.begin(), head.end());
    packet.insert(packet.end(), part.begin(), part.end());
    send_packet(process, packet, std::exchange(fds, {}));
    return true;
  });
}

void Node::send_packet(LocalProcess& process, wire::ByteView packet, std::vector<UniqueFd> fds) {
  process.outgoing.push_back({wire::Bytes(packet.begin(), packet.end()), std::move(fds)});
  process.outgoing_bytes += packet.size();
  flush(process);
  if (process.outgoing_bytes > kMaxOutgoingBytes && process.child.pid > 0) {
    kill_process(process, "it did not read 256 MiB of messages");
  }
}

void Node::flush(LocalProcess& process) {
  while (!process.outgoing.empty()) {
    const auto& next = process.outgoing.front();
    std::vector<int> fds;
    for (const auto& fd : next.fds) fds.push_back(fd.get());
    const auto status = process.child.link.send(next.bytes, {}, fds, false);
    if (status == transport::LinkStatus::kWouldBlock) {
      loop_.watch_writable(process.child.link.fd(), true);
      process.waits_for_room = true;
      return;
    }
    process.outgoing_bytes -= next.bytes.size();
    process.outgoing.pop_front();  // a closed link loses it: the process is ending
  }
  if (std::exchange(process.waits_for_room, false)) loop_.watch_writable(process.child.link.fd(), false);
}

}  // namespace troupe
