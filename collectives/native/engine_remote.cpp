/// The engine's half that talks to ranks of other hosts.
///
/// On each connection both sides send, for every round in order, what the other reads of their input
/// (kPartials, empty if nothing: it stands for having arrived) and, where sums go back, their slice of the
/// result (kResult). A rank that has sent its result has received all partials, so a result may be stored
/// over the slice that it answers.
///
/// Always drain every connection: a message that somebody waits for may be queued behind another. So eager
/// data is small: partials of more than kEagerPartials wait for the receiver's kReady. The receiver sends
/// kReady once it has launched the operation and has room. A rank whose own partials are large sends kReady
/// too, so that each rank says what it called before it waits for another. Partials are sent for at most
/// kWindow rounds that this rank has not reduced itself, hence at most twice as many wait at a receiver.

#include <poll.h>

#include <algorithm>

#include "collectives/native/engine.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives {
namespace {

constexpr std::uint32_t kWindow = 8;       ///< rounds
constexpr std::uint32_t kLargeWindow = 2;  ///< rounds, of partials that are larger than a chunk

}  // namespace

bool Engine::has_partials(const Remote& remote, std::uint32_t round) const {
  return is_before(round, reduced_ + static_cast<std::uint32_t>(remote.received.size()));
}

/// Whether this rank may reduce a round as far as `remote` goes. What goes out may be gone afterwards:
/// one-shot, the sum is stored over the own input; in a host group, the others' inputs are theirs again.
bool Engine::has_arrived(const Remote& remote, std::uint32_t round) const {
  if (!has_partials(remote, round)) return false;
  const Pending& op = op_of(round);
  return is_before(round, remote.partials_out) || !(op.plan.one_shot() || by_host_group(op, rank_));
}

/// What `from` sends `to`, on another machine, in a round of the group.
std::size_t Engine::partials_bytes(const Pending& op, std::uint32_t round, int from, int to) const {
  const int origin = origin_of(op, from);
  if (op.relayed) {
    const bool sends = op.is(OpKind::kBroadcast) ? layout_.feeds(origin, from, to, round)
                                                 : layout_.relay(from, to, round) == to;
    if (!sends) return 0;
  }
  return partials_sent(op, from, to) *
         op.plan.reads(round - op.first_round, op.relayed ? origin : from, to).size() * op.element;
}

FrameHeader Engine::header_for(const Pending& op, std::uint32_t round, FrameKind kind,
                               std::size_t bytes) const {
  return {.kind = kind, .sequence = op.sequence, .round = round, .call = op.words, .payload_bytes = bytes};
}

// Sending.

bool Engine::start_ready(Remote& remote) {
  for (; is_before(remote.ready_out, launched_); ++remote.ready_out) {
    const std::uint32_t round = remote.ready_out;
    const Pending& op = op_of(round);
    const std::size_t in = partials_bytes(op, round, remote.link.rank(), rank_);
    if (std::max(in, partials_bytes(op, round, rank_, remote.link.rank())) <= kEagerPartials) continue;
    if (!is_before(round, reduced_ + (in <= kChunkBytes ? kWindow : kLargeWindow))) return false;
    if (into_stage(op) && !is_before(round, arrived_)) return false;  // it is not free yet
    remote.link.send(header_for(op, round, FrameKind::kReady, 0), {});
    remote.sending = Remote::Sending::kReady;
    return true;
  }
  return false;
}

bool Engine::start_result(Remote& remote) {
  for (; is_before(remote.results_out, launched_); ++remote.results_out) {
    const std::uint32_t round = remote.results_out;
    const Pending& op = op_of(round);
    const Slice sums = op.plan.results(round - op.first_round, rank_, remote.link.rank());
    if (sums.size() == 0 || !takes_result(op, remote.link.rank(), rank_)) continue;
    if (!is_before(round, reduced_)) return false;
    const std::span<const std::byte> bytes(own_sum(op, round - op.first_round), sums.size() * op.element);
    remote.link.send(header_for(op, round, FrameKind::kResult, bytes.size()), {bytes});
    remote.sending = Remote::Sending::kResult;
    return true;
  }
  return false;
}

