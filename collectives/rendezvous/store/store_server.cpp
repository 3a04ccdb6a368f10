#include "collectives/rendezvous/store/store_server.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/rendezvous/store/store_core.hpp"
#include "collectives/watch_silence.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/log_limiter.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

constexpr std::uint64_t kListenerId = 0;
constexpr std::uint64_t kWakeId = 1;
constexpr std::uint64_t kLocalListenerId = 2;
constexpr std::uint64_t kFirstClient = 3;
constexpr std::size_t kReadBytes = 16 * 1024;
constexpr std::size_t kMaxUnsent = std::size_t{64} << 20;  ///< to one client that does not read

/// One connection: in the middle of its handshake, or open, or a lookout.
struct Connection {
  UniqueFd fd;
  int rank = 0;
  std::optional<Departure> lookout;  ///< of `rank`, if it ends: to one that has not joined
  // The handshake.
  std::optional<AcceptorHandshake> handshake;
  std::array<std::byte, sizeof(HelloBytes)> in{};
  std::size_t in_bytes = 0;
  bool said_hello = false;
  Instant deadline{0};
  // Open.
  std::optional<SecretSealer> sealer;
  std::optional<SecretOpener> opener;
  std::vector<std::byte> out;  ///< not sent yet
  std::size_t out_sent = 0;
  bool blocked = false;  ///< the socket took no more of `out`
  bool deaf = false;     ///< it has hung up, and what it said before may not have been read

  void open(const SessionKey& send_key, const SessionKey& receive_key) {
    sealer.emplace(send_key);
    opener.emplace(receive_key, kMaxStoreBody);
    handshake.reset();
  }
};

class ServerThread final : public StoreServer {
 public:
  ServerThread(DataListener listener, const Options& options)
      : listener_(std::move(listener)),
        key_(options.key),
        self_{.world_size = options.world_size, .rank = options.rank, .purpose = "store"},
        handshake_timeout_(options.handshake_timeout),
        core_(options.incarnation) {
    for (const auto& [rank, departure] : options.gone) (void)core_.on_lost(rank, departure);
  }
  ~ServerThread() override { close(Duration::zero(), false); }

