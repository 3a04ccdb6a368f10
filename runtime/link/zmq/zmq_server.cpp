#include "runtime/link/zmq/zmq_server.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/security/bind_policy.hpp"

namespace troupe::zmq_link {

namespace {

// ZMQ_ZAP_ENFORCE_DOMAIN, which zmq.h declares for draft builds alone; the library knows it since 4.3.
constexpr int kZapEnforceDomain = 93;
constexpr int kFramesPerTurn = 256;
constexpr Duration kIdleWait = std::chrono::seconds(1);
constexpr Duration kLastWords = std::chrono::seconds(1);
constexpr Duration kSweepInterval = std::chrono::seconds(1);

/// Who is at the other end of a connection that libzmq accepted, for the log.
std::string peer_address(int fd) {
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  char host[NI_MAXHOST];
  const bool known = ::getpeername(fd, reinterpret_cast<sockaddr*>(&from), &length) == 0 &&
                     ::getnameinfo(reinterpret_cast<sockaddr*>(&from), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0;
  return known ? host : "an address that is gone";
}

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

Result<std::unique_ptr<MachineServer>> ZmqServer::start(ServeOptions options, ServerHandlers handlers,
                                                        const Clock& clock) {
  TROUPE_ASSERT(options.authorizer != nullptr, "a server without an authorizer");
  if (auto allowed = check_bind(options.address, true); !allowed) return allowed.error();
  auto wake = WakeFd::create();
  if (!wake) return wake.error();
  const Endpoint address = options.address;
  const LogLevel refusals = options.refusals;
  std::unique_ptr<ZmqServer> server(
      new ZmqServer(std::move(options), std::move(handlers), clock, std::move(*wake)));
  auto zap = ZapHandler::start(server->context_, server->authorizer_, refusals);
  if (!zap) return zap.error();
  server->zap_ = std::move(*zap);
  if (auto bound = server->bind(address); !bound) return bound.error();
  server->thread_ = start_quiet_thread([link = server.get()] { link->run(); });
  return std::unique_ptr<MachineServer>(std::move(server));
}

ZmqServer::ZmqServer(ServeOptions options, ServerHandlers handlers, const Clock& clock, WakeFd wake)
    : clock_(clock),
      authorizer_(std::move(options.authorizer)),
      handlers_(std::move(handlers)),
      noise_(options.refusals),
      wake_(std::move(wake)) {
  socket_.emplace(context_, zmq::socket_type::router);
  set_common_options(*socket_, options.keys);
  socket_->set(zmq::sockopt::curve_server, true);
  socket_->set(zmq::sockopt::zap_domain, std::string(kZapDomain));
  const int enforce = 1;
  const int rc = zmq_setsockopt(socket_->handle(), kZapEnforceDomain, &enforce, sizeof enforce);
  TROUPE_ASSERT(rc == 0, "this libzmq cannot enforce the ZAP domain");
  // A send to a peer that is gone or whose pipe is full must say so instead of dropping the frame.
  socket_->set(zmq::sockopt::router_mandatory, true);
  monitor_.emplace(context_, *socket_, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED);
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
  wake_.ring();
  if (thread_.joinable()) thread_.join();
  monitor_.reset();
  socket_.reset();
  zap_.reset();
}

bool ZmqServer::send(const PeerName& to, std::span<const std::byte> message) {
  if (message.size() > kMaxMessageBytes) return false;
  std::vector<std::byte> copy(message.begin(), message.end());
  {
    const std::lock_guard lock(mutex_);
    const auto at = by_name_.find(to);
    if (at == by_name_.end()) return false;
    Peer& peer = *at->second;
    if (peer.queued_messages >= kMaxQueuedMessages || peer.queued_bytes + copy.size() > kMaxQueuedBytes) {
      return false;
    }
    ++peer.queued_messages;
    peer.queued_bytes += copy.size();
    peer.queue.push_back(std::move(copy));
  }
  wake_.ring();
  return true;
}

void ZmqServer::run() {
  std::array<zmq_pollitem_t, 3> items = {{{socket_->handle(), 0, ZMQ_POLLIN, 0},
                                          {monitor_->handle(), 0, ZMQ_POLLIN, 0},
                                          {nullptr, wake_.fd(), ZMQ_POLLIN, 0}}};
  std::optional<Instant> give_up;  // set once the owner wants the link to end
  bool blocked = false;
  for (;;) {
    const Duration wait = blocked ? kBlockedRetry : kIdleWait;
    zmq_poll(items.data(), static_cast<int>(items.size()), millis(wait));
    wake_.clear();
    handle_events();
    const Instant now = clock_.now();
    if (stop_ && !give_up) give_up = now + kLinger;
    bool all_received = false;
    for (int i = 0; !all_received && i < kFramesPerTurn; ++i) all_received = !receive_one();
    drop_closed(all_received, now);
    blocked = !pump();
    if (give_up) {
      // libzmq may lose what a socket that closes sent last: the peers close first, once they heard all.
      for (const auto& [routing_id, peer] : peers_) {
        if (!blocked && !peer->goodbye_said) peer->goodbye_said = send_chunk(*socket_, &routing_id, goodbye_chunk()) == 0;
      }
      if (peers_.empty() || now >= *give_up) return;
      blocked = true;  // looks again soon
    }
    sweep(now);
  }
}

bool ZmqServer::receive_one() {
  zmq::message_t id;
  if (zmq_msg_recv(id.handle(), socket_->handle(), ZMQ_DONTWAIT) < 0) return false;
  zmq::message_t frame;
  if (!id.more() || zmq_msg_recv(frame.handle(), socket_->handle(), ZMQ_DONTWAIT) < 0) return true;
  bool extra = false;
  for (zmq::message_t part; frame.more() && (!extra || part.more());) {
    extra = true;
    if (zmq_msg_recv(part.handle(), socket_->handle(), ZMQ_DONTWAIT) < 0) break;
  }
  // A descriptor is reported closed before libzmq can use its number again. So events first: an older peer
  // that had this frame's descriptor is gone before the frame's sender takes the number over.
  handle_events();
  if (!extra) handle_frame(id.to_string(), frame);
  return true;
}

void ZmqServer::handle_frame(const std::string& routing_id, const zmq::message_t& frame) {
  const char* user = zmq_msg_gets(frame.handle(), "User-Id");
  const auto key = parse_public_key(user != nullptr ? user : "");
  TROUPE_ASSERT(key.ok(), "a frame passed the ZAP handler without a key");
  const auto at = peers_.find(routing_id);
  const auto name = authorizer_->find(*key);
  if (!name || (at != peers_.end() && !authorized(*at->second))) {
    drop(routing_id, true);
    return;
  }
  const auto chunk = decode_chunk({frame.data<std::byte>(), frame.size()});
  if (!chunk) {
    log(LogLevel::kWarning, "dropped a frame of " + *name + ": " + chunk.error().message());
    return;
  }
  if (chunk->hello()) {
    const int fd = zmq_msg_get(frame.handle(), ZMQ_SRCFD);
    if (at == peers_.end()) admit(routing_id, *key, *name, fd);
    return;
  }
  if (at == peers_.end()) return;  // replaced by a newer connection of the same name, or no hello yet
  if (chunk->goodbye()) {
    send_chunk(*socket_, &routing_id, goodbye_chunk());
    drop(routing_id, true);
    return;
  }
  auto whole = at->second->in.feed(*chunk, clock_.now());
  if (!whole) {
    log(LogLevel::kWarning, "dropped a message of " + *name + ": " + whole.error().message());
  } else if (*whole && handlers_.on_frame && !stop_) {
    handlers_.on_frame(*name, **whole);
  }
}

void ZmqServer::admit(const std::string& routing_id, const PublicKey& key, const PeerName& name, int fd) {
  const auto older = std::find_if(peers_.begin(), peers_.end(),
                                  [&](const auto& entry) { return entry.second->name == name; });
  if (older != peers_.end()) drop(std::string(older->first), false);
  strangers_.erase(fd);
  auto peer = std::make_unique<Peer>(routing_id, key, name, fd, budget_);
  {
    const std::lock_guard lock(mutex_);
    by_name_[name] = peer.get();
  }
  peers_[routing_id] = std::move(peer);
  if (handlers_.on_peer_connected && !stop_) handlers_.on_peer_connected(name);
}

void ZmqServer::drop(const std::string& routing_id, bool tell) {
  const auto at = peers_.find(routing_id);
  if (at == peers_.end()) return;
  const std::unique_ptr<Peer> peer = std::move(at->second);
  peers_.erase(at);
  {
    const std::lock_guard lock(mutex_);
    by_name_.erase(peer->name);
  }
  if (tell && handlers_.on_peer_gone && !stop_) handlers_.on_peer_gone(peer->name);
}

/// Notes which connections are closed. What they had sent before is still to be received.
void ZmqServer::handle_events() {
  monitor_->drain([this](const Monitor::Event& event) {
    if (event.kind == ZMQ_EVENT_ACCEPTED) {
      strangers_[event.value] = peer_address(event.value);
      return;
    }
    if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
      ++refused_;
      return;
    }
    if (const auto stranger = strangers_.extract(event.value)) {
      // The ZAP handler has told of those that it refused.
      if (refused_ > 0) {
        --refused_;
      } else {
        noise_("closed a connection from " + stranger.mapped() + ": no handshake of ours came from there", clock_.now());
      }
    }
    const auto closed = std::find_if(peers_.begin(), peers_.end(), [&](const auto& entry) {
      return entry.second->fd >= 0 && entry.second->fd == event.value;
    });
    if (closed == peers_.end()) return;
    closed->second->fd = -1;
    closed->second->closed_at = clock_.now();
  });
}

/// Drops closed connections once their last words were heard, or soon when others never fall silent.
void ZmqServer::drop_closed(bool all_received, Instant now) {
  std::vector<std::string> closed;
  for (const auto& [routing_id, peer] : peers_) {
    if (peer->fd < 0 && (all_received || now - peer->closed_at >= kLastWords)) closed.push_back(routing_id);
  }
  for (const std::string& routing_id : closed) drop(routing_id, true);
}

bool ZmqServer::authorized(const Peer& peer) const {
  return authorizer_->find(peer.key) == peer.name;
}

bool ZmqServer::pump() {
  bool all_sent = true;
  std::vector<std::string> gone;
  for (const auto& [routing_id, peer] : peers_) {
    if (!pump_peer(*peer)) all_sent = false;
    if (peer->sending && !authorized(*peer)) gone.push_back(routing_id);
  }
  for (const std::string& routing_id : gone) drop(routing_id, true);
  return all_sent;
}

/// Sends what the peer's pipe takes. False when something is left.
bool ZmqServer::pump_peer(Peer& peer) {
  for (;;) {
    if (!peer.sending) {
      const std::lock_guard lock(mutex_);
      if (peer.queue.empty()) return true;
      peer.sending.emplace(++last_message_id_, std::move(peer.queue.front()));
      peer.queue.pop_front();
    }
    if (!authorized(peer)) return false;
    while (!peer.sending->done()) {
      const int error = send_chunk(*socket_, &peer.routing_id, peer.sending->next());
      if (error == EAGAIN) return false;
      // EHOSTUNREACH: the connection is gone and its event is under way. The rest of its queue goes with it.
      if (error != 0) break;
      peer.sending->advance();
    }
    const std::lock_guard lock(mutex_);
    --peer.queued_messages;
    peer.queued_bytes -= peer.sending->message_bytes();
    peer.sending.reset();
  }
}

void ZmqServer::sweep(Instant now) {
  if (now < next_sweep_) return;
  next_sweep_ = now + kSweepInterval;
  std::vector<std::string> revoked;
  for (const auto& [routing_id, peer] : peers_) {
    if (peer->in.expire(now, kReassemblyTimeout)) {
      log(LogLevel::kWarning, "dropped a message of " + peer->name + " that did not arrive whole");
    }
    if (!authorized(*peer)) revoked.push_back(routing_id);
  }
  for (const std::string& routing_id : revoked) drop(routing_id, true);
}

}  // namespace troupe::zmq_link
