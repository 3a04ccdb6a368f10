#include "collectives/rendezvous/connect/mesh.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/texts.hpp"
#include "runtime/core/log.hpp"

namespace troupe::collectives {
namespace {

constexpr int kBacklog = 4096;
constexpr std::size_t kMaxRefusals = 32;
constexpr Duration kPollSlice = std::chrono::milliseconds(50);
constexpr Duration kRetryAfter = std::chrono::milliseconds(50);  ///< nobody tells when a peer listens

/// One connection in the middle of its handshake.
struct Pending {
  UniqueFd fd;
  std::string name;
  Instant deadline{0};
  std::optional<ConnectorHandshake> connector;  ///< one of the two
  std::optional<AcceptorHandshake> acceptor;
  int peer = -1;
  bool connecting = false;
  bool answered = false;  ///< the first message of the peer is in
  std::array<std::byte, sizeof(ChallengeBytes)> in{};
  std::size_t in_bytes = 0;
  std::size_t in_wanted = 0;
  std::vector<std::byte> out;
  std::size_t out_sent = 0;

  void send(std::span<const std::byte> message, std::size_t wanted) {
    out.assign(message.begin(), message.end());
    out_sent = 0;
    in_bytes = 0;
    in_wanted = wanted;
  }
};

enum class Step { kWaits, kDone, kGone, kFailed };

class MeshBuilder {
 public:
  MeshBuilder(const DataListener& listener, KeyView key, const MeshOptions& options)
      : listener_(listener), key_(key), options_(options) {}

  Result<Mesh> build() {
    const Instant until = clock_.now() + options_.timeout;
    for (const auto& [rank, endpoint] : options_.peers) {
      if (rank < options_.self.rank) retry_at_[rank] = Instant{0};
    }
    while (mesh_.sockets.size() < options_.peers.size()) {
      if (options_.aborted()) {
        return ErrorInfo{ErrorCode::kAborted, "the data connections were aborted", "", ""};
      }
      const Instant now = clock_.now();
      if (now >= until) return timed_out();
      for (auto& [rank, at] : retry_at_) {
        if (now < at) continue;
        if (auto started = connect_to(rank, now); !started) return started.error();
      }
      std::erase_if(retry_at_, [&](const auto& entry) { return is_connecting(entry.first); });
      poll_once(now, until);
      if (failure_) return *failure_;
    }
    return std::move(mesh_);
  }

 private:
  bool is_connecting(int rank) const {
    return std::any_of(pending_.begin(), pending_.end(),
                       [&](const Pending& p) { return p.connector && p.peer == rank; });
  }

  ErrorInfo timed_out() const {
    std::vector<int> ranks;
    for (const auto& [rank, endpoint] : options_.peers) {
      if (!mesh_.sockets.contains(rank)) ranks.push_back(rank);
    }
    std::string why = "rank " + std::to_string(options_.self.rank) + " has no data connection with rank " +
                      listed(ranks) + " after " +
                      std::to_string(options_.timeout / std::chrono::milliseconds(1)) + " ms";
    if (!mesh_.refused.empty()) why += "; the last one turned away: " + mesh_.refused.back();
    return {ErrorCode::kTimeout, "the data connections are not complete", std::move(why),
            "see whether those ranks live and can be reached"};
  }

  Result<void> connect_to(int rank, Instant now) {
    const Endpoint& endpoint = options_.peers.at(rank);
    auto address = socket_address(endpoint);
    if (!address) return address.error();
    Pending pending;
    pending.fd =
        UniqueFd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!pending.fd) return io_error("cannot make a socket", errno, "raise ulimit -n");
    pending.peer = rank;
    pending.name = to_string(endpoint);
    pending.deadline = now + options_.handshake_timeout;
    pending.connecting = true;
    pending.connector.emplace(key_, options_.self, rank, random_);
    pending.send(pending.connector->hello(), sizeof(ChallengeBytes));
    if (::connect(pending.fd.get(), address->get(), address->length) != 0 && errno != EINPROGRESS) {
      retry_at_[rank] = now + kRetryAfter;
      return {};
    }
    pending_.push_back(std::move(pending));
    return {};
  }

