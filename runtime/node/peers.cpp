#include "runtime/node/peers.hpp"

#include <algorithm>

#include "runtime/node/answers.hpp"

namespace troupe::node {

namespace {

std::string named(const cluster::NodeInfo& info) {
  return info.name.empty() ? "node " + to_string(info.id) : "node " + info.name;
}

}  // namespace

std::size_t Peers::weight(const wire::Control& message) {
  constexpr std::size_t kSmall = 1024;
  if (const auto* part = std::get_if<wire::PackagePart>(&message)) return kSmall + part->bytes.size();
  if (const auto* output = std::get_if<wire::Output>(&message)) return kSmall + output->text.size();
  return kSmall;
}

ErrorInfo Peers::unreachable(const Peer& peer) const {
  const auto seconds = std::to_string(self_.times.connect / std::chrono::seconds(1));
  if (peer.info.address.empty())
    return unavailable("the head did not say within " + seconds + " s where " + named(peer.info) + " is");
  return unavailable("no connection to " + named(peer.info) + " at " + peer.info.address + " within " +
                     seconds + " s");
}

ErrorInfo Peers::refuse(Peer& peer, ErrorInfo error, Actions& out) const {
  if (std::exchange(peer.held, 0) != 0) {
    out.push_back(RefuseHeld{peer.info.id, error});
    if (peer.incoming) out.push_back(TellIncoming{peer.info.id, error.why});
  }
  return error;
}

ErrorInfo Peers::give_up(Peer& peer, ErrorInfo error, Actions& out) const {
  peer.state = Peer::State::kUnreachable;
  const bool held = peer.held != 0;
  error = refuse(peer, std::move(error), out);
  if (held) locals_.tell_all(wire::NodeLost{peer.info.id, error.why}, out);
  return error;
}

/// A process may name any node: what waits for those that nobody knows has a bound in all.
bool Peers::may_wait_unknown(bool is_new, std::size_t bytes) const {
  std::size_t unknown = is_new ? 1 : 0, held = 0;
  for (const auto& [node, peer] : peers_) {
    if (!peer.info.address.empty()) continue;
    ++unknown;
    held += peer.held;
  }
  return unknown <= self_.limits.unknown_peers && (held == 0 || held + bytes <= 4 * self_.limits.held_bytes);
}

Way Peers::way(NodeId node, std::size_t bytes, Instant now, ErrorInfo& why, Actions& out) {
  if (const std::string* reason = dead_.find(node)) {
    why = troupe::node::died(*reason);
    return Way::kRefuse;
  }
  auto at = peers_.find(node);
  if ((at == peers_.end() || at->second.info.address.empty()) &&
      !may_wait_unknown(at == peers_.end(), bytes)) {
    why = unavailable("too much waits for nodes of which the head has not said where they are");
    return Way::kRefuse;
  }
  if (at == peers_.end()) {
    Peer peer;
    peer.info.id = node;
    at = peers_.emplace(node, std::move(peer)).first;
    head_.tell(cluster::PeerWanted{self_.info.id, node}, out);
  }
  Peer& peer = at->second;
  if (peer.state == Peer::State::kKnown) {
    peer.state = Peer::State::kConnecting;
    out.push_back(ConnectPeer{peer.info});
  }
  if (peer.state == Peer::State::kUnreachable) {
    why = unreachable(peer);
    return Way::kRefuse;
  }
  if (peer.state == Peer::State::kUp) {
    peer.under_way = true;
    return Way::kSend;
  }
  if (peer.held == 0) peer.since = now;
  if (peer.held + bytes > self_.limits.held_bytes && peer.held != 0) {
    why = unavailable(std::to_string(peer.held) + " bytes wait for the connection to " + named(peer.info) +
                      " (limit " + std::to_string(self_.limits.held_bytes) + ")");
    return Way::kRefuse;
  }
  peer.held += bytes;
  peer.under_way = true;
  return Way::kHold;
}

bool Peers::send(ProcessAddress to, wire::Control message, Instant now, ErrorInfo& why, Actions& out,
                 ProcessId from, JobId job) {
  const Way taken = way(to.node, weight(message), now, why, out);
  if (taken == Way::kRefuse) return false;
  out.push_back(SendPeer{to, std::move(message), from, job, taken == Way::kHold});
  return true;
}

void Peers::tell_linked(const wire::Control& message, Instant now, Actions& out) {
  for (const NodeId node : linked()) {
    if (!is_connected(peers_.at(node)))
      continue;  // it was told NodeLost, and asks, or has nothing under way here
    ErrorInfo why;
    if (!send({node, {}}, message, now, why, out)) tell_incoming(node, why.why, out);
  }
}

void Peers::tell_incoming(NodeId node, const std::string& why, Actions& out) {
  const auto at = peers_.find(node);
  if (at != peers_.end() && at->second.incoming) out.push_back(TellIncoming{node, why});
}

void Peers::vanished(ProcessId sender, NodeId to, const std::string& why, Actions& out) {
  tell_incoming(to, why, out);
  if (sender) out.push_back(SendLocal{sender, wire::NodeLost{to, why}, {}});
}

void Peers::heard(NodeId node) {
  if (const auto at = peers_.find(node); at != peers_.end()) at->second.under_way = true;
}

void Peers::expect(const cluster::NodeInfo& info, Actions& out) {
  if (dead_.find(info.id) != nullptr) return;
  const auto [at, is_new] = peers_.try_emplace(info.id);
  Peer& peer = at->second;
  const bool was_known = !peer.info.address.empty();
  peer.info = info;
  out.push_back(AllowPeer{info.id, info.public_key});
  if (was_known) return;
  if (is_new || peer.held == 0) {
    peer.state = Peer::State::kKnown;  // we connect when there is something to send
  } else {
    peer.state = Peer::State::kConnecting;  // we asked for it, too: no need to wait for the answer
    out.push_back(ConnectPeer{info});
  }
}

Peers::Refused Peers::answered(const cluster::PeerAnswered& answer, Actions& out) {
  if (!answer.ok) return died(answer.peer.id, answer.reason, out);
  const auto at = peers_.find(answer.peer.id);
  if (at == peers_.end() || dead_.find(answer.peer.id) != nullptr) return std::nullopt;
  Peer& peer = at->second;
  const bool was_known = !peer.info.address.empty();
  peer.info = answer.peer;
  out.push_back(AllowPeer{peer.info.id, peer.info.public_key});
  if (was_known) return std::nullopt;  // it was asked twice, or is expected already
  peer.state = Peer::State::kConnecting;
  out.push_back(ConnectPeer{peer.info});
  return std::nullopt;
}

void Peers::connected(NodeId node, Actions& out) {
  const auto at = peers_.find(node);
  if (at == peers_.end()) return;
  Peer& peer = at->second;
  peer.state = Peer::State::kUp;
  if (std::exchange(peer.held, 0) != 0) out.push_back(ReleaseHeld{node});
}

Peers::Refused Peers::came_in(NodeId node, Actions& out) {
  const auto at = peers_.find(node);
  if (at == peers_.end()) return std::nullopt;
  Refused refused;
  if (at->second.incoming) {
    refused = lost(node, false, "it made a new connection", out);
  } else if (at->second.was_incoming) {
    // We heard of the old one's end before it did: what it said there meanwhile is lost, too.
    refused = failed(node, "it made a new connection", out);
  }
  at->second.incoming = at->second.was_incoming = true;
  return refused;
}

Peers::Refused Peers::lost(NodeId node, bool outgoing, const std::string& why, Actions& out) {
  const auto at = peers_.find(node);
  if (at == peers_.end()) return std::nullopt;
  Peer& peer = at->second;
  if (outgoing && peer.state != Peer::State::kUp) return std::nullopt;  // it never was up
  if (outgoing) peer.state = Peer::State::kConnecting;                  // the client tries again by itself
  if (!outgoing) peer.incoming = false;
  Refused refused = failed(node, why, out);
  ErrorInfo error = refused ? *refused : unavailable("the link to " + named(peer.info) + " broke: " + why);
  peer.held = 0;
  out.push_back(RefuseHeld{node, std::move(error)});  // also what found no room while the link was up
  return refused;
}

Peers::Refused Peers::failed(NodeId node, const std::string& why, Actions& out) {
  const auto at = peers_.find(node);
  if (at == peers_.end() || !std::exchange(at->second.under_way, false)) return std::nullopt;
  const std::string reason = "the link to " + named(at->second.info) + " broke: " + why;
  locals_.tell_all(wire::NodeLost{node, reason}, out);
  return unavailable(reason);
}

Peers::Refused Peers::reconnect(NodeId node, const std::string& why, Actions& out) {
  const auto at = peers_.find(node);
  if (at == peers_.end() || at->second.state != Peer::State::kUp) return std::nullopt;
  at->second.under_way = true;
  auto refused = lost(node, true, why, out);
  out.push_back(DisconnectPeer{node});
  out.push_back(ConnectPeer{at->second.info});
  return refused;
}

Peers::Refused Peers::unusable(NodeId node, const ErrorInfo& error, Actions& out) {
  const auto at = peers_.find(node);
  if (at == peers_.end()) return std::nullopt;
  return give_up(at->second, unavailable(error.message()), out);
}

Peers::Refused Peers::died(NodeId node, const std::string& reason, Actions& out) {
  if (dead_.find(node) != nullptr || node == self_.info.id) return std::nullopt;
  dead_.add(node, reason);
  ErrorInfo error = troupe::node::died(reason);
  locals_.tell_all(wire::NodeDown{node, reason}, out);
  const auto at = peers_.find(node);
  if (at == peers_.end()) return error;
  refuse(at->second, error, out);
  out.push_back(DisconnectPeer{node});
  if (!at->second.info.public_key.empty()) out.push_back(RevokePeer{node, at->second.info.public_key});
  peers_.erase(at);
  return error;
}

std::vector<Peers::RefusedPeer> Peers::tick(Instant now, Duration slip, Actions& out) {
  std::vector<RefusedPeer> refused;
  for (auto& [node, peer] : peers_) {
    if (peer.held == 0) continue;
    peer.since = std::min(now, peer.since + slip);
    if (now - peer.since < self_.times.connect) continue;
    refused.push_back({node, give_up(peer, unreachable(peer), out)});
  }
  return refused;
}

void Peers::repeat(Actions& out) const {
  for (const auto& [node, peer] : peers_) {
    if (peer.info.address.empty()) out.push_back(TellHead{cluster::PeerWanted{self_.info.id, node}});
  }
}

std::vector<NodeId> Peers::linked() const {
  std::vector<NodeId> nodes;
  for (const auto& [node, peer] : peers_) {
    if (!peer.info.address.empty()) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace troupe::node
