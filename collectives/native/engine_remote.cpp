/// The engine's half that talks to ranks of other hosts.
///
/// On the connection of two gateways (host_layout.hpp) each side sends, for every round that the connection
/// takes, in order, what its host has for the other (kPartials) and, where sums go back, the slices that its
/// ranks own (kResult). Nothing is sent of a round in which the host has nothing for the other. A host that
/// has sent its results has received all partials, so results may be stored over the slices that they answer.
///
/// Always drain every connection: a message that somebody waits for may be queued behind a frame of a round
/// that this rank has not launched. Such a frame is kept until it does. There are few of them: a host sends
/// the frames of at most kLandings rounds that the other has not reduced. Each says how many rounds it has
/// reduced with every frame, and with a frame of its own (kFreed) where it sends few others.
///
/// A rank that gets nothing says what it called (kCalled) after a while, so that ranks that called different
/// operations, of which neither has anything for the other, learn it.

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>

#include "collectives/native/engine.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives {

FrameHeader Engine::header_for(Peer& remote, const Pending& op, std::uint32_t round, FrameKind kind,
                               std::size_t bytes) const {
  remote.freed_told = freed();
  return {.kind = kind,
          .sequence = op.sequence,
          .round = round,
          .call = op.words(),
          .payload_bytes = bytes,
          .freed = remote.freed_told};
}

/// Passes over rounds in which nothing goes over this connection, in each of the four ways that it counts.
void Engine::skip_rounds(Peer& remote) {
  if (!remote.gate) return;
  const auto skip = [&](std::uint32_t& count, const auto& is_due) {
    for (; is_before(count, launched_); ++count) {
      const Pending& op = op_of(count);
      if (remote.takes(count) && is_due(op, count - op.first_round)) return;
    }
  };
  const int there = remote.host;
  skip(remote.partials_out, [&](const Pending& op, auto r) { return op.hosts.sends(r, host_, there); });
  skip(remote.partials_in, [&](const Pending& op, auto r) { return op.hosts.sends(r, there, host_); });
  skip(remote.results_out, [&](const Pending& op, auto r) { return op.hosts.result_bytes(r, host_, there); });
  skip(remote.results_in, [&](const Pending& op, auto r) { return op.hosts.result_bytes(r, there, host_); });
}

/// Whether the partials of a round have gone over this rank's connections, both ways. What goes out may be
/// gone afterwards, and an operation that is over knows of no frame.
bool Engine::gates_are_past(std::uint32_t round) const {
  return std::all_of(gates_.begin(), gates_.end(), [&](const Peer* gate) {
    return is_before(round, gate->partials_out) && is_before(round, gate->partials_in);
  });
}

/// Whether the blob of a host is here. REQUIRES: one comes.
bool Engine::has_landed(const Pending& op, std::uint32_t round, int origin) const {
  const int from = op.hosts.via(origin, host_);
  return reached(region_.gate(from, round % layout_.lanes(host_, from)).landed, round + 1);
}

// Connections.

/// A rank of another host. What it is sent goes out once the two are connected, which this asks for.
Engine::Peer& Engine::remote_of(int rank) {
  const auto [at, is_new] = remotes_.try_emplace(rank, rank_, rank, layout_.host_of(rank),
                                                 std::span<const std::byte>(), &any_receives_);
  if (is_new) connector_->connect(rank);
  return at->second;
}

void Engine::adopt(int rank, PeerConnection connection) {
  Peer& remote =
      remotes_
          .try_emplace(rank, rank_, rank, layout_.host_of(rank), std::span<const std::byte>(), &any_receives_)
          .first->second;
  if (!connection.socket) return remote.link.connect(std::make_unique<ByteStream>(connection.gone));
  std::unique_ptr<ByteStream> stream = std::make_unique<SocketStream>(std::move(connection.socket), timeout_);
  if (connection.keys) stream = std::make_unique<SealedStream>(std::move(stream), *connection.keys);
  remote.link.connect(std::move(stream));
  remote.may_read = remote.may_write = true;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &remote;
  if (::epoll_ctl(sockets_.get(), EPOLL_CTL_ADD, remote.link.fd(), &event) != 0)
    fail(AbortKind::kPeerLost, io_error("cannot watch a connection", errno, "").message());
}

