#include "runtime/link/zmq/zmq_client.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "runtime/core/fd.hpp"
#include "runtime/core/log.hpp"
#include "runtime/link/key_refused.hpp"

namespace troupe::zmq_link {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(5);
// TCP, then the handshake, then some slack: libzmq reports nothing when a name does not resolve.
constexpr Duration kAttemptTimeout = kConnectTimeout + kHandshakeTimeout + std::chrono::seconds(1);
constexpr Duration kFirstBackOff = std::chrono::milliseconds(50);
constexpr Duration kLastBackOff = std::chrono::seconds(2);
// A server that is killed in the middle of a handshake looks like one that refuses it; not so twice.
constexpr unsigned kHandshakesToRefuse = 2;

constexpr const char* kNobodyAnswers = "nobody answers there";
constexpr const char* kNoHandshake =
    "what answers there did not complete the handshake: it went meanwhile, its key is another one, or it is "
    "no "
    "troupe head";
constexpr const char* kSilent =
    "it takes connections and does not answer: it is stopped or too busy, or no troupe head";

constexpr int kWatchedEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                               ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED;

/// Why nobody answers at `address`, as far as this host knows: it looks for a way there, and sends nothing.
std::string nobody_answers(const Endpoint& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  if (::inet_pton(AF_INET, address.host.c_str(), &to.sin_addr) != 1) return kNobodyAnswers;
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ||
      errno != ENETUNREACH)
    return kNobodyAnswers;
  const bool is_loopback = address.host.starts_with("127.");
  return std::string("the network is unreachable: is the ") + (is_loopback ? "loopback" : "network") +
         " interface up?";
}

}  // namespace

ZmqClient::Attempt::Attempt(ZmqLoop& its_loop, const ConnectOptions& options, LoopMember& member)
    : loop(its_loop),
      socket(loop.context(), zmq::socket_type::dealer),
      monitor(loop.context(), socket, kWatchedEvents),
      in({Joiner::Takes::kFrame, true, nullptr}),
      out(std::make_shared<SendQueue>(options.queue_bytes)) {
  set_common_options(socket, options.keys);
  socket.set(zmq::sockopt::curve_serverkey,
             zmq::const_buffer(options.server_key.bytes.data(), options.server_key.bytes.size()));
  // One socket a session: what was queued for one can never arrive on the next.
  socket.set(zmq::sockopt::reconnect_ivl, -1);
  socket.set(zmq::sockopt::immediate, true);
  socket.set(zmq::sockopt::connect_timeout, millis(kConnectTimeout));
  socket.set(zmq::sockopt::ipv6, true);  // names may resolve to either
  loop.watch(socket, member);
  loop.watch(monitor.socket(), member);
}

ZmqClient::Attempt::~Attempt() {
  loop.forget(monitor.socket());
  loop.forget(socket);
}

Result<std::unique_ptr<LinkClient>> ZmqClient::start(ZmqLoop& loop, ConnectOptions options,
                                                     ClientHandlers handlers) {
  if (options.address.host.empty() || options.address.port == 0) {
    return ErrorInfo{ErrorCode::kBadConfig, "cannot connect to " + to_string(options.address),
                     "that is no address of a head", "write HOST:PORT"};
  }
  const Duration wait = options.wait;
  TROUPE_ASSERT(wait <= Duration::zero() || !loop.is_this_thread(),
                "a handler must not wait for a connection");
  std::unique_ptr<ZmqClient> client(new ZmqClient(loop, std::move(options), std::move(handlers)));
  loop.add(*client);
  if (wait > Duration::zero()) {
    if (auto connected = client->wait_for_first(wait); !connected) return connected.error();
  }
  return std::unique_ptr<LinkClient>(std::move(client));
}

ZmqClient::ZmqClient(ZmqLoop& loop, ConnectOptions options, ClientHandlers handlers)
    : loop_(loop), options_(std::move(options)), handlers_(std::move(handlers)), back_off_(kFirstBackOff) {}

ZmqClient::~ZmqClient() {
  stop_ = true;
  loop_.leave(*this);
}

