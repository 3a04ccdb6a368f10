#include "collectives/native/gateways.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <utility>

#include "collectives/native/backoff.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

/// How long a rank that fails tries to say why to other hosts.
constexpr Duration kLastWords = std::chrono::milliseconds(100);

/// How long a rank that leaves waits for other hosts to have what it sent.
constexpr Duration kLinger = std::chrono::seconds(1);

/// Has the kernel tell the other end at once what came: it waits 40 ms for something to tell it with.
void acknowledge(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

}  // namespace

Gateways::Gateways(const RankView& view, RoundData& data, Rounds& rounds, AnyReceives& any_receives,
                   std::map<int, PeerConnection> connections, std::unique_ptr<Connector> connector)
    : view_(view),
      data_(data),
      rounds_(rounds),
      any_receives_(any_receives),
      connector_(std::move(connector)) {
  if (connector_) {
    sockets_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    if (!sockets_ || ::epoll_ctl(sockets_.get(), EPOLL_CTL_ADD, connector_->fd(), &event) != 0)
      throw_error(io_error("cannot make an epoll", errno, "raise ulimit -n"));
  }
  for (auto& [rank, connection] : connections) adopt(rank, std::move(connection));
  const HostLayout& layout = view_.layout;
  for (int other = 0; other < layout.hosts(); ++other) {
    const std::uint32_t lanes = other == view_.host ? 0 : layout.lanes(view_.host, other);
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      if (layout.gateway(view_.host, other, lane) != view_.rank) continue;
      Peer& gate = peers_.at(layout.gateway(other, view_.host, lane));
      gate.gate = true;
      gate.lane = lane;
      gate.lanes = lanes;
      gates_.push_back(&gate);
    }
  }
}

void Gateways::on_launch() {
  for (Peer* gate : gates_) {
    compare_its_call(*gate);
    place_early(*gate);
  }
}

bool Gateways::take(const std::shared_ptr<Transfer>& receive) {
  return std::any_of(peers_.begin(), peers_.end(), [&](auto& peer) {
    const bool took = peer.second.mailbox.take(receive);
    check(peer.second.mailbox);
    return took;
  });
}

std::shared_ptr<const Transfer> Gateways::oldest_message() const {
  for (const auto& [rank, peer] : peers_) {
    if (auto found = peer.mailbox.oldest()) return found;
  }
  return nullptr;
}

std::set<int> Gateways::missing_hosts(std::uint32_t round, bool inputs) const {
  std::set<int> hosts;
  for (const Peer* gate : gates_) {
    if (!(inputs ? gate->inputs_past(round) : gate->results_past(round))) hosts.insert(gate->host);
  }
  for (int host = 0; inputs && host < view_.layout.hosts(); ++host) {
    const PendingCall& op = rounds_.op_of(round);
    const bool wanted = host != view_.host && op.hosts.wants(round - op.first_round, host, view_.host);
    if (wanted && !rounds_.has_landed(op, round, host)) hosts.insert(host);
  }
  return hosts;
}

void Gateways::check(const Mailbox& mailbox) const {
  if (!mailbox.failure().empty()) view_.fail(AbortKind::kMismatch, mailbox.failure());
}

FrameHeader Gateways::header_for(Peer& peer, const PendingCall& op, std::uint32_t round, FrameKind kind,
                                 std::size_t bytes) const {
  peer.freed_told = rounds_.freed();
  return {.kind = kind,
          .sequence = op.sequence,
          .round = round,
          .call = op.words(),
          .payload_bytes = bytes,
          .freed = peer.freed_told};
}

