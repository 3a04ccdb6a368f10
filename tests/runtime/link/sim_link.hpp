// Links between simulated hosts: the rules of a Link and of the Transport seam, over a queue, a clock that is told the
// time and a seed. One thread. Messages are delayed; links break; queues fill; a reconnect is a new session.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/random.hpp"
#include "runtime/link/fragment.hpp"
#include "runtime/link/transport.hpp"

namespace troupe::test {

/// The network: what is under way, in the order of its arrival. Every link of a simulation is made from one.
class SimNetwork {
 public:
  struct Options {
    Duration least_delay = std::chrono::microseconds(50);
    Duration most_delay = std::chrono::milliseconds(5);
    Duration back_off = std::chrono::milliseconds(100);  ///< of a client whose link broke
  };
  SimNetwork(ManualClock& clock, std::uint64_t seed) : SimNetwork(clock, seed, Options()) {}
  SimNetwork(ManualClock& clock, std::uint64_t seed, Options options) : clock_(clock), random_(seed), options_(options) {}

  /// The Transport of one host. The network must outlive it, and it its links.
  std::unique_ptr<Transport> host();

  /// Does what is due next. False: nothing is under way.
  bool step();
  void run_for(Duration duration);

  /// Breaks the link of that client: a random suffix of what is under way each way is lost; then both sides hear it.
  /// The client connects again after its back-off.
  void break_link(const std::string& client, const std::string& why);
  /// Until healed, nothing of that client arrives and nobody hears of it: a stopped process or a silent network.
  void pause(const std::string& client, bool on);
  std::uint64_t lost_messages() const { return lost_; }

 private:
  friend class SimServer;
  friend class SimClient;
  friend class SimTransport;
  struct Session;
  struct Event {
    Instant at;
    std::uint64_t order;
    std::function<void()> run;
    bool operator>(const Event& other) const { return std::pair(at, order) > std::pair(other.at, other.order); }
  };

  void after(Duration delay, std::function<void()> run) {
    events_.push({clock_.now() + delay, ++order_, std::move(run)});
  }
  Duration delay() {
    const auto spread = static_cast<std::uint64_t>((options_.most_delay - options_.least_delay).count());
    return options_.least_delay + Duration(static_cast<std::int64_t>(random_.below(spread + 1)));
  }

  ManualClock& clock_;
  SeededRandom random_;
  const Options options_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
  std::uint64_t lost_ = 0;
  std::uint16_t last_port_ = 1000;
  std::map<std::uint16_t, class SimServer*> servers_;  // by port
  std::map<std::string, class SimClient*> clients_;    // by name
  std::map<std::string, bool> paused_;
};

/// One direction of a session: messages in order, each with its own delay, none before the one sent ahead of it.
struct SimPipe {
  std::size_t limit = kLinkQueueBytes;
  std::deque<wire::Bytes> under_way;
  std::size_t bytes = 0;
  bool refused = false;
  Instant last_arrival{0};
  std::function<void(wire::Bytes)> deliver;
  std::function<void()> room;
};

struct SimNetwork::Session : std::enable_shared_from_this<SimNetwork::Session> {
  bool open = true;
  PeerName name;
  SimPipe to_server;
  SimPipe to_client;
  std::function<void(const std::string&)> server_hears_end;
  std::function<void(const std::string&)> client_hears_end;