/// Takes what came about at a first message, of this rank or of another.
bool Engine::take_connections() {
  if (!connector_ || (!std::exchange(connections_due_, false) && !connector_->is_connecting())) return false;
  auto made = connector_->step();
  if (!made) fail(AbortKind::kPeerLost, made.error().message());
  for (auto& [rank, connection] : *made) adopt(rank, std::move(connection));
  return !made->empty();
}

// Sending.

bool Engine::start_freed(Peer& remote) {
  if (!remote.gate || freed() - remote.freed_told < kLandings / 2) return false;
  remote.freed_told = freed();
  remote.link.send({.kind = FrameKind::kFreed, .freed = remote.freed_told}, {});
  remote.sending = Peer::Sending::kTold;
  return true;
}

bool Engine::start_call(Peer& remote) {
  if (!remote.gate || !stalled_ || ops_.empty()) return false;
  const Pending& op = ops_.front();
  if (remote.called_told == op.sequence && remote.missing_told == missing_here_) return false;
  remote.called_told = op.sequence;
  remote.missing_told = missing_here_;
  const auto missing = std::as_bytes(std::span(&remote.missing_told, 1));
  remote.link.send({.kind = FrameKind::kCalled,
                    .sequence = op.sequence,
                    .call = op.words(),
                    .payload_bytes = missing.size()},
                   {missing});
  remote.sending = Peer::Sending::kTold;
  return true;
}

bool Engine::start_result(Peer& remote) {
  const std::uint32_t round = remote.results_out;
  if (!remote.gate || round == launched_ || !is_before(round, freed())) return false;
  const Pending& op = op_of(round);
  const std::uint32_t r = round - op.first_round;
  const int to = op.is(OpKind::kReduce) ? op.call.peer : layout_.members(remote.host).front();
  std::vector<std::span<const std::byte>> pieces;
  for (const int owner : locals_) {
    const std::size_t bytes = op.plan().results(r, owner, to).size() * op.element();
    if (bytes != 0) pieces.emplace_back(own_sum(op, r, owner), bytes);
  }
  remote.link.send(
      header_for(remote, op, round, FrameKind::kResult, op.hosts.result_bytes(r, host_, remote.host)),
      std::move(pieces));
  remote.sending = Peer::Sending::kResult;
  return true;
}

bool Engine::start_partials(Peer& remote) {
  const std::uint32_t round = remote.partials_out;
  if (!remote.gate || round == launched_ || !is_before(round, remote.freed_there + kLandings)) return false;
  Pending& op = op_of(round);
  const std::uint32_t r = round - op.first_round;
  const std::vector<int> origins = op.hosts.origins(r, host_, remote.host);
  for (const int origin : origins) {
    const bool there = origin == host_ ? is_before(round, arrived_) && have_arrived(locals_, round)
                                       : has_landed(op, round, origin);
    if (!there) return false;
  }
  std::vector<std::span<const std::byte>> pieces;
  std::size_t bytes = 0;
  for (const int origin : origins) {
    if (origin != host_) {
      for (const auto& piece : blob(op, r, origin)) pieces.emplace_back(piece);
    } else {
      if (!op.agreed) agree(op);
      for (const auto& piece : own_blob(remote, op, r)) pieces.emplace_back(piece);
    }
  }
  for (const auto& piece : pieces) bytes += piece.size();
  remote.link.send(header_for(remote, op, round, FrameKind::kPartials, bytes), std::move(pieces));
  remote.sending = Peer::Sending::kPartials;
  return true;
}

bool Engine::start_message(Peer& remote) {
  auto frame = remote.mailbox.next();
  if (!frame) return false;
  remote.link.send(frame->header, std::move(frame->pieces));
  remote.sending = Peer::Sending::kMessage;
  return true;
}

/// The frame that was on its way is out.
void Engine::sent(Peer& remote) {
  using Sending = Peer::Sending;
  const Sending what = std::exchange(remote.sending, Sending::kNothing);
  if (what == Sending::kPartials) ++remote.partials_out;
  if (what == Sending::kResult) ++remote.results_out;
  if (what == Sending::kMessage) remote.mailbox.sent();
  skip_rounds(remote);
}