/// Passes over rounds in which nothing goes over this connection, in each of the four ways that it counts.
void Gateways::skip_rounds(Peer& peer) {
  if (!peer.gate) return;
  const auto skip = [&](std::uint32_t& count, const auto& is_due) {
    for (; is_before(count, rounds_.launched()); ++count) {
      const PendingCall& op = rounds_.op_of(count);
      if (peer.takes(count) && is_due(op, count - op.first_round)) return;
    }
  };
  const int there = peer.host;
  skip(peer.partials_out,
       [&](const PendingCall& op, auto r) { return op.hosts.sends(r, view_.host, there); });
  skip(peer.partials_in, [&](const PendingCall& op, auto r) { return op.hosts.sends(r, there, view_.host); });
  skip(peer.results_out,
       [&](const PendingCall& op, auto r) { return op.hosts.result_bytes(r, view_.host, there); });
  skip(peer.results_in,
       [&](const PendingCall& op, auto r) { return op.hosts.result_bytes(r, there, view_.host); });
}

// Connections.

Gateways::Peer& Gateways::add(int rank) {
  return peers_.try_emplace(rank, view_.rank, rank, view_.layout.host_of(rank), &any_receives_).first->second;
}

Gateways::Peer& Gateways::peer_of(int rank) {
  const auto known = peers_.find(rank);
  if (known != peers_.end()) return known->second;
  connector_->connect(rank);
  return add(rank);
}

void Gateways::adopt(int rank, PeerConnection connection) {
  Peer& peer = add(rank);
  if (!connection.socket) return peer.link.connect(std::make_unique<ByteStream>(connection.gone));
  std::unique_ptr<ByteStream> stream = std::make_unique<SocketStream>(std::move(connection.socket));
  if (connection.keys) stream = std::make_unique<SealedStream>(std::move(stream), *connection.keys);
  peer.link.connect(std::move(stream));
  peer.may_read = peer.may_write = true;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &peer;
  if (::epoll_ctl(sockets_.get(), EPOLL_CTL_ADD, peer.link.fd(), &event) != 0)
    view_.fail(AbortKind::kPeerLost, io_error("cannot watch a connection", errno, "").message());
}

/// Takes what came about at a first message, of this rank or of another.
bool Gateways::take_connections() {
  if (!connector_ || (!std::exchange(connections_due_, false) && !connector_->is_connecting())) return false;
  auto made = connector_->step();
  if (!made) view_.fail(AbortKind::kPeerLost, made.error().message());
  for (auto& [rank, connection] : *made) adopt(rank, std::move(connection));
  return !made->empty();
}

// Sending.

bool Gateways::start_freed(Peer& peer) {
  if (!peer.gate || rounds_.freed() - peer.freed_told < kLandings / 2) return false;
  peer.freed_told = rounds_.freed();
  peer.link.send({.kind = FrameKind::kFreed, .freed = peer.freed_told}, {});
  peer.sending = Peer::Sending::kTold;
  return true;
}

bool Gateways::start_call(Peer& peer) {
  if (!peer.gate || !stalled_ || rounds_.empty()) return false;
  const PendingCall& op = rounds_.oldest();
  if (peer.called_told == op.sequence && peer.missing_told == missing_here_) return false;
  peer.called_told = op.sequence;
  peer.missing_told = missing_here_;
  const auto missing = std::as_bytes(std::span(&peer.missing_told, 1));
  peer.link.send({.kind = FrameKind::kCalled,
                  .sequence = op.sequence,
                  .call = op.words(),
                  .payload_bytes = missing.size()},
                 {missing});
  peer.sending = Peer::Sending::kTold;
  return true;
}

bool Gateways::start_result(Peer& peer) {
  const std::uint32_t round = peer.results_out;
  if (!peer.gate || round == rounds_.launched() || !is_before(round, rounds_.freed())) return false;
  const PendingCall& op = rounds_.op_of(round);
  const std::uint32_t r = round - op.first_round;
  const int to = op.is(OpKind::kReduce) ? op.call.peer : view_.layout.members(peer.host).front();
  std::vector<std::span<const std::byte>> pieces;
  for (const int owner : view_.locals) {
    const std::size_t bytes = op.plan().results(r, owner, to).size() * op.element();
    if (bytes != 0) pieces.emplace_back(data_.own_sum(op, r, owner), bytes);
  }
  peer.link.send(
      header_for(peer, op, round, FrameKind::kResult, op.hosts.result_bytes(r, view_.host, peer.host)),
      std::move(pieces));
  peer.sending = Peer::Sending::kResult;
  return true;
}

