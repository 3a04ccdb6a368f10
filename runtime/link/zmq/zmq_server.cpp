#include "runtime/link/zmq/zmq_server.hpp"

#include <algorithm>
#include <cerrno>

#include "runtime/core/log.hpp"
#include "runtime/link/zmq/zmq_connection.hpp"
#include "runtime/security/bind_policy.hpp"

namespace troupe::zmq_link {
namespace {

// ZMQ_ZAP_ENFORCE_DOMAIN, which zmq.h declares for draft builds alone; the library knows it since 4.3.
constexpr int kZapEnforceDomain = 93;
/// How long a connection that closed may keep others waiting for what it had sent before.
constexpr Duration kLastWords = std::chrono::seconds(1);
constexpr Duration kSweepInterval = std::chrono::seconds(1);
/// What ZMTP and CURVE add to a frame, and to a second by a peer's heartbeats, at most.
constexpr std::uint64_t kFrameOverheadBytes = 64;
constexpr std::uint64_t kOverheadBytesASecond = 256;
/// What TCP received of a peer and ZeroMQ did not give us yet: its queue of whole frames, the kernel's
/// buffer, and room to spare. More is a message in parts, which ZeroMQ holds without a bound until its last
/// part comes.
constexpr std::uint64_t kMostHeldBytes = (std::uint64_t{kZmqQueuedFrames} << 20) + (std::uint64_t{96} << 20);
constexpr const char* kConnectionBroke = "the connection broke";
constexpr const char* kKeyRevoked =
    "its key is not valid (any more): it has left or was declared dead, or its token has run out";

ErrorInfo cannot_listen(const Endpoint& address, int error) {
  const std::string what = "cannot listen on " + to_string(address);
  switch (error) {
    case EADDRINUSE:
      return {ErrorCode::kIo, what, "another process uses that port",
              "stop it (troupe stop, if it is a cluster's head) or choose another port"};
    case EADDRNOTAVAIL:
    case ENODEV:
      return {ErrorCode::kIo, what, "this machine does not have that address",
              "give one of its own addresses (ip address lists them), or 0.0.0.0 for all"};
    case EACCES:
      return {ErrorCode::kIo, what, "ports below 1024 need a privilege", "choose a port from 1024 up"};
    default:
      return {ErrorCode::kIo, what, zmq_strerror(error), "choose another address or port"};
  }
}

}  // namespace

Result<std::unique_ptr<LinkServer>> ZmqServer::start(ZmqLoop& loop, ServeOptions options,
                                                     ServerHandlers handlers) {
  TROUPE_ASSERT(options.authorizer != nullptr, "a server without an authorizer");
  if (auto allowed = check_bind(options.address, true); !allowed) return allowed.error();
  std::unique_ptr<ZmqServer> server(new ZmqServer(loop, options, std::move(handlers)));
  if (auto opened = server->open(options); !opened) return opened.error();
  server->is_added_ = true;
  loop.add(*server);
  return std::unique_ptr<LinkServer>(std::move(server));
}

ZmqServer::ZmqServer(ZmqLoop& loop, ServeOptions options, ServerHandlers handlers)
    : loop_(loop),
      authorizer_(std::move(options.authorizer)),
      handlers_(std::move(handlers)),
      queue_bytes_(options.queue_bytes),
      broken_(LogLevel::kWarning),
      strangers_(options.refusals) {}

Result<void> ZmqServer::open(const ServeOptions& options) {
  domain_ = loop_.zap().add_domain(authorizer_, options.refusals);
  socket_.emplace(loop_.context(), zmq::socket_type::router);
  set_common_options(*socket_, options.keys);
  socket_->set(zmq::sockopt::curve_server, true);
  socket_->set(zmq::sockopt::zap_domain, domain_);
  const int enforce = 1;
  const int rc = zmq_setsockopt(socket_->handle(), kZapEnforceDomain, &enforce, sizeof enforce);
  TROUPE_ASSERT(rc == 0, "this libzmq cannot enforce the ZAP domain");
  // A send to a peer that is gone or whose pipe is full must say so instead of dropping the frame.
  socket_->set(zmq::sockopt::router_mandatory, true);
  monitor_.emplace(
      loop_.context(), *socket_,
      ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED);
  return bind(options.address);
}

Result<void> ZmqServer::bind(const Endpoint& address) {
  Endpoint numeric = address;
  if (numeric.host == "localhost") numeric.host = "127.0.0.1";
  socket_->set(zmq::sockopt::ipv6, is_ipv6(numeric.host));
  const std::string at = numeric.port == 0
                             ? "tcp://" + to_string(numeric).substr(0, to_string(numeric).rfind(':')) + ":*"
                             : to_zmq_address(numeric);
  if (zmq_bind(socket_->handle(), at.c_str()) != 0) return cannot_listen(address, zmq_errno());
  const std::string bound = socket_->get(zmq::sockopt::last_endpoint);
  const auto actual = parse_endpoint(std::string_view(bound).substr(std::string_view("tcp://").size()));
  if (!actual) return actual.error();
  address_ = {address.host, actual->port};
  return {};
}

ZmqServer::~ZmqServer() {
  stop_ = true;
  if (is_added_) {
    loop_.leave(*this);
  } else {
    close();
  }
}

void ZmqServer::close() {
  if (is_watched_) {
    loop_.forget(monitor_->socket());
    loop_.forget(*socket_);
  }
  monitor_.reset();
  socket_.reset();
  loop_.zap().remove_domain(domain_);
  is_over_ = true;
}

Sent ZmqServer::send(const PeerName& to, wire::Bytes&& frame) {
  if (frame.size() > kMaxFrameBytes) return Sent::kTooLarge;
  PeerPtr peer;
  {
    const std::lock_guard lock(mutex_);
    const auto at = by_name_.find(to);
    if (at == by_name_.end()) return Sent::kClosed;
    peer = at->second;
  }
  bool wake = false;
  const Sent sent = peer->out.push(std::move(frame), wake);
  if (wake) {
    {
      const std::lock_guard lock(mutex_);
      woken_.push_back(std::move(peer));
    }
    loop_.ready(*this);
  }
  return sent;
}

Instant ZmqServer::turn(Instant now) {
  if (!std::exchange(is_watched_, true)) {
    loop_.watch(*socket_, *this);
    loop_.watch(monitor_->socket(), *this);
  }
  handle_events(now);
  bool all_received = false;
  is_held_back_ = false;
  for (int i = 0; !all_received && i < kFramesATurn; ++i) {
    is_held_back_ = !stop_ && handlers_.may_receive && !handlers_.may_receive();
    if (is_held_back_) break;
    all_received = !receive_one(now);
  }
  if (!is_held_back_) drop_closed(all_received, now);
  const auto pumped = pump();
  sweep(now);
  if (stop_ && say_last_words(now) && give_port_back(now)) {
    close();
    return kNever;
  }
  if (pumped == SendQueue::Pumped::kMore) return now;
  if (is_held_back_) return now + kBlockedRetry;
  if (!all_received) return now;
  // Sending may have taken the news that something arrived off the descriptor.
  if ((socket_->get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) return now;
  return pumped == SendQueue::Pumped::kBlocked || stop_ ? now + kBlockedRetry : next_sweep_;
}

bool ZmqServer::receive_one(Instant now) {
  zmq::message_t id;
  if (zmq_msg_recv(id.handle(), socket_->handle(), ZMQ_DONTWAIT) < 0) return false;
  zmq::message_t frame;
  if (!id.more() || zmq_msg_recv(frame.handle(), socket_->handle(), ZMQ_DONTWAIT) < 0) return true;
  const bool alone = !frame.more();
  for (bool more = !alone; more;) {
    zmq::message_t part;
    if (zmq_msg_recv(part.handle(), socket_->handle(), ZMQ_DONTWAIT) < 0) break;
    more = part.more();
  }
  handle_frame(id.to_string(), frame, alone, now);
  return true;
}

void ZmqServer::handle_frame(const std::string& routing_id, const zmq::message_t& frame, bool alone,
                             Instant now) {
  const char* user = zmq_msg_gets(frame.handle(), "User-Id");
  TROUPE_ASSERT(user != nullptr, "a frame passed the ZAP handler without a key");
  wire::ByteView left{frame.data<std::byte>(), frame.size()};
  wire::ByteView packet;
  const auto at = peers_.find(routing_id);
  PeerPtr peer = at == peers_.end() ? nullptr : at->second;
  if (peer == nullptr || peer->user_id != user) {
    const bool is_packet = next_packet(left, packet);
    peer = admit(routing_id, user, zmq_msg_get(frame.handle(), ZMQ_SRCFD),
                 is_packet ? packet : wire::ByteView(), now);
    if (peer == nullptr) return;
  }
  peer->last_packet = now;
  peer->read_bytes += frame.size() + kFrameOverheadBytes;
  if (!authorized(*peer)) return break_off(peer, kKeyRevoked, now);
  while (!peer->in.is_closed() && next_packet(left, packet)) take_packet(peer, packet, now);
  if (!peer->in.is_closed() && (!left.empty() || !alone))
    break_off(peer, "something came that is no packet", now);
}

/// The first frame of a connection, or one of a connection whose session ended. Null: no session begins.
ZmqServer::PeerPtr ZmqServer::admit(const std::string& routing_id, const std::string& user_id, int fd,
                                    wire::ByteView hello, Instant now) {
  // A descriptor, or a name that a peer chose for its connection, is reported closed before it is used again.
  // So events first: what is left of an older connection ends before this one begins.
  handle_events(now);
  if (const auto at = peers_.find(routing_id); at != peers_.end())
    end_session(PeerPtr(at->second), kConnectionBroke, true, now);
  // Else it is what a connection had sent before its session ended, or before it was closed.
  if (!strangers_.contains(fd) || ended_.contains(routing_id)) return nullptr;
  auto peer = std::make_shared<Peer>(routing_id, user_id, budget_, queue_bytes_);
  peer->fd = fd;
  peer->since = now;
  const auto key = parse_public_key(user_id);
  TROUPE_ASSERT(key.ok(), "the ZAP handler wrote the key");
  const auto name = authorizer_->find(*key);
  const auto fed = peer->in.feed(hello);
  std::string why;
  if (!name) why = kKeyRevoked;
  if (!fed) why = fed.error().message();
  if (!why.empty()) {
    break_off(peer, why, now);
    return nullptr;
  }
  peer->key = *key;
  peer->name = *name;
  begin_session(peer, now);
  return peer;
}

void ZmqServer::begin_session(const PeerPtr& peer, Instant now) {
  strangers_.admitted(peer->fd);
  PeerPtr older;
  {
    const std::lock_guard lock(mutex_);
    PeerPtr& current = by_name_[peer->name];
    older = std::exchange(current, peer);
  }
  if (older != nullptr) {
    say_goodbye(*older, "a newer connection with the same key took its place");
    end_session(older, "", false, now);
  }
  peers_[peer->routing_id] = peer;
  by_fd_[peer->fd] = peer;
  wire::Bytes hello = frame_of(hello_packet());
  send_frame(*socket_, &peer->routing_id, hello);  // into an empty pipe
  if (handlers_.on_session && !stop_) handlers_.on_session(peer->name);
}

void ZmqServer::take_packet(const PeerPtr& peer, wire::ByteView packet, Instant now) {
  const auto fed = peer->in.feed(packet);
  if (!fed) {
    break_off(peer, fed.error().message(), now);
  } else if (*fed == Joiner::Fed::kGoodbye) {
    say_goodbye(*peer, "heard");
    end_session(peer, "the other side ended it: " + peer->in.reason(), true, now);
  } else if (*fed == Joiner::Fed::kMessage && handlers_.on_message && !stop_) {
    handlers_.on_message(peer->name, peer->in.take());
  }
}

/// Ends the session from our side, and tells the peer why. `peer` may have no session yet.
void ZmqServer::break_off(const PeerPtr& peer, const std::string& why, Instant now) {
  const std::string who = peer->name.empty() ? "the holder of key " + peer->user_id : peer->name;
  // Who revokes the key of a peer that was let in tells why.
  if (peer->name.empty() || authorized(*peer)) broken_("ended the link with " + who + ": " + why, now);
  say_goodbye(*peer, why);
  end_session(peer, why, true, now);
}

void ZmqServer::say_goodbye(Peer& peer, const std::string& why) {
  if (std::exchange(peer.goodbye_said, true)) return;
  wire::Bytes goodbye = frame_of(goodbye_packet(peer.out.sent_number(), why));
  peer.goodbye_said = send_frame(*socket_, &peer.routing_id, goodbye) == 0;
}

void ZmqServer::end_session(const PeerPtr& peer, const std::string& why, bool tell, Instant now) {
  peer->in.close();
  peer->out.close();
  peers_.erase(peer->routing_id);
  if (peer->fd >= 0) {
    by_fd_.erase(peer->fd);
    ended_[peer->routing_id] = {peer->fd, now + kLastWords};
  } else {
    std::erase(closed_, peer);
  }
  bool is_current = false;
  {
    const std::lock_guard lock(mutex_);
    const auto at = by_name_.find(peer->name);
    is_current = at != by_name_.end() && at->second == peer;
    if (is_current) by_name_.erase(at);
  }
  if (is_current && tell && handlers_.on_gone && !stop_) handlers_.on_gone(peer->name, why);
}

/// Notes which connections are closed. What they had sent before is still to be received.
void ZmqServer::handle_events(Instant now) {
  monitor_->drain([&](const Monitor::Event& event) {
    if (event.kind == ZMQ_EVENT_ACCEPTED) return strangers_.accepted(event.value, address_.port, now);
    if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return strangers_.refused();
    if (event.kind == ZMQ_EVENT_CLOSED) {
      listener_closed_ = true;
      return;
    }
    strangers_.closed(event.value, now);
    std::erase_if(ended_, [&](const auto& entry) { return entry.second.fd == event.value; });
    if (const auto closed = by_fd_.extract(event.value)) {
      closed.mapped()->fd = -1;
      closed.mapped()->closed_at = now;
      closed_.push_back(closed.mapped());
    }
  });
}

/// Ends the sessions of closed connections once their last words were heard, or soon when others never fall
/// silent.
void ZmqServer::drop_closed(bool all_received, Instant now) {
  std::vector<PeerPtr> dropped;
  std::copy_if(closed_.begin(), closed_.end(), std::back_inserter(dropped),
               [&](const PeerPtr& peer) { return all_received || now - peer->closed_at >= kLastWords; });
  for (const PeerPtr& peer : dropped) end_session(peer, kConnectionBroke, true, now);
}

bool ZmqServer::authorized(const Peer& peer) const {
  return authorizer_->find(peer.key) == peer.name;
}

bool ZmqServer::holds_too_much(const Peer& peer, Instant now) const {
  if (peer.fd < 0) return false;
  const auto seconds = static_cast<std::uint64_t>((now - peer.since) / std::chrono::seconds(1));
  const std::uint64_t expected = peer.read_bytes + seconds * kOverheadBytesASecond + kMostHeldBytes;
  return received_bytes(peer.fd, address_.port) > expected;
}

/// Sends what the peers' pipes take. kBlocked: some are full; kMore: some have more, and room.
SendQueue::Pumped ZmqServer::pump() {
  {
    const std::lock_guard lock(mutex_);
    sending_.insert(sending_.end(), std::make_move_iterator(woken_.begin()),
                    std::make_move_iterator(woken_.end()));
    woken_.clear();
  }
  std::sort(sending_.begin(), sending_.end());
  sending_.erase(std::unique(sending_.begin(), sending_.end()), sending_.end());
  auto all = SendQueue::Pumped::kAll;
  std::vector<PeerPtr> unfinished;
  for (PeerPtr& peer : std::exchange(sending_, {})) {
    // A key that was revoked is told nothing more; the sweep ends its session.
    const auto at = peers_.find(peer->routing_id);
    if (at == peers_.end() || at->second != peer || !authorized(*peer)) continue;
    const auto pumped = peer->out.pump(*socket_, &peer->routing_id);
    if (peer->out.take_room() && handlers_.on_room && !stop_) handlers_.on_room(peer->name);
    // kBroken: the connection is gone and its event is under way. The rest of its queue goes with it.
    if (pumped == SendQueue::Pumped::kAll || pumped == SendQueue::Pumped::kBroken) continue;
    if (all != SendQueue::Pumped::kMore) all = pumped;
    unfinished.push_back(std::move(peer));
  }
  sending_.insert(sending_.end(), std::make_move_iterator(unfinished.begin()),
                  std::make_move_iterator(unfinished.end()));
  return all;
}

/// What is queued, then the goodbyes. libzmq may lose what a socket that closes sent last, so the peers close
/// first, once they heard all. True when it is done, or has taken too long.
bool ZmqServer::say_last_words(Instant now) {
  if (!give_up_) give_up_ = now + kLinger;
  for (const auto& [routing_id, peer] : peers_) {
    const bool unsent = std::find(sending_.begin(), sending_.end(), peer) != sending_.end();
    if (!unsent) say_goodbye(*peer, "it ended");
  }
  return peers_.empty() || now >= *give_up_;
}

/// libzmq closes a port on a thread of its own: the next server on it must find it free. True when it is
/// closed.
bool ZmqServer::give_port_back(Instant now) {
  if (!unbound_) {
    unbound_ = now;
    listener_closed_ = false;
    const std::string bound = socket_->get(zmq::sockopt::last_endpoint);
    if (zmq_unbind(socket_->handle(), bound.c_str()) != 0) return true;
  }
  return listener_closed_ || now - *unbound_ >= kLastWords;
}

void ZmqServer::sweep(Instant now) {
  if (now < next_sweep_) return;
  next_sweep_ = now + kSweepInterval;
  std::vector<std::pair<PeerPtr, const char*>> broken;
  for (const auto& [routing_id, peer] : peers_) {
    if (!authorized(*peer)) {
      broken.emplace_back(peer, kKeyRevoked);
    } else if (holds_too_much(*peer, now)) {
      broken.emplace_back(peer, "it sends a message in parts without end");
    } else if (peer->in.pending() && !is_held_back_ && now - peer->last_packet >= kJoinTimeout) {
      broken.emplace_back(peer, "a message did not arrive whole: nothing more of it came for 30 s");
    }
  }
  for (const auto& [peer, why] : broken) break_off(peer, why, now);
  for (auto& [routing_id, ended] : ended_) {
    if (now >= ended.close_at) close_connection(ended.fd, address_.port);
  }
}

}  // namespace troupe::zmq_link
