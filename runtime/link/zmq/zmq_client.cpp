#include "runtime/link/zmq/zmq_client.hpp"

#include <algorithm>
#include <array>

#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"

namespace troupe::zmq_link {

namespace {

constexpr int kFramesPerTurn = 256;
constexpr Duration kIdleWait = std::chrono::seconds(1);
constexpr Duration kConnectTimeout = std::chrono::seconds(5);
// TCP, then the handshake, then some slack: libzmq reports nothing when a name does not resolve.
constexpr Duration kAttemptTimeout = kConnectTimeout + kHandshakeTimeout + std::chrono::seconds(1);
constexpr Duration kFirstBackOff = std::chrono::milliseconds(50);
constexpr Duration kLastBackOff = std::chrono::seconds(2);
// A server that is killed in the middle of a handshake looks like one that refuses it; not so twice.
constexpr unsigned kHandshakesToRefuse = 2;

constexpr const char* kNobodyAnswers = "nobody answers there";
constexpr const char* kNoHandshake =
    "what answers there did not complete the handshake: it is no troupe head, or its key is another one";
constexpr const char* kKeyRefused =
    "it does not accept our key: unknown, revoked, or a token used or run out";

constexpr int kWatchedEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                               ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED;

}  // namespace

ZmqClient::Attempt::Attempt(zmq::context_t& context, const ConnectOptions& options, ReassemblyBudget& budget)
    : socket(context, zmq::socket_type::dealer), monitor(context, socket, kWatchedEvents), in(budget) {
  set_common_options(socket, options.keys);
  socket.set(zmq::sockopt::curve_serverkey,
             zmq::const_buffer(options.server_key.bytes.data(), options.server_key.bytes.size()));
  // One socket a connection: what was queued for one can never arrive on the next.
  socket.set(zmq::sockopt::reconnect_ivl, -1);
  socket.set(zmq::sockopt::immediate, true);
  socket.set(zmq::sockopt::connect_timeout, millis(kConnectTimeout));
  socket.set(zmq::sockopt::ipv6, true);  // names may resolve to either
}

Result<std::unique_ptr<MachineClient>> ZmqClient::start(ConnectOptions options, ClientHandlers handlers,
                                                        const Clock& clock) {
  if (options.address.host.empty() || options.address.port == 0) {
    return ErrorInfo{ErrorCode::kBadConfig, "cannot connect to " + to_string(options.address),
                     "that is no address of a head", "write HOST:PORT"};
  }
  auto wake = WakeFd::create();
  if (!wake) return wake.error();
  const Duration wait = options.wait;
  std::unique_ptr<ZmqClient> client(
      new ZmqClient(std::move(options), std::move(handlers), clock, std::move(*wake)));
  client->thread_ = start_quiet_thread([link = client.get()] { link->run(); });
  if (wait > Duration::zero()) {
    if (auto connected = client->wait_for_first(wait); !connected) return connected.error();
  }
  return std::unique_ptr<MachineClient>(std::move(client));
}

ZmqClient::ZmqClient(ConnectOptions options, ClientHandlers handlers, const Clock& clock, WakeFd wake)
    : options_(std::move(options)), handlers_(std::move(handlers)), clock_(clock), wake_(std::move(wake)) {}

ZmqClient::~ZmqClient() {
  stop_ = true;
  wake_.ring();
  if (thread_.joinable()) thread_.join();
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
    return ErrorInfo{ErrorCode::kRefused, what, kNoHandshake,
                     "check the address and that the token or key is of this cluster"};
  }
  return ErrorInfo{ErrorCode::kTimeout, what, why_.empty() ? kNobodyAnswers : why_,
                   "check that the head runs (troupe status there), the address, and firewalls"};
}

LinkState ZmqClient::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

bool ZmqClient::send(std::span<const std::byte> message) {
  if (message.size() > kMaxMessageBytes) return false;
  std::vector<std::byte> copy(message.begin(), message.end());
  {
    const std::lock_guard lock(mutex_);
    if (state_ != LinkState::kConnected || queued_messages_ >= kMaxQueuedMessages ||
        queued_bytes_ + copy.size() > kMaxQueuedBytes) {
      return false;
    }
    ++queued_messages_;
    queued_bytes_ += copy.size();
    queue_.push_back(std::move(copy));
  }
  wake_.ring();
  return true;
}

void ZmqClient::run() {
  Duration back_off = kFirstBackOff;
  while (!stop_) {
    bool was_up = false;
    try {
      was_up = make_attempt();
    } catch (const zmq::error_t& error) {  // out of descriptors: they may come back
      set_state(LinkState::kConnecting, std::string("cannot create a socket: ") + error.what());
    }
    back_off = was_up ? kFirstBackOff : std::min(back_off * 2, kLastBackOff);
    if (!stop_) pause(back_off);
  }
}

/// Connects and serves the connection until it is over. True when there was one.
bool ZmqClient::make_attempt() {
  Attempt attempt(context_, options_, budget_);
  attempt.deadline = clock_.now() + kAttemptTimeout;
  if (zmq_connect(attempt.socket.handle(), to_zmq_address(options_.address).c_str()) != 0) {
    end_attempt(attempt, LinkState::kConnecting, zmq_strerror(zmq_errno()));
  }
  while (!attempt.over) serve_attempt(attempt);
  return attempt.up;
}