Result<void> ZmqClient::wait_for_first(Duration wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [this] {
    return state_ == LinkState::kConnected || key_refused_ || failed_handshakes_ >= kHandshakesToRefuse;
  });
  if (state_ == LinkState::kConnected) return {};
  const std::string what = "cannot connect to " + to_string(options_.address);
  if (key_refused_) {
    return ErrorInfo{ErrorCode::kRefused, what, kKeyRefused, "ask the head's owner for a new join token"};
  }
  if (failed_handshakes_ >= kHandshakesToRefuse) {
    return ErrorInfo{ErrorCode::kRefused, what, why_,
                     "check the address and that the token or key is of this cluster"};
  }
  return ErrorInfo{ErrorCode::kTimeout, what, why_.empty() ? nobody_answers(options_.address) : why_,
                   "check that the head runs (troupe status there), the address, and firewalls"};
}

LinkState ZmqClient::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Sent ZmqClient::send(wire::Bytes&& frame) {
  std::shared_ptr<SendQueue> queue;
  {
    const std::lock_guard lock(mutex_);
    queue = queue_;
  }
  if (queue == nullptr) return frame.size() > kMaxFrameBytes ? Sent::kTooLarge : Sent::kClosed;
  bool wake = false;
  const Sent sent = queue->push(std::move(frame), wake);
  if (wake) loop_.ready(*this);
  return sent;
}

Instant ZmqClient::turn(Instant now) {
  if (attempt_ == nullptr) {
    if (stop_) {
      is_over_ = true;
      return kNever;
    }
    if (now < next_attempt_ || !begin_attempt(now)) return next_attempt_;
  }
  const Instant next = serve_attempt(*attempt_, now);
  if (!attempt_->over) return next;
  end_attempt(now);
  is_over_ = stop_;
  return next_attempt_;
}

bool ZmqClient::begin_attempt(Instant now) {
  try {
    attempt_ = std::make_unique<Attempt>(loop_, options_, static_cast<LoopMember&>(*this));
    attempt_->begun = now;
    attempt_->deadline = now + kAttemptTimeout;
    if (zmq_connect(attempt_->socket.handle(), to_zmq_address(options_.address).c_str()) == 0) return true;
    attempt_->end_state = LinkState::kConnecting;
    attempt_->why = zmq_strerror(zmq_errno());
  } catch (const zmq::error_t& error) {  // out of descriptors: they may come back
    set_state(LinkState::kConnecting, std::string("cannot create a socket: ") + error.what());
  }
  end_attempt(now);
  return false;
}

