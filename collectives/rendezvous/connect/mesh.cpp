#include "collectives/rendezvous/connect/mesh.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/texts.hpp"
#include "runtime/core/log.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kMaxRefusals = 32;
constexpr Duration kDialAgainAfter = std::chrono::milliseconds(50);  ///< nobody tells when a peer listens

}  // namespace

/// One connection in the middle of its handshake.
struct Mesh::Pending {
  UniqueFd fd;
  std::string name;
  Instant deadline{0};
  std::optional<ConnectorHandshake> connector;  ///< one of the two
  std::optional<AcceptorHandshake> acceptor;
  int peer = -1;
  bool connecting = false;
  bool answered = false;  ///< the first message of the peer is in
  bool over = false;
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
  template <class Message>
  Message message() const {
    Message made;
    std::memcpy(made.data(), in.data(), made.size());
    return made;
  }
};

Mesh::Mesh(std::shared_ptr<const DataListener> listener, KeyView key, MeshOptions options)
    : listener_(std::move(listener)), options_(std::move(options)), sockets_(::epoll_create1(EPOLL_CLOEXEC)) {
  std::copy(key.begin(), key.end(), key_.begin());
  if (!sockets_) throw_error(io_error("cannot make an epoll", errno, "raise ulimit -n"));
  watch(listener_->fd(), EPOLLIN, nullptr);
  if (failure_) throw_error(*failure_);
}

Mesh::~Mesh() = default;