bool Engine::start_frame(Peer& remote) {
  if (std::exchange(remote.message_first, false) && start_message(remote)) return true;
  if (start_result(remote) || start_partials(remote) || start_freed(remote) || start_call(remote)) {
    remote.message_first = true;
    return true;
  }
  return start_message(remote);
}

bool Engine::send_to(Peer& remote) {
  bool moved = remote.link.pump_out();
  while (!remote.link.sending()) {
    if (remote.sending != Peer::Sending::kNothing) {
      sent(remote);
      moved = true;
    }
    if (!start_frame(remote)) break;
    moved = true;
    remote.link.pump_out();
  }
  return moved;
}

// Receiving.

/// Refuses a frame that is of another operation than this rank's own at that round.
void Engine::check_call(const Peer& remote, const FrameHeader& header, const Pending& op) {
  if (header.call != op.words() || header.sequence != op.sequence) refuse(remote, header);
}

/// A frame does not belong here: names what both called, if that is why.
void Engine::refuse(const Peer& remote, const FrameHeader& header) {
  const std::string theirs = "rank " + std::to_string(remote.link.rank());
  const bool of_round = header.kind == FrameKind::kPartials || header.kind == FrameKind::kResult;
  const bool of_call = of_round || header.kind == FrameKind::kCalled;
  const auto differ = [&](std::uint32_t sequence, const OpWords& words) {
    fail(AbortKind::kMismatch, "rank " + std::to_string(rank_) + " called " + to_string(words) + " #" +
                                   std::to_string(sequence) + " and " + theirs + " " +
                                   to_string(header.call) + " #" + std::to_string(header.sequence));
  };
  for (const auto& [sequence, words] : recent_) {
    if (of_call && sequence == header.sequence && words != header.call) differ(sequence, words);
  }
  if (of_round && !is_before(header.round, completed_) && is_before(header.round, launched_)) {
    const Pending& op = op_of(header.round);
    if (op.words() != header.call || op.sequence != header.sequence) differ(op.sequence, op.words());
  }
  fail(AbortKind::kMismatch,
       theirs + " sent a frame out of turn" + (ops_.empty() ? "" : " during " + numbered(ops_.front().call)));
}

/// Where the blobs of a frame go. REQUIRES: it is the next one that is due.
std::vector<std::span<std::byte>> Engine::blobs_from(Peer& remote, const FrameHeader& header) {
  const Pending& op = op_of(header.round);
  check_call(remote, header, op);
  std::vector<std::span<std::byte>> targets;
  std::size_t bytes = 0;
  for (const int origin : op.hosts.origins(header.round - op.first_round, remote.host, host_)) {
    for (const auto& piece : blob(op, header.round - op.first_round, origin)) {
      targets.push_back(piece);
      bytes += piece.size();
    }
  }
  if (header.payload_bytes != bytes) refuse(remote, header);
  return targets;
}

/// A frame of a round that this rank has not launched.
std::vector<std::span<std::byte>> Engine::early_target(Peer& remote) {
  const FrameHeader& header = *remote.link.header();
  const bool in_order = remote.early.empty() || is_before(remote.early.back().header.round, header.round);
  const std::size_t most = static_cast<std::size_t>(layout_.hosts()) * region_.landing_bytes();
  if (is_before(header.round, launched_) || !is_before(header.round, freed() + kLandings) || !in_order ||
      !remote.takes(header.round) || header.payload_bytes > most) {
    refuse(remote, header);
  }
  remote.comes_early = true;
  remote.coming.header = header;
  remote.coming.bytes.resize(header.payload_bytes);
  return {remote.coming.bytes};
}

std::vector<std::span<std::byte>> Engine::partials_target(Peer& remote) {
  const FrameHeader& header = *remote.link.header();
  if (!remote.gate) refuse(remote, header);
  if (remote.partials_in == launched_ || !remote.early.empty()) return early_target(remote);
  if (header.round != remote.partials_in) refuse(remote, header);
  return blobs_from(remote, header);
}