bool Engine::start_partials(Remote& remote) {
  const std::uint32_t round = remote.partials_out;
  if (!is_before(round, arrived_) || !is_before(round, reduced_ + kWindow)) return false;
  Pending& op = op_of(round);
  const std::size_t bytes = partials_bytes(op, round, rank_, remote.link.rank());
  if (bytes > kEagerPartials && !is_before(round, remote.ready_in)) return false;
  std::vector<std::span<const std::byte>> pieces;
  if (bytes != 0 && by_host_group(op, rank_)) {
    if (!locals_arrived(round)) return false;
    if (!op.agreed) agree(op);
    pieces.push_back(add_up_host_group(remote, op, round - op.first_round));
  } else if (bytes != 0 && op.relayed && origin_of(op, rank_) != rank_) {
    if (!is_before(round, relayed_)) return false;
    pieces.emplace_back(landing(op, round - op.first_round, origin_of(op, rank_)), bytes);
  } else if (bytes != 0) {
    const Slice theirs = op.plan.reads(round - op.first_round, rank_, remote.link.rank());
    for (std::size_t p = 0; p < partials_of(op, rank_); ++p) {
      pieces.emplace_back(own_input(op, p) + theirs.begin * op.element, theirs.size() * op.element);
    }
  }
  remote.link.send(header_for(op, round, FrameKind::kPartials, bytes), std::move(pieces));
  remote.sending = Remote::Sending::kPartials;
  return true;
}

bool Engine::start_message(Remote& remote) {
  auto frame = remote.mailbox.next();
  if (!frame) return false;
  remote.link.send(frame->header, std::move(frame->pieces));
  remote.sending = Remote::Sending::kMessage;
  return true;
}

/// The frame that was on its way is out.
void Engine::sent(Remote& remote) {
  using Sending = Remote::Sending;
  const Sending what = std::exchange(remote.sending, Sending::kNothing);
  if (what == Sending::kReady) ++remote.ready_out;
  if (what == Sending::kPartials) ++remote.partials_out;
  if (what == Sending::kResult) ++remote.results_out;
  if (what == Sending::kMessage) remote.mailbox.sent();
}

bool Engine::start_frame(Remote& remote) {
  if (std::exchange(remote.message_first, false) && start_message(remote)) return true;
  if (start_ready(remote) || start_result(remote) || start_partials(remote)) {
    remote.message_first = true;
    return true;
  }
  return start_message(remote);
}

bool Engine::send_to(Remote& remote) {
  bool moved = false;
  while (!remote.link.sending()) {
    if (remote.sending != Remote::Sending::kNothing) {
      sent(remote);
      moved = true;
    }
    if (!start_frame(remote)) break;
    moved = true;
    remote.link.pump();
  }
  return moved;
}

// Receiving.

void Engine::out_of_turn(const Remote& remote) {
  fail(AbortKind::kMismatch, "rank " + std::to_string(remote.link.rank()) + " sent a frame out of turn" +
                                 (ops_.empty() ? "" : " during " + numbered(ops_.front().call)));
}

/// Refuses a frame that is of another operation than this rank's own at that round.
void Engine::check_call(const Remote& remote, const FrameHeader& header, const Pending& op) {
  if (header.call == op.words && header.sequence == op.sequence) return;
  fail(AbortKind::kMismatch, "rank " + std::to_string(rank_) + " called " + numbered(op.call) + " and rank " +
                                 std::to_string(remote.link.rank()) + " " + to_string(header.call) + " #" +
                                 std::to_string(header.sequence));
}