/// One turn of the loop.
void ZmqClient::serve_attempt(Attempt& attempt) {
  const bool unsent = attempt.sending.has_value();
  const auto events = static_cast<short>(ZMQ_POLLIN | (unsent ? ZMQ_POLLOUT : 0));
  std::array<zmq_pollitem_t, 3> items = {{{attempt.socket.handle(), 0, events, 0},
                                          {attempt.monitor.handle(), 0, ZMQ_POLLIN, 0},
                                          {nullptr, wake_.fd(), ZMQ_POLLIN, 0}}};
  zmq_poll(items.data(), static_cast<int>(items.size()), millis(kIdleWait));
  wake_.clear();
  const Instant now = clock_.now();
  if (stop_) {
    if (attempt.up) say_last_words(attempt);
    attempt.over = true;
    return;
  }
  handle_events(attempt);
  // Also when the connection is over: what had arrived before is delivered first.
  for (int i = 0; (attempt.over || i < kFramesPerTurn) && attempt.up && receive_one(attempt); ++i) {
  }
  if (attempt.over) {
    const char* why = attempt.goodbye_heard ? "the other side ended" : "the connection broke";
    if (attempt.up) end_attempt(attempt, LinkState::kLost, why);
    return;
  }
  if (attempt.in.expire(now, kReassemblyTimeout)) {
    log(LogLevel::kWarning, "dropped a message of the head that did not arrive whole");
  }
  if (attempt.up) {
    pump(attempt);
  } else if (now >= attempt.deadline) {
    end_attempt(attempt, LinkState::kConnecting, std::string(kNobodyAnswers) + ", or its name is unknown");
  }
}

/// What is queued, then the goodbye. libzmq may lose what a socket that closes sent last, so the link stays open
/// until the server says that it heard all.
void ZmqClient::say_last_words(Attempt& attempt) {
  const Instant give_up = clock_.now() + kLinger;
  bool said = false;
  while (!attempt.over && clock_.now() < give_up) {
    if (!said && pump(attempt)) said = send_chunk(attempt.socket, nullptr, goodbye_chunk()) == 0;
    const auto events = static_cast<short>(ZMQ_POLLIN | (said ? 0 : ZMQ_POLLOUT));
    std::array<zmq_pollitem_t, 2> items = {
        {{attempt.socket.handle(), 0, events, 0}, {attempt.monitor.handle(), 0, ZMQ_POLLIN, 0}}};
    zmq_poll(items.data(), static_cast<int>(items.size()), millis(kBlockedRetry));
    while (receive_one(attempt)) {
    }
    handle_events(attempt);
  }
}

void ZmqClient::handle_events(Attempt& attempt) {
  attempt.monitor.drain([&](const Monitor::Event& event) {
    if (attempt.over) return;
    switch (event.kind) {
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        attempt.up = true;
        send_chunk(attempt.socket, nullptr, hello_chunk());
        set_state(LinkState::kConnected, "");
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        end_attempt(attempt, LinkState::kRefused, kKeyRefused);
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        end_attempt(attempt, LinkState::kRefused, kNoHandshake);
        break;
      default:  // DISCONNECTED, or CLOSED when TCP itself failed
        attempt.over = true;
        if (!attempt.up) end_attempt(attempt, LinkState::kConnecting, kNobodyAnswers);
    }
  });
}

void ZmqClient::end_attempt(Attempt& attempt, LinkState state, const std::string& why) {
  attempt.over = true;
  set_state(state, why);
}

bool ZmqClient::receive_one(Attempt& attempt) {
  zmq::message_t frame;
  if (zmq_msg_recv(frame.handle(), attempt.socket.handle(), ZMQ_DONTWAIT) < 0) return false;
  const auto chunk = decode_chunk({frame.data<std::byte>(), frame.size()});
  if (!chunk) {
    log(LogLevel::kWarning, "dropped a frame of the head: " + chunk.error().message());
    return true;
  }
  if (chunk->hello()) return true;
  if (chunk->goodbye()) {
    attempt.over = attempt.goodbye_heard = true;
    return true;
  }
  const auto whole = attempt.in.feed(*chunk, clock_.now());
  if (!whole) {
    log(LogLevel::kWarning, "dropped a message of the head: " + whole.error().message());
  } else if (*whole && handlers_.on_frame && !stop_) {
    handlers_.on_frame(**whole);
  }
  return true;
}

/// Sends what the pipe takes. False when something is left.
bool ZmqClient::pump(Attempt& attempt) {
  for (;;) {
    if (!attempt.sending) {
      const std::lock_guard lock(mutex_);
      if (queue_.empty()) return true;
      attempt.sending.emplace(++last_message_id_, std::move(queue_.front()));
      queue_.pop_front();
    }
    while (!attempt.sending->done()) {
      // Any error but a full pipe means that the connection is gone; its event comes next and clears all.
      if (send_chunk(attempt.socket, nullptr, attempt.sending->next()) != 0) return false;
      attempt.sending->advance();
    }
    const std::lock_guard lock(mutex_);
    --queued_messages_;
    queued_bytes_ -= attempt.sending->message_bytes();
    attempt.sending.reset();
  }
}

void ZmqClient::pause(Duration duration) {
  const Instant until = clock_.now() + duration;
  for (Instant now = clock_.now(); now < until && !stop_; now = clock_.now()) {
    zmq_pollitem_t bell{nullptr, wake_.fd(), ZMQ_POLLIN, 0};
    zmq_poll(&bell, 1, millis(until - now));
    wake_.clear();
  }
}

void ZmqClient::set_state(LinkState state, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    why_ = why;
    key_refused_ = state == LinkState::kRefused && why == kKeyRefused;
    failed_handshakes_ = state == LinkState::kRefused ? failed_handshakes_ + 1 : 0;
    if (state != LinkState::kConnected) {
      queue_.clear();
      queued_messages_ = 0;
      queued_bytes_ = 0;
    }
  }
  changed_.notify_all();
  if (handlers_.on_state && !stop_) handlers_.on_state(state, why);
}

}  // namespace troupe::zmq_link