/// The blobs of the round that is due are in their places.
void Engine::landed(Peer& remote) {
  publish(region_.gate(remote.host, remote.lane).landed, ++remote.partials_in);
  skip_rounds(remote);
}

/// Places what came before this rank launched the operation.
void Engine::place_early(Peer& remote) {
  skip_rounds(remote);
  while (!remote.early.empty() && is_before(remote.early.front().header.round, launched_)) {
    const EarlyFrame& frame = remote.early.front();
    if (frame.header.round != remote.partials_in) refuse(remote, frame.header);
    const std::byte* from = frame.bytes.data();
    for (const auto& piece : blobs_from(remote, frame.header)) {
      std::copy_n(from, piece.size(), piece.data());
      from += piece.size();
    }
    landed(remote);
    remote.early.pop_front();
  }
}

/// Compares what another rank waits for with what this one called by that number, if it has.
void Engine::compare_its_call(Peer& remote) {
  if (!remote.its_call) return;
  const FrameHeader header = *remote.its_call;
  for (const auto& [sequence, words] : recent_) {
    if (sequence != header.sequence) continue;
    if (words != header.call) refuse(remote, header);
    remote.its_call.reset();
  }
}

/// Tells the others of this host how far it has what comes from elsewhere.
void Engine::count_delivered() {
  std::uint32_t all = launched_;
  for (const Peer* gate : gates_) {
    if (is_before(gate->results_in, all)) all = gate->results_in;
    if (is_before(gate->results_out, all)) all = gate->results_out;
  }
  if (all == delivered_) return;
  delivered_ = all;
  publish(mine_.delivered, delivered_);
}

std::vector<std::span<std::byte>> Engine::result_target(Peer& remote) {
  const FrameHeader& header = *remote.link.header();
  const std::uint32_t round = remote.results_in;
  if (!remote.gate || round == launched_ || header.round != round) refuse(remote, header);
  const Pending& op = op_of(round);
  check_call(remote, header, op);
  const std::uint32_t r = round - op.first_round;
  if (!op.agreed || header.payload_bytes != op.hosts.result_bytes(r, remote.host, host_)) {
    refuse(remote, header);
  }
  const int to = op.is(OpKind::kReduce) ? op.call.peer : rank_;
  std::vector<std::span<std::byte>> targets;
  for (const int owner : layout_.members(remote.host)) {
    const std::size_t bytes = op.plan().results(r, owner, to).size() * op.element();
    if (bytes != 0) targets.emplace_back(target(op, r, owner, to), bytes);
  }
  return targets;
}

/// Where the payload of the frame that comes in goes.
std::vector<std::span<std::byte>> Engine::target_of(Peer& remote) {
  const FrameHeader& header = *remote.link.header();
  switch (header.kind) {
    case FrameKind::kPartials:
      return partials_target(remote);
    case FrameKind::kResult:
      return result_target(remote);
    case FrameKind::kAbort:
      remote.coming.bytes.resize(header.payload_bytes);
      return {remote.coming.bytes};
    case FrameKind::kFreed:
    case FrameKind::kLeft:
      if (header.payload_bytes != 0) refuse(remote, header);
      return {};
    case FrameKind::kCalled:
      if (!remote.gate || header.payload_bytes != sizeof remote.its_missing) refuse(remote, header);
      return {std::as_writable_bytes(std::span(&remote.its_missing, 1))};
    default:
      const auto target = remote.mailbox.begin(header);
      check(remote.mailbox);
      return {target};
  }
}