void Mesh::watch(int fd, std::uint32_t events, Pending* pending) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = pending;
  if (::epoll_ctl(sockets_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    failure_ = io_error("cannot watch a connection", errno, "");
}

Result<std::map<int, PeerConnection>> Mesh::meet(const std::vector<int>& ranks, const WaitOptions& wait) {
  const Instant until = clock_.now() + wait.timeout;
  std::vector<int> missing = ranks;
  for (const int rank : ranks) {
    if (rank < options_.self.rank) connect(rank);
  }
  meets_ = true;
  while (true) {
    if (wait.aborted()) return ErrorInfo{ErrorCode::kAborted, "the data connections were aborted", "", ""};
    go_on();
    if (failure_) return *failure_;
    std::erase_if(missing, [&](int rank) { return connected_.contains(rank); });
    if (missing.empty()) break;
    if (clock_.now() >= until) {
      std::string why = "rank " + std::to_string(options_.self.rank) + " has no data connection with rank " +
                        listed(missing) + " after " +
                        std::to_string(wait.timeout / std::chrono::milliseconds(1)) + " ms";
      if (!refused_.empty()) why += "; the last one turned away: " + refused_.back();
      return ErrorInfo{ErrorCode::kTimeout, "the data connections are not complete", std::move(why),
                       "see whether those ranks live and can be reached"};
    }
    Instant next = until;
    for (const auto& [rank, at] : dial_at_) next = std::min(next, at);
    for (const Pending& p : pending_) next = std::min(next, p.deadline);
    pollfd fds[] = {{sockets_.get(), POLLIN, 0}, {wait.abort_fd, POLLIN, 0}};
    ::poll(fds, 2, wait_ms(clock_.now(), next, wait));
  }
  meets_ = false;
  std::map<int, PeerConnection> met;
  for (const int rank : ranks) met.insert(made_.extract(rank));
  return met;
}

void Mesh::connect(int rank) {
  if (!has_or_makes(rank)) dial_at_[rank] = Instant{0};
}

Result<std::map<int, PeerConnection>> Mesh::step() {
  go_on();
  if (failure_) return *failure_;
  return std::exchange(made_, {});
}

void Mesh::go_on() {
  const Instant now = clock_.now();
  std::vector<int> due;
  for (const auto& [rank, at] : dial_at_) {
    if (at <= now) due.push_back(rank);
  }
  for (const int rank : due) dial(rank, now);
  std::array<epoll_event, 64> events;
  const int n = ::epoll_wait(sockets_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < n; ++i) {
    auto* pending = static_cast<Pending*>(events[static_cast<std::size_t>(i)].data.ptr);
    if (pending == nullptr) {
      accept_all(now);
    } else if (!pending->over) {
      go_on(*pending, now);
    }
  }
  for (Pending& pending : pending_) {
    if (pending.over || now < pending.deadline) continue;
    refuse(pending, "its handshake took too long");
    pending.over = true;
    if (pending.connector) dial_at_[pending.peer] = now + kDialAgainAfter;
  }
  pending_.remove_if([](const Pending& p) { return p.over; });
}

bool Mesh::is_dialing(int rank) const {
  return dial_at_.contains(rank) || std::any_of(pending_.begin(), pending_.end(), [&](const Pending& p) {
           return p.connector && p.peer == rank && !p.over;
         });
}

void Mesh::dial(int rank, Instant now) {
  dial_at_.erase(rank);
  const Endpoint& endpoint = options_.peers.at(rank);
  const auto address = socket_address(endpoint);
  if (!address) return void(fail(address.error()));
  Pending& pending = pending_.emplace_back();
  pending.fd = UniqueFd(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!pending.fd) return void(fail(io_error("cannot make a socket", errno, "raise ulimit -n")));
  pending.peer = rank;
  pending.name = to_string(endpoint);
  // At a first message the other may compute: calling it again makes its queue longer, and no answer faster.
  pending.deadline = meets_ ? now + options_.handshake_timeout : Instant::max();
  pending.connecting = true;
  pending.connector.emplace(key_, options_.self, rank, random_);
  pending.send(pending.connector->hello(), sizeof(ChallengeBytes));
  if (::connect(pending.fd.get(), address->get(), address->length) != 0 && errno != EINPROGRESS) {
    pending.over = true;
    if (gone(pending, errno) == Step::kGone) dial_at_[rank] = now + kDialAgainAfter;
    return;
  }
  watch(pending.fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &pending);
}

void Mesh::accept_all(Instant now) {
  while (true) {
    UniqueFd fd(::accept4(listener_->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd && (errno == EMFILE || errno == ENFILE))
      return void(fail(io_error("cannot accept a data connection", errno, "raise ulimit -n")));
    if (!fd) return;
    const auto is_incoming = [](const Pending& p) { return p.acceptor && !p.over; };
    if (std::count_if(pending_.begin(), pending_.end(), is_incoming) >=
        static_cast<std::ptrdiff_t>(kMaxPendingHandshakes)) {
      Pending& oldest = *std::find_if(pending_.begin(), pending_.end(), is_incoming);
      refuse(oldest, "too many connections are waiting and it is the oldest");
      oldest.over = true;
      oldest.fd.reset();
    }
    Pending& pending = pending_.emplace_back();
    pending.name = peer_name(fd.get());
    pending.fd = std::move(fd);
    pending.deadline = now + options_.handshake_timeout;
    pending.acceptor.emplace(key_, options_.self, random_);
    pending.in_wanted = sizeof(HelloBytes);
    watch(pending.fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &pending);
  }
}

void Mesh::go_on(Pending& pending, Instant now) {
  const Step step = advance(pending);
  pending.over = step != Step::kWaits;
  if (step == Step::kDone) finish(pending);
  // A peer that hung up without a word may not be ready, have had too many callers, or connect itself.
  if (step == Step::kGone && pending.connector) dial_at_[pending.peer] = now + kDialAgainAfter;
}

void Mesh::finish(Pending& pending) {
  const int peer = pending.peer;
  connected_.insert(peer);
  dial_at_.erase(peer);
  for (Pending& other : pending_) other.over = other.over || (other.connector && other.peer == peer);
  ::epoll_ctl(sockets_.get(), EPOLL_CTL_DEL, pending.fd.get(), nullptr);
  PeerConnection& made = made_[peer];
  made.socket = std::move(pending.fd);
  if (!options_.self.encrypts) return;
  const auto key = [&](const char* direction) {
    return pending.connector ? pending.connector->session_key(direction)
                             : pending.acceptor->session_key(direction);
  };
  const bool connects = pending.connector.has_value();
  made.keys = {.out = key(connects ? "up" : "down"), .in = key(connects ? "down" : "up")};
}

void Mesh::refuse(const Pending& pending, const std::string& why) {
  if (refused_.size() >= kMaxRefusals) return;
  refused_.push_back(pending.name + ": " + why);
  log(LogLevel::kWarning, "data connection turned away: " + refused_.back());
}

Mesh::Step Mesh::turn_away(Pending& p, const ErrorInfo& error) {
  if (error.code == ErrorCode::kRefused) refuse(p, error.why);
  const auto answer = p.acceptor->refusal();  // fits the empty socket buffer, and is a courtesy
  if (!answer.empty()) ::send(p.fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return Step::kGone;
}

Mesh::Step Mesh::fail(ErrorInfo error) {
  if (!failure_) failure_ = std::move(error);
  return Step::kFailed;
}

/// A rank could not be connected to. All listened when they met.
Mesh::Step Mesh::gone(const Pending& p, int error) {
  if (meets_) return Step::kGone;
  made_[p.peer].gone = "it left the group or died: " + p.name + ": " + std::strerror(error);
  return Step::kFailed;
}

Mesh::Step Mesh::advance(Pending& p) {
  if (p.connecting) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(p.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return gone(p, error);
  }
  while (true) {
    if (p.out_sent < p.out.size()) {
      const ssize_t sent = ::send(p.fd.get(), p.out.data() + p.out_sent, p.out.size() - p.out_sent,
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN || errno == EINTR ? Step::kWaits : Step::kGone;
      p.connecting = false;
      p.out_sent += static_cast<std::size_t>(sent);
      continue;
    }
    if (p.in_wanted == 0) return Step::kDone;
    const ssize_t got = ::recv(p.fd.get(), p.in.data() + p.in_bytes, p.in_wanted - p.in_bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Step::kWaits;
    if (got <= 0) {
      // Of two that connect at once the lower rank drops its own, perhaps before its first word.
      const bool is_spare = p.answered ? p.acceptor && has_or_makes(p.acceptor->peer()) : p.in_bytes == 0;
      if (p.acceptor && !is_spare) refuse(p, "it hung up in the middle of its handshake");
      return Step::kGone;
    }
    p.in_bytes += static_cast<std::size_t>(got);
    const Step step = p.connector ? advance_connector(p) : advance_acceptor(p);
    if (step != Step::kWaits) return step;
  }
}

Mesh::Step Mesh::advance_connector(Pending& p) {
  if (p.in_bytes < p.in_wanted) return Step::kWaits;
  if (!std::exchange(p.answered, true)) {
    auto proof = p.connector->on_challenge(p.message<ChallengeBytes>());
    if (!proof) return fail(proof.error());
    p.send(*proof, sizeof(AcceptBytes));
    p.deadline = Instant::max();  // who has this proof may take the connection for made
    return Step::kWaits;
  }
  const auto accepted = p.connector->on_accept(p.message<AcceptBytes>());
  return accepted ? Step::kDone : fail(accepted.error());
}

Mesh::Step Mesh::advance_acceptor(Pending& p) {
  if (!p.answered && !AcceptorHandshake::may_be_hello(std::span(p.in).first(p.in_bytes))) {
    refuse(p, "it does not speak this protocol");
    return Step::kGone;
  }
  if (p.in_bytes < p.in_wanted) return Step::kWaits;
  if (!std::exchange(p.answered, true)) {
    auto challenge = p.acceptor->on_hello(p.message<HelloBytes>());
    if (challenge && !options_.peers.contains(p.acceptor->peer())) {
      refuse(p, "rank " + std::to_string(p.acceptor->peer()) + " is on this host and has no business here");
      return Step::kGone;
    }
    if (!challenge) return turn_away(p, challenge.error());
    p.send(*challenge, sizeof(ProofBytes));
    return Step::kWaits;
  }
  auto accept = p.acceptor->on_proof(p.message<ProofBytes>());
  if (!accept) return turn_away(p, accept.error());
  p.peer = p.acceptor->peer();
  if (p.peer < options_.self.rank && has_or_makes(p.peer)) return Step::kGone;  // this rank's stays
  if (connected_.contains(p.peer)) {
    refuse(p, "rank " + std::to_string(p.peer) + " has a connection");
    return Step::kGone;
  }
  // From here on the connection is made, so all of it goes out now: the socket's buffer is empty.
  const ssize_t sent = ::send(p.fd.get(), accept->data(), accept->size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == static_cast<ssize_t>(accept->size()) ? Step::kDone : Step::kGone;
}

}  // namespace troupe::collectives