bool Gateways::start_partials(Peer& peer) {
  const std::uint32_t round = peer.partials_out;
  if (!peer.gate || round == rounds_.launched() || !is_before(round, peer.freed_there + kLandings))
    return false;
  PendingCall& op = rounds_.op_of(round);
  const std::uint32_t r = round - op.first_round;
  const std::vector<int> origins = op.hosts.origins(r, view_.host, peer.host);
  for (const int origin : origins) {
    const bool there =
        origin == view_.host ? rounds_.locals_arrived(round) : rounds_.has_landed(op, round, origin);
    if (!there) return false;
  }
  std::vector<std::span<const std::byte>> pieces;
  std::size_t bytes = 0;
  for (const int origin : origins) {
    if (origin != view_.host) {
      for (const auto& piece : data_.blob(op, r, origin)) pieces.emplace_back(piece);
    } else {
      if (!op.agreed) rounds_.agree(op);
      for (const auto& piece : data_.own_blob(op, r, peer.host, peer.added_up)) pieces.emplace_back(piece);
    }
  }
  for (const auto& piece : pieces) bytes += piece.size();
  peer.link.send(header_for(peer, op, round, FrameKind::kPartials, bytes), std::move(pieces));
  peer.sending = Peer::Sending::kPartials;
  return true;
}

bool Gateways::start_message(Peer& peer) {
  auto frame = peer.mailbox.next();
  if (!frame) return false;
  peer.link.send(frame->header, std::move(frame->pieces));
  peer.sending = Peer::Sending::kMessage;
  return true;
}

/// The frame that was on its way is out.
void Gateways::sent(Peer& peer) {
  using Sending = Peer::Sending;
  const Sending what = std::exchange(peer.sending, Sending::kNothing);
  if (what == Sending::kPartials) ++peer.partials_out;
  if (what == Sending::kResult) ++peer.results_out;
  if (what == Sending::kMessage) peer.mailbox.sent();
  skip_rounds(peer);
}

bool Gateways::start_frame(Peer& peer) {
  if (std::exchange(peer.message_first, false) && start_message(peer)) return true;
  if (start_result(peer) || start_partials(peer) || start_freed(peer) || start_call(peer)) {
    peer.message_first = true;
    return true;
  }
  return start_message(peer);
}

bool Gateways::send_to(Peer& peer) {
  const auto out = [&] {
    const bool was_out = peer.sending != Peer::Sending::kNothing;
    if (was_out) sent(peer);
    return was_out;
  };
  return peer.link.transmit(out, [&] { return start_frame(peer); });
}

// Receiving.

/// Refuses a frame that is of another operation than this rank's own at that round.
void Gateways::check_call(const Peer& peer, const FrameHeader& header, const PendingCall& op) {
  if (header.call != op.words() || header.sequence != op.sequence) refuse(peer, header);
}

/// A frame does not belong here: names what both called, if that is why.
void Gateways::refuse(const Peer& peer, const FrameHeader& header) {
  const std::string theirs = "rank " + std::to_string(peer.link.rank());
  const bool of_round = header.kind == FrameKind::kPartials || header.kind == FrameKind::kResult;
  const bool of_call = of_round || header.kind == FrameKind::kCalled;
  const auto differ = [&](std::uint32_t sequence, const OpWords& words) {
    view_.fail(AbortKind::kMismatch, "rank " + std::to_string(view_.rank) + " called " + to_string(words) +
                                         " #" + std::to_string(sequence) + " and " + theirs + " " +
                                         to_string(header.call) + " #" + std::to_string(header.sequence));
  };
  const OpWords* mine = of_call ? rounds_.called(header.sequence) : nullptr;
  if (mine != nullptr && *mine != header.call) differ(header.sequence, *mine);
  if (of_round && !is_before(header.round, rounds_.completed()) &&
      is_before(header.round, rounds_.launched())) {
    const PendingCall& op = rounds_.op_of(header.round);
    if (op.words() != header.call || op.sequence != header.sequence) differ(op.sequence, op.words());
  }
  view_.fail(AbortKind::kMismatch, theirs + " sent a frame out of turn" +
                                       (rounds_.empty() ? "" : " during " + numbered(rounds_.oldest().call)));
}