/// Checks what came before this rank launched `op`.
void Engine::check_received(const Pending& op) {
  for (auto& [rank, remote] : remotes_) {
    for (const ReceivedPartial& partial : remote.received) {
      const std::uint32_t round = partial.header.round;
      if (is_before(round, op.first_round) || !is_before(round, launched_)) continue;
      check_call(remote, partial.header, op);
      if (partial.header.payload_bytes != partials_bytes(op, round, rank, rank_)) out_of_turn(remote);
    }
  }
}

std::span<std::byte> Engine::partials_target(Remote& remote) {
  const FrameHeader& header = *remote.link.header();
  const std::uint32_t round = reduced_ + static_cast<std::uint32_t>(remote.received.size());
  const std::size_t bytes = header.payload_bytes;
  const bool large = bytes > kEagerPartials;
  remote.coming.header = header;
  remote.coming.placed = false;
  if (is_before(round, launched_)) {
    const Pending& op = op_of(round);
    check_call(remote, header, op);
    const bool asked_for = !is_before(remote.ready_out, round);  // kReady may be out and not yet counted
    if (header.round != round || bytes != partials_bytes(op, round, remote.link.rank(), rank_) ||
        (large && !asked_for)) {
      out_of_turn(remote);
    }
    if (op.relayed) {
      remote.coming.placed = !into_stage(op) || is_before(round, arrived_);  // else it waits (relay())
      if (remote.coming.placed && bytes != 0)
        return {landing(op, round - op.first_round, origin_of(op, remote.link.rank())), bytes};
    } else if (bytes != 0 && !op.plan.sums()) {
      const std::size_t at = op.plan.writes(round - op.first_round, remote.link.rank());
      remote.coming.placed = true;
      return {op.call.out() + at * op.element, bytes};
    }
  } else if (header.round != round || large) {
    out_of_turn(remote);
  }
  if (remote.received.size() >= 2 * kWindow) out_of_turn(remote);
  if (remote.coming.bytes.empty() && !remote.spare.empty()) {
    remote.coming.bytes = std::move(remote.spare.back());
    remote.spare.pop_back();
  }
  if (remote.coming.bytes.size() < bytes) remote.coming.bytes.resize(bytes);
  return std::span(remote.coming.bytes).first(bytes);
}

/// Passes over rounds in which nothing comes back from this rank.
void Engine::skip_results(Remote& remote) {
  for (; is_before(remote.results_in, launched_); ++remote.results_in) {
    const Pending& op = op_of(remote.results_in);
    const int owner = remote.link.rank();
    const bool comes = op.plan.results(remote.results_in - op.first_round, owner, rank_).size() != 0;
    if (comes && takes_result(op, rank_, owner)) return;
  }
}

/// Tells the others of this machine how far it has what comes from elsewhere.
void Engine::count_delivered() {
  std::uint32_t all = relayed_;
  for (const auto& [rank, remote] : remotes_) {
    if (is_before(remote.results_in, all)) all = remote.results_in;
  }
  if (all == delivered_) return;
  delivered_ = all;
  publish(mine_.delivered, delivered_);
}

std::span<std::byte> Engine::result_target(Remote& remote) {
  const FrameHeader& header = *remote.link.header();
  skip_results(remote);
  const std::uint32_t round = remote.results_in;
  if (header.round != round || !is_before(round, arrived_)) out_of_turn(remote);
  const Pending& op = op_of(round);
  check_call(remote, header, op);
  const Slice sums = op.plan.results(round - op.first_round, remote.link.rank(), rank_);
  if (header.payload_bytes != sums.size() * op.element) out_of_turn(remote);
  return {own_output(op) + sums.begin * op.element, sums.size() * op.element};
}

/// Where the payload of the frame that comes in goes.
std::span<std::byte> Engine::target_of(Remote& remote) {
  const FrameHeader& header = *remote.link.header();
  switch (header.kind) {
    case FrameKind::kPartials:
      return partials_target(remote);
    case FrameKind::kResult:
      return result_target(remote);
    case FrameKind::kAbort:
      remote.coming.bytes.resize(header.payload_bytes);
      return remote.coming.bytes;
    case FrameKind::kReady:
      if (header.payload_bytes != 0) out_of_turn(remote);
      return {};
    default:
      const auto target = remote.mailbox.begin(header);
      check(remote.mailbox);
      return target;
  }
}