/// What is there to read, then what there is to send. Returns when to be called again.
Instant ZmqClient::serve_attempt(Attempt& attempt, Instant now) {
  handle_events(attempt, now);
  // Takes the news off the descriptor while there is nothing to receive yet.
  if (!attempt.secured) static_cast<void>(attempt.socket.get(zmq::sockopt::events));
  // Also when the connection is over: what had arrived before is delivered first.
  bool all_received = false;
  for (int i = 0; attempt.secured && !all_received && (attempt.over || i < kFramesATurn); ++i) {
    all_received = !receive_one(attempt, now) || attempt.in.is_closed();
  }
  if (attempt.over) return now;
  if (stop_) return say_last_words(attempt, now);
  if (!attempt.up) {
    if (now < attempt.deadline) return attempt.deadline;
    attempt.over = true;
    attempt.end_state = LinkState::kConnecting;
    attempt.why = nobody_answers(options_.address);
    if (attempt.why == kNobodyAnswers) attempt.why += ", or its name is unknown";
    return now;
  }
  const auto pumped = attempt.out->pump(attempt.socket, nullptr);
  if (attempt.out->take_room() && handlers_.on_room) handlers_.on_room();
  if (attempt.in.pending() && now - attempt.last_packet >= kJoinTimeout) {
    break_off(attempt, "a message did not arrive whole: nothing more of it came for 30 s");
    return now;
  }
  if (!all_received || pumped == SendQueue::Pumped::kMore) return now;
  // Sending may have taken the news that something arrived off the descriptor.
  if ((attempt.socket.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) return now;
  const Instant expiry = attempt.in.pending() ? attempt.last_packet + kJoinTimeout : kNever;
  return pumped == SendQueue::Pumped::kAll ? expiry : now + kBlockedRetry;
}

/// What is queued, then the goodbye. libzmq may lose what a socket that closes sent last, so the session
/// stays open until the server says that it heard all.
Instant ZmqClient::say_last_words(Attempt& attempt, Instant now) {
  if (attempt.give_up == kNever) attempt.give_up = now + kLinger;
  attempt.over = !attempt.up || now >= attempt.give_up;
  if (!attempt.goodbye_said && attempt.out->pump(attempt.socket, nullptr) == SendQueue::Pumped::kAll) {
    wire::Bytes goodbye = frame_of(goodbye_packet(attempt.out->sent_number(), "it ended"));
    attempt.goodbye_said = send_frame(attempt.socket, nullptr, goodbye) == 0;
  }
  return now + kBlockedRetry;
}

void ZmqClient::handle_events(Attempt& attempt, Instant now) {
  attempt.monitor.drain([&](const Monitor::Event& event) {
    if (attempt.over) return;
    attempt.over = event.kind != ZMQ_EVENT_HANDSHAKE_SUCCEEDED && event.kind != ZMQ_EVENT_CONNECTED;
    switch (event.kind) {
      case ZMQ_EVENT_CONNECTED: {  // what who waits is told, until more is known
        const std::lock_guard lock(mutex_);
        if (why_.empty()) why_ = kSilent;
        break;
      }
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: {
        attempt.secured = true;
        wire::Bytes hello = frame_of(hello_packet());
        send_frame(attempt.socket, nullptr, hello);
        break;
      }
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        attempt.end_state = LinkState::kRefused;
        attempt.why = kKeyRefused;
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        // A server that is stopped says nothing: that is no refusal.
        attempt.end_state =
            now - attempt.begun < kHandshakeTimeout ? LinkState::kRefused : LinkState::kConnecting;
        attempt.why = attempt.end_state == LinkState::kRefused ? kNoHandshake : kSilent;
        break;
      default:  // DISCONNECTED, or CLOSED when TCP itself failed
        attempt.end_state = attempt.up ? LinkState::kLost : LinkState::kConnecting;
        attempt.why = attempt.up ? "the connection broke" : nobody_answers(options_.address);
    }
  });
}

/// False when nothing is there.
bool ZmqClient::receive_one(Attempt& attempt, Instant now) {
  zmq::message_t frame;
  if (zmq_msg_recv(frame.handle(), attempt.socket.handle(), ZMQ_DONTWAIT) < 0) return false;
  attempt.last_packet = now;
  wire::ByteView left{frame.data<std::byte>(), frame.size()};
  wire::ByteView packet;
  while (!attempt.in.is_closed() && next_packet(left, packet)) take_packet(attempt, packet);
  if (!attempt.in.is_closed() && (!left.empty() || frame.more()))
    break_off(attempt, "something came that is no packet");
  return true;
}

void ZmqClient::take_packet(Attempt& attempt, wire::ByteView packet) {
  const auto fed = attempt.in.feed(packet);
  if (!fed) {
    break_off(attempt, fed.error().message());
  } else if (*fed == Joiner::Fed::kHello) {
    attempt.up = true;
    set_state(LinkState::kConnected, "", attempt.out);
  } else if (*fed == Joiner::Fed::kGoodbye) {
    attempt.over = true;
    attempt.end_state = attempt.up ? LinkState::kLost : LinkState::kRefused;
    attempt.why = "the other side ended it: " + attempt.in.reason();
  } else if (*fed == Joiner::Fed::kMessage && handlers_.on_message && !stop_) {
    handlers_.on_message(attempt.in.take());
  }
}

/// Ends the session from our side, and tells the server why.
void ZmqClient::break_off(Attempt& attempt, const std::string& why) {
  log(LogLevel::kWarning, "ended the link to " + to_string(options_.address) + ": " + why);
  wire::Bytes goodbye = frame_of(goodbye_packet(attempt.out->sent_number(), why));
  send_frame(attempt.socket, nullptr, goodbye);
  attempt.over = true;
  attempt.end_state = attempt.up ? LinkState::kLost : LinkState::kRefused;
  attempt.why = why;
}

void ZmqClient::end_attempt(Instant now) {
  const bool was_up = attempt_ != nullptr && attempt_->up;
  if (attempt_ != nullptr) {
    attempt_->out->close();
    set_state(attempt_->end_state, attempt_->why);
  }
  attempt_.reset();
  back_off_ = was_up ? kFirstBackOff : std::min(back_off_ * 2, kLastBackOff);
  next_attempt_ = now + back_off_;
}

void ZmqClient::set_state(LinkState state, const std::string& why, std::shared_ptr<SendQueue> queue) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    why_ = why;
    queue_ = std::move(queue);
    key_refused_ = state == LinkState::kRefused && why == kKeyRefused;
    failed_handshakes_ = state == LinkState::kRefused ? failed_handshakes_ + 1 : 0;
  }
  changed_.notify_all();
  if (handlers_.on_state && !stop_) handlers_.on_state(state, why);
}

}  // namespace troupe::zmq_link