/// A frame is whole.
void Engine::received(Peer& remote) {
  const FrameHeader& header = *remote.link.header();
  if (header.kind <= FrameKind::kFreed && header.kind != FrameKind::kAbort &&
      is_before(remote.freed_there, header.freed)) {
    remote.freed_there = header.freed;
  }
  switch (header.kind) {
    case FrameKind::kPartials:
      if (std::exchange(remote.comes_early, false)) {
        remote.early.push_back(std::exchange(remote.coming, {}));
        place_early(remote);
      } else {
        landed(remote);
      }
      break;
    case FrameKind::kResult: {
      const Pending& op = op_of(remote.results_in);
      for (const int owner : layout_.members(remote.host)) {
        pass_on(op, remote.results_in - op.first_round, owner);
      }
      ++remote.results_in;
      skip_rounds(remote);
      break;
    }
    case FrameKind::kAbort:
      fail(AbortKind::kRequested,
           std::string(reinterpret_cast<const char*>(remote.coming.bytes.data()), header.payload_bytes));
    case FrameKind::kFreed:
      break;
    case FrameKind::kLeft:
      remote.left = true;
      break;
    case FrameKind::kCalled:
      remote.its_call = header;
      region_.gate(remote.host, remote.lane)
          .missing_there.store(remote.its_missing, std::memory_order_relaxed);
      region_.gate(remote.host, remote.lane).stalls_at.store(header.sequence, std::memory_order_release);
      compare_its_call(remote);
      break;
    default:
      remote.mailbox.end();
      check(remote.mailbox);
  }
}

bool Engine::receive_from(Peer& remote) {
  Link& link = remote.link;
  bool moved = link.pump_in();
  while (link.header()) {
    if (!link.has_target()) {
      link.receive_into(target_of(remote));
      link.pump_in();
    }
    if (!link.received()) return moved;
    received(remote);
    link.next_frame();
    link.pump_in();
    moved = true;
  }
  return moved;
}

/// Whether this rank still needs `remote`. One that has done its part may go, and with it what no operation
/// here waits for, such as the news that its messages were taken.
bool Engine::needs(const Peer& remote) const {
  const auto is_due = [&](std::uint32_t count) { return remote.gate && is_before(count, launched_); };
  return is_due(remote.partials_in) || is_due(remote.partials_out) || is_due(remote.results_in) ||
         is_due(remote.results_out) || remote.mailbox.in_flight() != 0;
}

/// Notes which connections have something or take more, of all that had not or did not.
void Engine::poll_sockets(Duration limit) {
  std::array<epoll_event, 64> events;
  const int n = ::epoll_wait(sockets_.get(), events.data(), static_cast<int>(events.size()),
                             static_cast<int>(limit / std::chrono::milliseconds(1)));
  for (int i = 0; i < n; ++i) {
    if (events[static_cast<std::size_t>(i)].data.ptr == nullptr) {
      connections_due_ = true;
      continue;
    }
    Peer& remote = *static_cast<Peer*>(events[static_cast<std::size_t>(i)].data.ptr);
    const std::uint32_t what = events[static_cast<std::size_t>(i)].events;
    remote.may_read = remote.may_read || (what & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    remote.may_write = remote.may_write || (what & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
  }
}

bool Engine::exchange() {
  poll_sockets(Duration::zero());
  bool moved = take_connections();
  const Peer* lost = nullptr;
  for (auto& [rank, remote] : remotes_) {
    skip_rounds(remote);
    if (std::exchange(remote.may_read, false)) moved = receive_from(remote) || moved;
    if (remote.may_write) {
      moved = send_to(remote) || moved;
      remote.may_write = !remote.link.sending();
    }
    if (!remote.link.broken().empty() && needs(remote)) lost = &remote;
  }
  count_delivered();
  if (lost == nullptr) return moved;
  // It may have gone because of an abort that another rank has told this one of meanwhile.
  for (auto& [rank, remote] : remotes_) receive_from(remote);
  const std::string name = "rank " + std::to_string(lost->link.rank());
  fail(AbortKind::kPeerLost, lost->left ? name + " left the group before " + name_of_oldest()
                                        : "lost " + name + ": " + lost->link.broken());
}

/// Waits for a slice until a connection takes more of what is on its way; false: none will.
bool Engine::wait_to_send() {
  std::vector<pollfd> sockets;
  for (const auto& [rank, remote] : remotes_) {
    if (remote.link.fd() >= 0 && remote.link.sending() && remote.link.broken().empty())
      sockets.push_back({remote.link.fd(), POLLOUT, 0});
  }
  ::poll(sockets.data(), sockets.size(), static_cast<int>(kSleepSlice / std::chrono::milliseconds(1)));
  // Who has hung up takes no more.
  return std::any_of(sockets.begin(), sockets.end(),
                     [](const pollfd& s) { return (s.revents & (POLLERR | POLLHUP)) == 0; });
}

}  // namespace troupe::collectives