/// A frame is whole.
void Engine::received(Remote& remote) {
  const FrameHeader& header = *remote.link.header();
  switch (header.kind) {
    case FrameKind::kPartials:
      remote.received.push_back(std::exchange(remote.coming, {}));
      break;
    case FrameKind::kResult: {
      const Pending& op = op_of(remote.results_in);
      pass_on(op, remote.results_in - op.first_round, remote.link.rank());
      ++remote.results_in;
      break;
    }
    case FrameKind::kAbort:
      fail(AbortKind::kRequested,
           std::string(reinterpret_cast<const char*>(remote.coming.bytes.data()), header.payload_bytes));
    case FrameKind::kReady:
      if (!is_before(header.round, completed_) && is_before(header.round, launched_)) {
        check_call(remote, header, op_of(header.round));
      }
      if (is_before(remote.ready_in, header.round + 1)) remote.ready_in = header.round + 1;
      break;
    default:
      remote.mailbox.end();
      check(remote.mailbox);
  }
}

bool Engine::receive_from(Remote& remote) {
  Link& link = remote.link;
  bool moved = false;
  while (link.header()) {
    if (!link.has_target()) {
      link.receive_into(target_of(remote));
      link.pump();
    }
    if (!link.received()) return moved;
    received(remote);
    link.next_frame();
    link.pump();
    moved = true;
  }
  return moved;
}

/// Whether this rank still needs `remote`. One that has done its part may go.
bool Engine::needs(const Remote& remote) const {
  return !has_partials(remote, launched_ - 1) || is_before(remote.results_in, launched_) ||
         is_before(remote.partials_out, launched_) || remote.link.sending() ||
         remote.mailbox.in_flight() != 0;
}

bool Engine::exchange() {
  bool moved = false;
  const Remote* lost = nullptr;
  for (auto& [rank, remote] : remotes_) {
    moved = remote.link.pump() || moved;
    moved = send_to(remote) || moved;
    moved = receive_from(remote) || moved;
    skip_results(remote);
    if (!remote.link.broken().empty() && needs(remote)) lost = &remote;
  }
  count_delivered();
  if (lost == nullptr) return moved;
  // It may have gone because of an abort that another rank has told this one of meanwhile.
  for (auto& [rank, remote] : remotes_) {
    remote.link.pump();
    receive_from(remote);
  }
  fail(AbortKind::kPeerLost, "lost rank " + std::to_string(lost->link.rank()) + ": " + lost->link.broken());
}

void Engine::sleep_on_sockets() {
  std::vector<pollfd> sockets;
  for (const auto& [rank, remote] : remotes_) {
    if (!remote.link.broken().empty()) continue;
    const int events = POLLIN | (remote.link.sending() ? POLLOUT : 0);
    sockets.push_back({remote.link.fd(), static_cast<short>(events), 0});
  }
  ::poll(sockets.data(), sockets.size(), static_cast<int>(kSleepSlice / std::chrono::milliseconds(1)));
}

/// Waits for a slice until a connection takes more of what is on its way; false: none will.
bool Engine::wait_to_send() {
  std::vector<pollfd> sockets;
  for (const auto& [rank, remote] : remotes_) {
    if (remote.link.sending() && remote.link.broken().empty())
      sockets.push_back({remote.link.fd(), POLLOUT, 0});
  }
  ::poll(sockets.data(), sockets.size(), static_cast<int>(kSleepSlice / std::chrono::milliseconds(1)));
  // Who has hung up takes no more.
  return std::any_of(sockets.begin(), sockets.end(),
                     [](const pollfd& s) { return (s.revents & (POLLERR | POLLHUP)) == 0; });
}

}  // namespace troupe::collectives
