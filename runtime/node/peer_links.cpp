#include "runtime/node/peer_links.hpp"

#include <charconv>

#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/node/route.hpp"

namespace troupe::node {

PeerName name_of(NodeId node) {
  return to_hex(node.value);
}

NodeId node_of(const PeerName& name) {
  NodeId node;
  const char* end = name.data() + name.size();
  return std::from_chars(name.data(), end, node.value, 16).ptr == end ? node : NodeId{};
}

PeerLinks::PeerLinks(EventLoop& loop, Transport& transport, CurveKeyPair keys, std::size_t stuck_bytes,
                     Hooks hooks)
    : loop_(loop),
      transport_(transport),
      keys_(std::move(keys)),
      stuck_bytes_(stuck_bytes),
      hooks_(std::move(hooks)) {}

PeerLinks::~PeerLinks() {
  for (auto& closing : closing_) closing.thread.join();
}

void PeerLinks::connect(const cluster::NodeInfo& info) {
  const auto unusable = [&](const ErrorInfo& error) {
    log(LogLevel::kError, "node " + info.name + ": " + error.message());
    hooks_.tell(PeerUnusable{info.id, error});
  };
  const auto key = parse_public_key(info.public_key);
  const auto endpoint = parse_endpoint(info.address);
  if (!key) return unusable(key.error());
  if (!endpoint) return unusable(endpoint.error());
  const std::uint64_t number = ++last_number_;
  ClientHandlers handlers;
  // One at a time: it says that what is under way is lost, and a second one says no more.
  handlers.on_message = [this, node = info.id,
                         waits = std::make_shared<std::atomic<bool>>(false)](wire::Bytes frame) {
    if (waits->exchange(true)) return;
    loop_.post([this, node, waits, frame = std::move(frame)] {
      *waits = false;
      on_message(node, frame);
    });
  };
  handlers.on_state = [this, node = info.id, number](LinkState state, const std::string& why) {
    loop_.post([this, node, number, state, why] { on_state(node, number, state, why); });
  };
  handlers.on_room = [this, node = info.id] {
    loop_.post([this, node] {
      if (const auto at = peers_.find(node); at != peers_.end() && at->second.released) release(node);
    });
  };
  ConnectOptions options{*endpoint, *key, keys_, Duration::zero()};
  auto client = transport_.connect(std::move(options), std::move(handlers));
  if (!client) return unusable(client.error());
  Peer& peer = peers_[info.id];
  peer.number = number;
  peer.stuck = false;
  close(std::exchange(peer.client, *std::move(client)));
}

void PeerLinks::disconnect(NodeId node) {
  const auto at = peers_.find(node);
  if (at == peers_.end()) return;
  close(std::move(at->second.client));
  peers_.erase(at);
}

void PeerLinks::close(std::unique_ptr<LinkClient> client) {
  if (client == nullptr) return;
  std::erase_if(closing_, [](Closing& closing) {
    if (!*closing.done) return false;
    closing.thread.join();
    return true;
  });
  auto done = std::make_shared<std::atomic<bool>>(false);
  closing_.push_back({done, start_quiet_thread([done, client = std::move(client)]() mutable {
                        client.reset();
                        *done = true;
                      })});
}

void PeerLinks::on_state(NodeId node, std::uint64_t number, LinkState state, const std::string& why) {
  const auto at = peers_.find(node);
  if (at == peers_.end() || at->second.number != number) return;
  if (state == LinkState::kConnected) hooks_.tell(PeerConnected{node});
  if (state == LinkState::kLost) hooks_.tell(PeerLost{node, true, why});
}

/// A node says one thing only over our own connection to it: that what we wait for may never come.
void PeerLinks::on_message(NodeId node, const wire::Bytes& frame) {
  const auto header = wire::decode_header(frame);
  if (!header || header->kind != wire::FrameKind::kControl) return;
  const auto message = wire::decode_control(*header, wire::ByteView(frame).subspan(wire::kHeaderBytes));
  const auto* lost = message ? std::get_if<wire::NodeLost>(&*message) : nullptr;
  if (lost != nullptr && lost->node == node) hooks_.tell(PeerFailed{node, lost->reason});
}

void PeerLinks::push(Peer& peer, const wire::FrameHeader& header, wire::Bytes frame) {
  peer.held_bytes += frame.size();
  peer.held.push_back({header, std::move(frame)});
}

void PeerLinks::hold(NodeId node, const wire::FrameHeader& header, wire::Bytes frame) {
  push(peers_[node], header, std::move(frame));
}

void PeerLinks::release(NodeId node) {
  const auto at = peers_.find(node);
  if (at == peers_.end() || at->second.client == nullptr) return;
  Peer& peer = at->second;
  peer.released = true;
  while (!peer.held.empty()) {
    Held& first = peer.held.front();
    const std::size_t bytes = first.frame.size();
    const Sent sent = peer.client->send(std::move(first.frame));
    if (sent == Sent::kFull || sent == Sent::kClosed) return;  // room, or the loss, is told
    peer.held_bytes -= bytes;
    peer.held.pop_front();
  }
  peer.released = false;
}

void PeerLinks::refuse_held(NodeId node, const ErrorInfo& error) {
  const auto at = peers_.find(node);
  if (at == peers_.end()) return;
  at->second.held_bytes = 0;
  at->second.released = false;
  for (const auto& held : std::exchange(at->second.held, {})) hooks_.refuse(held.header, error);
}

bool PeerLinks::send(NodeId node, const wire::FrameHeader& header, wire::Bytes frame) {
  Peer& peer = peers_[node];
  const ErrorInfo unavailable{ErrorCode::kUnavailable, "the actor cannot be reached now",
                              "the link to its node is full or broke", "call it again later"};
  Sent sent = Sent::kClosed;
  if (!peer.held.empty()) {
    sent = Sent::kFull;
  } else if (peer.client != nullptr) {
    sent = peer.client->send(std::move(frame));
  }
  if (sent == Sent::kQueued) return true;
  if (sent == Sent::kFull) {
    switch (when_full(header, peer.held_bytes, stuck_bytes_)) {
      case WhenFull::kKeep:
        peer.released = true;
        push(peer, header, std::move(frame));
        return true;
      case WhenFull::kClose:
        if (!std::exchange(peer.stuck, true)) hooks_.tell(PeerStuck{node, peer.held_bytes});
        return false;
      case WhenFull::kRefuse:
        break;
    }
  }
  if (!wire::wants_reply(header)) return false;
  hooks_.refuse(header, unavailable);
  return true;
}

}  // namespace troupe::node