/// Where the blobs of a frame go. REQUIRES: it is the next one that is due.
Gateways::Targets Gateways::blobs_from(Peer& peer, const FrameHeader& header) {
  const PendingCall& op = rounds_.op_of(header.round);
  check_call(peer, header, op);
  Targets targets;
  std::size_t bytes = 0;
  for (const int origin : op.hosts.origins(header.round - op.first_round, peer.host, view_.host)) {
    for (const auto& piece : data_.blob(op, header.round - op.first_round, origin)) {
      targets.push_back(piece);
      bytes += piece.size();
    }
  }
  if (header.payload_bytes != bytes) refuse(peer, header);
  return targets;
}

/// A frame of a round that this rank has not launched.
Gateways::Targets Gateways::early_target(Peer& peer) {
  const FrameHeader& header = *peer.link.header();
  const bool in_order = peer.early.empty() || is_before(peer.early.back().header.round, header.round);
  const std::size_t most = static_cast<std::size_t>(view_.layout.hosts()) * view_.region.landing_bytes();
  if (is_before(header.round, rounds_.launched()) || !is_before(header.round, rounds_.freed() + kLandings) ||
      !in_order || !peer.takes(header.round) || header.payload_bytes > most) {
    refuse(peer, header);
  }
  peer.comes_early = true;
  peer.coming.header = header;
  peer.coming.bytes.resize(header.payload_bytes);
  return {peer.coming.bytes};
}

Gateways::Targets Gateways::partials_target(Peer& peer) {
  const FrameHeader& header = *peer.link.header();
  if (!peer.gate) refuse(peer, header);
  if (peer.partials_in == rounds_.launched() || !peer.early.empty()) return early_target(peer);
  if (header.round != peer.partials_in) refuse(peer, header);
  return blobs_from(peer, header);
}

/// The blobs of the round that is due are in their places.
void Gateways::landed(Peer& peer) {
  publish(view_.region.gate(peer.host, peer.lane).landed, ++peer.partials_in);
  skip_rounds(peer);
}

/// Places what came before this rank launched the operation.
void Gateways::place_early(Peer& peer) {
  skip_rounds(peer);
  while (!peer.early.empty() && is_before(peer.early.front().header.round, rounds_.launched())) {
    const EarlyFrame& frame = peer.early.front();
    if (frame.header.round != peer.partials_in) refuse(peer, frame.header);
    const std::byte* from = frame.bytes.data();
    for (const auto& piece : blobs_from(peer, frame.header)) {
      std::copy_n(from, piece.size(), piece.data());
      from += piece.size();
    }
    landed(peer);
    peer.early.pop_front();
  }
}

/// Compares what another rank waits for with what this one called by that number, if it has.
void Gateways::compare_its_call(Peer& peer) {
  if (!peer.its_call) return;
  const FrameHeader header = *peer.its_call;
  const OpWords* mine = rounds_.called(header.sequence);
  if (mine == nullptr) return;
  if (*mine != header.call) refuse(peer, header);
  peer.its_call.reset();
}

/// Tells the rounds what has passed, and the others of this host how far it has what comes from elsewhere.
void Gateways::count() {
  std::uint32_t inputs = rounds_.launched(), results = inputs;
  const auto least = [](std::uint32_t& of, std::uint32_t count) {
    if (is_before(count, of)) of = count;
  };
  for (const Peer* gate : gates_) {
    least(inputs, gate->partials_in);
    least(inputs, gate->partials_out);
    least(results, gate->results_in);
    least(results, gate->results_out);
  }
  rounds_.set_passed(inputs);
  if (results != std::exchange(delivered_, results)) publish(view_.mine.delivered, delivered_);
}