  Result<void> start() {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_ || !wake_) return io_error("cannot serve the store", errno, "raise ulimit -n");
    listen_locally();
    watch_listeners();
    watch(wake_.get(), kWakeId, EPOLLIN);
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return io_error("cannot make a socket pair", errno, "raise ulimit -n");
    }
    local_.emplace(StoreSession{.fd = UniqueFd(ends[0])});
    random_.fill(local_->send_key);
    random_.fill(local_->receive_key);
    Connection& mine = add(UniqueFd(ends[1]));
    mine.rank = self_.rank;
    mine.open(local_->receive_key, local_->send_key);
    thread_ = start_quiet_thread([this] { run(); });
    return {};
  }

  void close(Duration linger, bool tells_late = true) override {
    if (!thread_.joinable()) return;
    linger_ns_ = linger.count();
    tells_late_ = tells_late;
    closing_ = true;
    wake();
    thread_.join();
    connections_.clear();
  }

  void look_out(int rank, UniqueFd connection, const Departure& departure) override {
    {
      const std::lock_guard lock(handed_mutex_);
      handed_.push_back({rank, std::move(connection), departure});
    }
    wake();
  }

  StoreSession local_session() override {
    TROUPE_ASSERT(local_, "the session is taken once");
    StoreSession session = *std::move(local_);
    local_.reset();
    return session;
  }

  const Endpoint& endpoint() const override { return listener_.endpoint(); }

 private:
  struct Lookout {
    int rank = 0;
    UniqueFd fd;
    Departure departure;
  };

  void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t woken = ::write(wake_.get(), &one, sizeof one);
  }

  void take_lookouts() {
    std::vector<Lookout> handed;
    {
      const std::lock_guard lock(handed_mutex_);
      handed.swap(handed_);
    }
    for (Lookout& lookout : handed) {
      if (core_.knows(lookout.rank)) continue;
      if (!lookout.fd) {
        deliver(core_.on_lost(lookout.rank, lookout.departure));
        continue;
      }
      watch_silence(lookout.fd.get());
      lookouts_[lookout.rank] = next_id_;
      Connection& c = add(std::move(lookout.fd));
      c.rank = lookout.rank;
      c.lookout = std::move(lookout.departure);
    }
  }

  void on_lookout(std::uint64_t id, const Connection& c) {
    std::byte byte{};
    const ssize_t got = ::recv(c.fd.get(), &byte, 1, MSG_DONTWAIT);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return;
    const int rank = c.rank;
    const Departure departure = *c.lookout;
    lookouts_.erase(rank);
    connections_.erase(id);
    deliver(core_.on_lost(rank, departure));
  }

  void end_lookout(int rank) {
    const auto found = lookouts_.find(rank);
    if (found == lookouts_.end()) return;
    connections_.erase(found->second);
    lookouts_.erase(found);
  }

  /// Where that is not to be had, everybody comes over TCP.
  void listen_locally() {
    const auto address = abstract_address(store_socket(key_, listener_.endpoint(), self_.rank));
    local_listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!local_listener_ || ::bind(local_listener_.get(), address.get(), address.length) != 0 ||
        ::listen(local_listener_.get(), SOMAXCONN) != 0) {
      local_listener_.reset();
    }
  }

  void watch_listeners() {
    watch(listener_.fd(), kListenerId, EPOLLIN);
    if (local_listener_) watch(local_listener_.get(), kLocalListenerId, EPOLLIN);
    listening_ = true;
  }

  void watch(int fd, std::uint64_t id, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }
  void want(std::uint64_t id, const Connection& c) {
    epoll_event event{};
    event.events = c.blocked ? EPOLLOUT : EPOLLIN;
    event.data.u64 = id;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, c.fd.get(), &event);
  }

  Connection& add(UniqueFd fd) {
    const std::uint64_t id = next_id_++;
    watch(fd.get(), id, EPOLLIN);
    Connection& c = connections_[id];
    c.fd = std::move(fd);
    return c;
  }

  void run() {
    std::array<epoll_event, 64> events;
    std::optional<Instant> end;
    while (true) {
      if (closing_ && !end) end = clock_.now() + Duration(linger_ns_);
      const Instant now = clock_.now();
      const bool is_deserted = tells_late_ ? core_.is_deserted() : core_.present() == 0;
      if (end && (is_deserted || now >= *end)) break;
      const int n =
          ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms(now, end));
      for (int i = 0; i < n; ++i) on_event(events[static_cast<std::size_t>(i)]);
      const Instant after = clock_.now();
      if (const auto next = core_.next_deadline(); next && *next <= after)
        deliver(core_.on_time(after, strangers()));
      while (!pending_.empty() && connections_.at(pending_.front()).deadline <= after) {
        drop(pending_.front(), "its handshake took too long");
      }
      if (!listening_ && after >= listen_again_) {
        watch_listeners();
      }
    }
    // Unasked for, so that whoever asks next learns that this was no accident.
    StoreCore::Replies goodbye;
    for (const auto& [id, c] : connections_) {
      if (c.sealer) goodbye.push_back({id, {.status = StoreStatus::kClosing}});
    }
    deliver(goodbye);
  }

  int timeout_ms(Instant now, const std::optional<Instant>& end) const {
    Instant until = Instant::max();
    if (end) until = std::min(until, *end);
    if (const auto deadline = core_.next_deadline()) until = std::min(until, *deadline);
    if (!pending_.empty()) until = std::min(until, connections_.at(pending_.front()).deadline);
    if (!listening_) until = std::min(until, listen_again_);
    return poll_millis(until - now);
  }

  void on_event(const epoll_event& event) {
    const std::uint64_t id = event.data.u64;
    if (id == kListenerId) return accept_all(listener_.fd(), false);
    if (id == kLocalListenerId) return accept_all(local_listener_.get(), true);
    if (id == kWakeId) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
      return take_lookouts();
    }
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;  // dropped by an event before this one
    Connection& c = found->second;
    if (c.lookout) {
      on_lookout(id, c);
    } else if ((event.events & EPOLLOUT) != 0) {
      flush(id, c);
    } else if (c.handshake) {
      on_handshake_bytes(id, c);
    } else {
      on_bytes(id, c);
    }
  }

  void accept_all(int listener, bool local) {
    while (true) {
      UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        // Out of descriptors, most likely: those who wait in the queue stay there for a while.
        log(LogLevel::kWarning, std::string("the store cannot accept a connection: ") + std::strerror(errno));
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.fd(), nullptr);
        if (local_listener_) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, local_listener_.get(), nullptr);
        listening_ = false;
        listen_again_ = clock_.now() + std::chrono::milliseconds(100);
        return;
      }
      if (connections_.size() >= kMaxClients) {
        log(LogLevel::kWarning, "the store turned a connection away: it has 65,536");
        continue;
      }
      if (local && !is_same_user(fd.get())) {
        turn_away(peer_name(fd.get()) + ": it is not this user's");
        continue;
      }
      if (pending_.size() >= kMaxPending) drop(pending_.front(), "too many connections in a handshake");
      watch_silence(fd.get());
      const std::uint64_t id = next_id_;
      Connection& c = add(std::move(fd));
      c.handshake.emplace(key_, self_, random_);
      c.deadline = clock_.now() + handshake_timeout_;
      pending_.push_back(id);
    }
  }

  void drop(std::uint64_t id, const std::string& why) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if (found->second.handshake) {
      std::erase(pending_, id);
    }
    if (found->second.handshake && !why.empty()) {
      turn_away(peer_name(found->second.fd.get()) + ": " + why);
    }
    connections_.erase(found);
    deliver(core_.on_gone(id));
  }

  /// Who was turned away so far, as a part of a sentence.
  std::string strangers() const {
    if (strangers_ == 0) return {};
    return "; the store turned away " + std::to_string(strangers_) + " connection" +
           (strangers_ == 1 ? " from " : "s, the last from ") + last_stranger_;
  }

  void turn_away(std::string who) {
    log_strangers_("the store turned away a connection from " + who, clock_.now());
    ++strangers_;
    last_stranger_ = std::move(who);
  }

  void on_handshake_bytes(std::uint64_t id, Connection& c) {
    const std::size_t wanted = c.said_hello ? sizeof(ProofBytes) : sizeof(HelloBytes);
    const ssize_t got = ::recv(c.fd.get(), c.in.data() + c.in_bytes, wanted - c.in_bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0 && c.in_bytes == 0 && !c.said_hello)
      return drop(id, "");  // it looked whether somebody listens
    if (got <= 0) return drop(id, "it hung up in the middle of its handshake, as one with another key does");
    c.in_bytes += static_cast<std::size_t>(got);
    if (!c.said_hello && !AcceptorHandshake::may_be_hello(std::span(c.in).first(c.in_bytes))) {
      return drop(id, "it does not speak this protocol");
    }
    if (c.in_bytes < wanted) return;
    c.in_bytes = 0;
    if (!c.said_hello) {
      c.said_hello = true;
      HelloBytes hello;
      std::memcpy(hello.data(), c.in.data(), hello.size());
      const auto challenge = c.handshake->on_hello(hello);
      if (!challenge) return refuse(id, c, challenge.error());
      return send(id, c, *challenge);
    }
    ProofBytes proof;
    std::memcpy(proof.data(), c.in.data(), proof.size());
    const auto accept = c.handshake->on_proof(proof);
    if (!accept) return refuse(id, c, accept.error());
    c.rank = c.handshake->peer();
    std::erase(pending_, id);
    c.open(c.handshake->session_key("down"), c.handshake->session_key("up"));
    send(id, c, *accept);
  }

  void refuse(std::uint64_t id, Connection& c, const ErrorInfo& error) {
    const auto answer = c.handshake->refusal();  // fits the empty socket buffer, and is a courtesy
    if (!answer.empty()) ::send(c.fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (c.handshake->has_key()) {
      deliver(core_.give_up(kWorldPrefix, error.why + ", as rank 0 does"));
    }
    drop(id, error.why);
  }

  void on_bytes(std::uint64_t id, Connection& c) {
    std::array<std::byte, kReadBytes> bytes;
    const ssize_t got = ::recv(c.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0 && !c.opener->empty()) {
      return drop_open(id, c, {ErrorCode::kBadInput, "", "it was cut in the middle of a frame", ""});
    }
    if (got <= 0) return drop(id, "");
    c.opener->feed(std::span(bytes).first(static_cast<std::size_t>(got)));
    while (connections_.contains(id)) {  // an answer that cannot be sent drops it
      const auto body = c.opener->next();
      if (!body) return drop_open(id, c, body.error());
      if (!*body) return;
      const auto request = decode_request(**body);
      if (!request) return drop_open(id, c, request.error());
      const int rank = c.rank;  // the answer may end the connection
      deliver(core_.on_request(id, rank, *request, clock_.now()));
      if (request->op == StoreOp::kJoin) end_lookout(rank);
    }
  }

  void drop_open(std::uint64_t id, const Connection& c, const ErrorInfo& error) {
    log(LogLevel::kWarning,
        "the store ends a connection of rank " + std::to_string(c.rank) + ": " + error.why);
    drop(id, "");
  }

  void deliver(const StoreCore::Replies& replies) {
    for (const auto& reply : replies) {
      const auto found = connections_.find(reply.to);
      if (found == connections_.end()) continue;
      Connection& c = found->second;
      if (c.deaf) continue;
      c.sealer->seal(encode(reply.response), c.out);
      if (c.out.size() - c.out_sent > kMaxUnsent) {
        drop_open(reply.to, c, {ErrorCode::kLimit, "", "it does not read what it asked for", ""});
      } else {
        flush(reply.to, c);
      }
    }
  }

  void send(std::uint64_t id, Connection& c, std::span<const std::byte> bytes) {
    c.out.insert(c.out.end(), bytes.begin(), bytes.end());
    flush(id, c);
  }

  void flush(std::uint64_t id, Connection& c) {
    while (c.out_sent < c.out.size()) {
      const ssize_t sent = ::send(c.fd.get(), c.out.data() + c.out_sent, c.out.size() - c.out_sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      const bool hung_up = sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK;
      if (hung_up && c.handshake) return drop(id, "it hung up");
      if (hung_up) {
        c.deaf = true;  // it may have said that it leaves
        c.out_sent = c.out.size();
      }
      if (sent < 0) break;
      c.out_sent += static_cast<std::size_t>(sent);
    }
    const bool blocked = c.out_sent < c.out.size();
    if (!blocked) {
      c.out.clear();
      c.out_sent = 0;
    }
    if (std::exchange(c.blocked, blocked) != blocked) want(id, c);
  }

  DataListener listener_;
  UniqueFd local_listener_;  ///< may be missing
  JobKey key_;
  HandshakeIdentity self_;
  Duration handshake_timeout_;
  MonotonicClock clock_;
  SystemRandom random_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::map<std::uint64_t, Connection> connections_;
  std::list<std::uint64_t> pending_;       ///< in a handshake, oldest first
  std::map<int, std::uint64_t> lookouts_;  ///< by rank
  std::mutex handed_mutex_;                ///< of the next
  std::vector<Lookout> handed_;            ///< lookouts, to be taken by the thread
  std::uint64_t next_id_ = kFirstClient;
  StoreCore core_;
  std::optional<StoreSession> local_;
  std::uint64_t strangers_ = 0;
  std::string last_stranger_;
  LimitedLog log_strangers_{LogLevel::kWarning};
  bool listening_ = true;
  Instant listen_again_{0};
  std::atomic<bool> closing_{false};
  std::atomic<std::int64_t> linger_ns_{0};
  std::atomic<bool> tells_late_{true};
  std::thread thread_;
};

}  // namespace

std::string store_socket(const JobKey& key, const Endpoint& at, int rank) {
  return private_name(key, "store " + std::to_string(rank) + " at " + to_string(at));
}

Result<std::unique_ptr<StoreServer>> StoreServer::start(DataListener listener, const Options& options) {
  auto server = std::make_unique<ServerThread>(std::move(listener), options);
  if (auto started = server->start(); !started) return started.error();
  return std::unique_ptr<StoreServer>(std::move(server));
}

}  // namespace troupe::collectives