  Sent send(SimNetwork& network, SimPipe& pipe, wire::Bytes&& frame) {
    TROUPE_ASSERT(frame.size() >= wire::kHeaderBytes, "a message is a whole frame");
    if (frame.size() > kMaxFrameBytes) return Sent::kTooLarge;
    if (!open) return Sent::kClosed;
    if (pipe.bytes >= pipe.limit) {
      pipe.refused = true;
      return Sent::kFull;
    }
    pipe.bytes += frame.size();
    pipe.under_way.push_back(std::move(frame));
    pipe.last_arrival = std::max(pipe.last_arrival, network.clock_.now() + network.delay());
    network.after(pipe.last_arrival - network.clock_.now(), [self = shared_from_this(), &network, &pipe] { self->arrive(network, pipe); });
    return Sent::kQueued;
  }
  void arrive(SimNetwork& network, SimPipe& pipe) {
    if (pipe.under_way.empty()) return;  // the link broke meanwhile
    if (network.paused_[name]) {
      network.after(std::chrono::milliseconds(1), [self = shared_from_this(), &network, &pipe] { self->arrive(network, pipe); });
      return;
    }
    wire::Bytes frame = std::move(pipe.under_way.front());
    pipe.under_way.pop_front();
    pipe.bytes -= frame.size();
    pipe.deliver(std::move(frame));
    if (open && pipe.bytes <= pipe.limit / 2 && std::exchange(pipe.refused, false)) pipe.room();
  }
  /// A prefix of what is under way arrives, then each side hears the end. `lossless`: all of it, as after a goodbye.
  void end(SimNetwork& network, const std::string& why, bool lossless = false) {
    if (!std::exchange(open, false)) return;
    for (SimPipe* pipe : {&to_server, &to_client}) {
      const std::size_t kept = lossless ? pipe->under_way.size() : network.random_.below(pipe->under_way.size() + 1);
      network.lost_ += pipe->under_way.size() - kept;
      std::deque<wire::Bytes> arriving = std::exchange(pipe->under_way, {});
      arriving.resize(kept);
      network.after(network.delay(), [self = shared_from_this(), pipe, why, arriving = std::make_shared<std::deque<wire::Bytes>>(std::move(arriving)), &network]() mutable {
        for (wire::Bytes& frame : *arriving) pipe->deliver(std::move(frame));
        (pipe == &self->to_server ? self->server_hears_end : self->client_hears_end)(why);
      });
    }
  }
};

class SimServer final : public LinkServer {
 public:
  SimServer(SimNetwork& network, ServeOptions options, ServerHandlers handlers)
      : network_(network), options_(std::move(options)), handlers_(std::move(handlers)) {
    if (options_.address.port == 0) options_.address.port = ++network_.last_port_;
    network_.servers_[options_.address.port] = this;
  }
  ~SimServer() override {
    *alive_ = false;
    network_.servers_.erase(options_.address.port);
    for (auto& [name, session] : std::exchange(sessions_, {})) session->end(network_, "the other side ended it: it ended", true);
  }
  Endpoint address() const override { return options_.address; }
  Sent send(const PeerName& to, wire::Bytes&& frame) override {
    if (frame.size() > kMaxFrameBytes) return Sent::kTooLarge;
    const auto at = sessions_.find(to);
    if (at == sessions_.end()) return Sent::kClosed;
    return at->second->send(network_, at->second->to_client, std::move(frame));
  }

 private:
  friend class SimClient;
  /// The server's half of a new session. False: the key is not known.
  bool accept(const std::shared_ptr<SimNetwork::Session>& session, const PublicKey& key) {
    const auto name = options_.authorizer->find(key);
    if (!name) return false;
    session->name = *name;
    session->to_client.limit = options_.queue_bytes;
    const auto is_mine = [this, alive = alive_, s = session.get()] {
      if (!*alive) return false;
      const auto at = sessions_.find(s->name);
      return at != sessions_.end() && at->second.get() == s;
    };
    session->to_server.deliver = [this, is_mine, s = session.get()](wire::Bytes frame) {
      if (is_mine() && handlers_.on_message) handlers_.on_message(s->name, std::move(frame));
    };
    session->to_client.room = [this, is_mine, s = session.get()] {
      if (is_mine() && handlers_.on_room) handlers_.on_room(s->name);
    };
    session->server_hears_end = [this, is_mine, s = session.get()](const std::string& why) {
      if (!is_mine()) return;
      const PeerName peer = s->name;
      sessions_.erase(peer);
      if (handlers_.on_gone) handlers_.on_gone(peer, why);
    };
    const auto older = std::exchange(sessions_[*name], session);
    if (older != nullptr) older->end(network_, "a newer connection with the same key took its place");
    if (handlers_.on_session) handlers_.on_session(*name);
    return true;
  }