Gateways::Targets Gateways::result_target(Peer& peer) {
  const FrameHeader& header = *peer.link.header();
  const std::uint32_t round = peer.results_in;
  if (!peer.gate || round == rounds_.launched() || header.round != round) refuse(peer, header);
  const PendingCall& op = rounds_.op_of(round);
  check_call(peer, header, op);
  const std::uint32_t r = round - op.first_round;
  if (!op.agreed || header.payload_bytes != op.hosts.result_bytes(r, peer.host, view_.host)) {
    refuse(peer, header);
  }
  const int to = op.is(OpKind::kReduce) ? op.call.peer : view_.rank;
  Targets targets;
  for (const int owner : view_.layout.members(peer.host)) {
    const std::size_t bytes = op.plan().results(r, owner, to).size() * op.element();
    if (bytes != 0) targets.emplace_back(data_.target(op, r, owner, to), bytes);
  }
  return targets;
}

/// Where the payload of the frame that comes in goes.
Gateways::Targets Gateways::target_of(Peer& peer) {
  const FrameHeader& header = *peer.link.header();
  switch (header.kind) {
    case FrameKind::kPartials:
      return partials_target(peer);
    case FrameKind::kResult:
      return result_target(peer);
    case FrameKind::kAbort:
      peer.coming.bytes.resize(header.payload_bytes);
      return {peer.coming.bytes};
    case FrameKind::kFreed:
    case FrameKind::kLeft:
      if (header.payload_bytes != 0) refuse(peer, header);
      return {};
    case FrameKind::kCalled:
      if (!peer.gate || header.payload_bytes != sizeof peer.its_missing) refuse(peer, header);
      return {std::as_writable_bytes(std::span(&peer.its_missing, 1))};
    default:
      const auto target = peer.mailbox.begin(header);
      check(peer.mailbox);
      return {target};
  }
}

/// A frame is whole.
void Gateways::received(Peer& peer) {
  const FrameHeader& header = *peer.link.header();
  if (header.kind <= FrameKind::kFreed && header.kind != FrameKind::kAbort &&
      is_before(peer.freed_there, header.freed)) {
    peer.freed_there = header.freed;
  }
  switch (header.kind) {
    case FrameKind::kPartials:
      if (std::exchange(peer.comes_early, false)) {
        peer.early.push_back(std::exchange(peer.coming, {}));
        place_early(peer);
      } else {
        landed(peer);
      }
      break;
    case FrameKind::kResult: {
      const PendingCall& op = rounds_.op_of(peer.results_in);
      for (const int owner : view_.layout.members(peer.host)) {
        data_.pass_on(op, peer.results_in - op.first_round, owner);
      }
      ++peer.results_in;
      skip_rounds(peer);
      break;
    }
    case FrameKind::kAbort:
      view_.fail(AbortKind::kRequested,
                 std::string(reinterpret_cast<const char*>(peer.coming.bytes.data()), header.payload_bytes));
    case FrameKind::kFreed:
      break;
    case FrameKind::kLeft:
      peer.left = true;
      acknowledge(peer.link.fd());
      break;
    case FrameKind::kCalled:
      peer.its_call = header;
      view_.region.gate(peer.host, peer.lane)
          .missing_there.store(peer.its_missing, std::memory_order_relaxed);
      view_.region.gate(peer.host, peer.lane).stalls_at.store(header.sequence, std::memory_order_release);
      compare_its_call(peer);
      break;
    default:
      peer.mailbox.end();
      check(peer.mailbox);
  }
}

bool Gateways::receive_from(Peer& peer) {
  return peer.link.receive([&] { return target_of(peer); }, [&] { received(peer); });
}

/// Whether this rank still needs `peer`. One that has done its part may go, and with it what no operation
/// here waits for, such as the news that its messages were taken.
bool Gateways::needs(const Peer& peer) const {
  const auto is_due = [&](std::uint32_t count) { return peer.gate && is_before(count, rounds_.launched()); };
  return is_due(peer.partials_in) || is_due(peer.partials_out) || is_due(peer.results_in) ||
         is_due(peer.results_out) || peer.mailbox.in_flight() != 0;
}