  /// How long there is nothing to do unless a descriptor is ready.
  int wait_ms(Instant now, Instant until) const {
    // What has no descriptor to wake it has to ask.
    if (options_.abort_fd < 0) until = std::min(until, now + kPollSlice);
    for (const auto& [rank, at] : retry_at_) until = std::min(until, at);
    for (const Pending& p : pending_) until = std::min(until, p.deadline);
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    return static_cast<int>(std::clamp<std::int64_t>(ms, 0, 3'600'000));
  }

  void poll_once(Instant began, Instant until) {
    std::vector<pollfd> fds{{listener_.fd(), POLLIN, 0}, {options_.abort_fd, POLLIN, 0}};
    for (const Pending& p : pending_) {
      const bool sends = p.connecting || p.out_sent < p.out.size();
      fds.push_back({p.fd.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
    }
    ::poll(fds.data(), fds.size(), wait_ms(began, until));
    const Instant now = clock_.now();
    std::size_t i = 2;
    for (auto it = pending_.begin(); it != pending_.end(); ++i) {
      Step step = fds[i].revents != 0 ? advance(*it) : Step::kWaits;
      if (step == Step::kWaits && now >= it->deadline) {
        refuse(*it, "its handshake took too long");
        step = Step::kGone;
      }
      if (step == Step::kDone) finish(*it);
      // A peer that hung up without a word may not be ready, or have had too many callers.
      if (step == Step::kGone && it->connector) retry_at_[it->peer] = now + kRetryAfter;
      it = step == Step::kWaits ? std::next(it) : pending_.erase(it);
    }
    if (fds[0].revents != 0) accept_all(now);
  }

  void accept_all(Instant now) {
    while (true) {
      UniqueFd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) return;
      const auto is_incoming = [](const Pending& p) { return p.acceptor.has_value(); };
      if (std::count_if(pending_.begin(), pending_.end(), is_incoming) >=
          static_cast<std::ptrdiff_t>(kMaxPendingHandshakes)) {
        const auto oldest = std::find_if(pending_.begin(), pending_.end(), is_incoming);
        refuse(*oldest, "too many connections are waiting and it is the oldest");
        pending_.erase(oldest);
      }
      Pending pending;
      pending.name = peer_name(fd.get());
      pending.fd = std::move(fd);
      pending.deadline = now + options_.handshake_timeout;
      pending.acceptor.emplace(key_, options_.self, random_);
      pending.in_wanted = sizeof(HelloBytes);
      pending_.push_back(std::move(pending));
    }
  }

  void finish(Pending& pending) {
    mesh_.sockets[pending.peer] = std::move(pending.fd);
    if (!options_.self.encrypts) return;
    const auto key = [&](const char* direction) {
      return pending.connector ? pending.connector->session_key(direction)
                               : pending.acceptor->session_key(direction);
    };
    const bool connects = pending.connector.has_value();
    mesh_.keys[pending.peer] = {.out = key(connects ? "up" : "down"), .in = key(connects ? "down" : "up")};
  }

  void refuse(const Pending& pending, const std::string& why) {
    if (mesh_.refused.size() >= kMaxRefusals) return;
    mesh_.refused.push_back(pending.name + ": " + why);
    log(LogLevel::kWarning, "data connection turned away: " + mesh_.refused.back());
  }

  Step fail(const ErrorInfo& error) {
    failure_ = error;
    return Step::kFailed;
  }

  Step advance(Pending& p) {
    if (p.connecting) {
      int error = 0;
      socklen_t length = sizeof error;
      ::getsockopt(p.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) return Step::kGone;
      p.connecting = false;
    }
    if (p.out_sent < p.out.size()) {
      const ssize_t sent = ::send(p.fd.get(), p.out.data() + p.out_sent, p.out.size() - p.out_sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN || errno == EINTR ? Step::kWaits : Step::kGone;
      p.out_sent += static_cast<std::size_t>(sent);
      if (p.out_sent < p.out.size()) return Step::kWaits;
      if (p.in_wanted == 0) return Step::kDone;
    }
    const ssize_t got = ::recv(p.fd.get(), p.in.data() + p.in_bytes, p.in_wanted - p.in_bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Step::kWaits;
    if (got <= 0) {
      if (p.acceptor) refuse(p, "it hung up in the middle of its handshake");
      return Step::kGone;
    }
    p.in_bytes += static_cast<std::size_t>(got);
    return p.connector ? advance_connector(p) : advance_acceptor(p);
  }

  template <class Message>
  static Message message_of(const Pending& p) {
    Message message;
    std::memcpy(message.data(), p.in.data(), message.size());
    return message;
  }

  Step advance_connector(Pending& p) {
    if (p.in_bytes < p.in_wanted) return Step::kWaits;
    if (!std::exchange(p.answered, true)) {
      auto proof = p.connector->on_challenge(message_of<ChallengeBytes>(p));
      if (!proof) return fail(proof.error());
      p.send(*proof, sizeof(AcceptBytes));
      return Step::kWaits;
    }
    const auto accepted = p.connector->on_accept(message_of<AcceptBytes>(p));
    return accepted ? Step::kDone : fail(accepted.error());
  }

  Step advance_acceptor(Pending& p) {
    if (!p.answered && !AcceptorHandshake::may_be_hello(std::span(p.in).first(p.in_bytes))) {
      refuse(p, "it does not speak this protocol");
      return Step::kGone;
    }
    if (p.in_bytes < p.in_wanted) return Step::kWaits;
    if (!std::exchange(p.answered, true)) {
      auto challenge = p.acceptor->on_hello(message_of<HelloBytes>(p));
      if (challenge && !options_.peers.contains(p.acceptor->peer())) {
        refuse(p,
               "rank " + std::to_string(p.acceptor->peer()) + " is on this machine and has no business here");
        return Step::kGone;
      }
      if (!challenge) return turn_away(p, challenge.error());
      p.send(*challenge, sizeof(ProofBytes));
      return Step::kWaits;
    }
    auto accept = p.acceptor->on_proof(message_of<ProofBytes>(p));
    if (!accept) return turn_away(p, accept.error());
    p.peer = p.acceptor->peer();
    p.send(*accept, 0);
    return Step::kWaits;
  }

  Step turn_away(Pending& p, const ErrorInfo& error) {
    refuse(p, error.why);
    const auto answer = p.acceptor->refusal();  // fits the empty socket buffer, and is a courtesy
    if (!answer.empty()) ::send(p.fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return Step::kGone;
  }

  const DataListener& listener_;
  KeyView key_;
  const MeshOptions& options_;
  MonotonicClock clock_;
  SystemRandom random_;
  std::list<Pending> pending_;
  std::map<int, Instant> retry_at_;  ///< ranks to connect to, and when
  Mesh mesh_;
  std::optional<ErrorInfo> failure_;
};

}  // namespace

Result<DataListener> DataListener::bind(const Endpoint& at) {
  auto address = socket_address(at);
  if (!address) return address.error();
  DataListener listener;
  listener.fd_ =
      UniqueFd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.fd_) return io_error("cannot make a socket", errno, "raise ulimit -n");
  // A port that was asked for is free as soon as nobody listens; any port need not be one that was in use.
  const int reuse = at.port != 0 ? 1 : 0;
  ::setsockopt(listener.fd_.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  if (::bind(listener.fd_.get(), address->get(), address->length) != 0 ||
      ::listen(listener.fd_.get(), kBacklog) != 0) {
    return io_error("cannot listen for data connections at " + to_string(at), errno,
                    "give an address of this machine, and port 0 for a free port");
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(listener.fd_.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return io_error("cannot read the address of a socket", errno);
  }
  listener.endpoint_ = at;
  listener.endpoint_.port =
      ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                       : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
  return listener;
}

Result<Mesh> connect_mesh(const DataListener& listener, KeyView key, const MeshOptions& options) {
  return MeshBuilder(listener, key, options).build();
}

}  // namespace troupe::collectives