  SimNetwork& network_;
  ServeOptions options_;
  ServerHandlers handlers_;
  std::map<PeerName, std::shared_ptr<SimNetwork::Session>> sessions_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class SimClient final : public LinkClient {
 public:
  SimClient(SimNetwork& network, ConnectOptions options, ClientHandlers handlers)
      : network_(network), options_(std::move(options)), handlers_(std::move(handlers)) {
    connect_after(network_.delay());
  }
  ~SimClient() override {
    *alive_ = false;
    forget();
    if (session_ != nullptr) session_->end(network_, "the other side ended it: it ended", true);
  }
  LinkState state() const override { return state_; }
  Sent send(wire::Bytes&& frame) override {
    if (frame.size() > kMaxFrameBytes) return Sent::kTooLarge;
    if (session_ == nullptr) return Sent::kClosed;
    return session_->send(network_, session_->to_server, std::move(frame));
  }

 private:
  friend class SimNetwork;
  void connect_after(Duration delay) {
    network_.after(delay, [this, alive = alive_] {
      if (*alive) connect();
    });
  }
  void connect() {
    const auto server = network_.servers_.find(options_.address.port);
    if (server == network_.servers_.end()) return fail(LinkState::kConnecting, "nobody answers there");
    if (server->second->options_.keys.public_key() != options_.server_key) return fail(LinkState::kRefused, "its key is another one");
    auto session = std::make_shared<SimNetwork::Session>();
    session->to_server.limit = options_.queue_bytes;
    const auto is_mine = [this, alive = alive_, s = session.get()] { return *alive && session_.get() == s; };
    session->to_client.deliver = [this, is_mine](wire::Bytes frame) {
      if (is_mine() && handlers_.on_message) handlers_.on_message(std::move(frame));
    };
    session->to_server.room = [this, is_mine] {
      if (is_mine() && handlers_.on_room) handlers_.on_room();
    };
    session->client_hears_end = [this, is_mine](const std::string& why) {
      if (!is_mine()) return;
      forget();
      session_.reset();
      fail(LinkState::kLost, why);
    };
    session_ = session;
    if (!server->second->accept(session, options_.keys.public_key())) {
      session_.reset();
      return fail(LinkState::kRefused, "it does not accept our key");
    }
    network_.clients_[session->name] = this;
    set_state(LinkState::kConnected, "");
  }
  void fail(LinkState state, const std::string& why) {
    connect_after(network_.options_.back_off + network_.delay());
    set_state(state, why);
  }
  void set_state(LinkState state, const std::string& why) {
    state_ = state;
    if (handlers_.on_state) handlers_.on_state(state, why);
  }
  void forget() {
    std::erase_if(network_.clients_, [this](const auto& entry) { return entry.second == this; });
  }

  SimNetwork& network_;
  const ConnectOptions options_;
  const ClientHandlers handlers_;
  LinkState state_ = LinkState::kConnecting;
  std::shared_ptr<SimNetwork::Session> session_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class SimTransport final : public Transport {
 public:
  explicit SimTransport(SimNetwork& network) : network_(network) {}
  Result<std::unique_ptr<LinkServer>> serve(ServeOptions options, ServerHandlers handlers) override {
    if (options.address.port != 0 && network_.servers_.contains(options.address.port)) {
      return ErrorInfo{ErrorCode::kIo, "cannot listen", "another process uses that port", ""};
    }
    return std::unique_ptr<LinkServer>(std::make_unique<SimServer>(network_, std::move(options), std::move(handlers)));
  }
  /// Never waits: a simulation has one thread. on_state tells.
  Result<std::unique_ptr<LinkClient>> connect(ConnectOptions options, ClientHandlers handlers) override {
    return std::unique_ptr<LinkClient>(std::make_unique<SimClient>(network_, std::move(options), std::move(handlers)));
  }

 private:
  SimNetwork& network_;
};

inline std::unique_ptr<Transport> SimNetwork::host() { return std::make_unique<SimTransport>(*this); }

inline bool SimNetwork::step() {
  if (events_.empty()) return false;
  Event event = events_.top();
  events_.pop();
  clock_.set(std::max(clock_.now(), event.at));
  event.run();
  return true;
}

inline void SimNetwork::run_for(Duration duration) {
  const Instant until = clock_.now() + duration;
  while (!events_.empty() && events_.top().at <= until) step();
  clock_.set(until);
}

inline void SimNetwork::break_link(const std::string& client, const std::string& why) {
  const auto at = clients_.find(client);
  if (at != clients_.end() && at->second->session_ != nullptr) at->second->session_->end(*this, why);
}

inline void SimNetwork::pause(const std::string& client, bool on) { paused_[client] = on; }

}  // namespace troupe::test