/// Notes which connections have something or take more, of all that had not or did not.
void Gateways::poll(Duration limit) {
  std::array<epoll_event, 64> events;
  const int n = ::epoll_wait(sockets_.get(), events.data(), static_cast<int>(events.size()),
                             static_cast<int>(limit / std::chrono::milliseconds(1)));
  for (int i = 0; i < n; ++i) {
    if (events[static_cast<std::size_t>(i)].data.ptr == nullptr) {
      connections_due_ = true;
      continue;
    }
    Peer& peer = *static_cast<Peer*>(events[static_cast<std::size_t>(i)].data.ptr);
    const std::uint32_t what = events[static_cast<std::size_t>(i)].events;
    peer.may_read = peer.may_read || (what & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    peer.may_write = peer.may_write || (what & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
  }
}

bool Gateways::exchange() {
  poll(Duration::zero());
  bool moved = take_connections();
  const Peer* lost = nullptr;
  for (auto& [rank, peer] : peers_) {
    skip_rounds(peer);
    if (std::exchange(peer.may_read, false)) moved = receive_from(peer) || moved;
    if (peer.may_write) {
      moved = send_to(peer) || moved;
      peer.may_write = !peer.link.sending();
    }
    if (!peer.link.broken().empty() && needs(peer)) lost = &peer;
  }
  count();
  if (lost == nullptr) return moved;
  // It may have gone because of an abort that another rank has told this one of meanwhile.
  for (auto& [rank, peer] : peers_) receive_from(peer);
  const std::string name = "rank " + std::to_string(lost->link.rank());
  const auto message = lost->mailbox.oldest();
  const std::string what = !rounds_.empty() ? numbered(rounds_.oldest().call)
                           : message        ? to_string(*message)
                                            : "nothing";
  view_.fail(AbortKind::kPeerLost, lost->left ? name + " left the group before " + what
                                              : "lost " + name + ": " + lost->link.broken());
}

/// Waits for a slice until a connection takes more of what is on its way; false: none will.
bool Gateways::wait_to_send() {
  std::vector<pollfd> sockets;
  for (const auto& [rank, peer] : peers_) {
    if (peer.link.fd() >= 0 && peer.link.sending() && peer.link.broken().empty())
      sockets.push_back({peer.link.fd(), POLLOUT, 0});
  }
  ::poll(sockets.data(), sockets.size(), static_cast<int>(kSleepSlice / std::chrono::milliseconds(1)));
  // Who has hung up takes no more.
  return std::any_of(sockets.begin(), sockets.end(),
                     [](const pollfd& s) { return (s.revents & (POLLERR | POLLHUP)) == 0; });
}

void Gateways::tell_abort() {
  if (std::exchange(told_abort_, true)) return;
  connector_.reset();
  if (peers_.empty()) return;
  const std::string reason = region_abort_reason(view_.region.abort_word()).text;
  for (auto& [rank, peer] : peers_) peer.link.say_abort(reason);
  // A large frame may be half out, and the reason behind it: a peer that waits reads it at once. Nothing is
  // received any more: it would go to buffers that may be their owner's again.
  const MonotonicClock clock;
  const Instant until = clock.now() + kLastWords;
  while (wait_to_send() && clock.now() < until) {
    for (auto& [rank, peer] : peers_) peer.link.pump_out();
  }
  for (auto& [rank, peer] : peers_) peer.link.close();
}

void Gateways::leave() {
  if (!view_.is_aborted()) {
    for (auto& [rank, peer] : peers_) peer.link.say_left();
    return connector_.reset();
  }
  for (auto& [rank, peer] : peers_) {
    if (peer.link.sending()) peer.link.close();
  }
  tell_abort();
}

void Gateways::linger() {
  if (view_.is_aborted()) return;
  const MonotonicClock clock;
  const Instant until = clock.now() + kLinger;
  const auto all_arrived = [this] {
    bool all = true;
    for (auto& [rank, peer] : peers_) all = peer.link.has_arrived() && all;
    return all;
  };
  while (!all_arrived() && clock.now() < until) std::this_thread::sleep_for(kSleepSlice);  // no ACK wakes
}

}  // namespace troupe::collectives
