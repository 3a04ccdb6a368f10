/// The engine's half that talks to ranks of other machines.
///
/// On each connection both sides send, for every round in order, their partials of the receiver's slice and
/// then, if the operation reduces, their own slice of the result. A rank that has sent its result has
/// received all partials, so a result may be stored over the slice of slot 0 that it answers.

#include <poll.h>

#include <algorithm>

#include "collectives/native/engine.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives {
namespace {

bool is_before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
}

}  // namespace

bool Engine::has_partials(const Remote& remote, std::uint32_t round) const {
  return is_before(round, remote.receive_round) || (remote.receive_round == round && remote.has_partials);
}

std::size_t Engine::partials_bytes(const Op& op, std::uint32_t round, int from, int to) const {
  const std::size_t element = element_size(op.contract.dtype);
  const Part part = part_of(op, round);
  if (reduces(op)) return partials_of(op, from) * slice_of(part.count, element, to, size_).size() * element;
  return op.contract.kind == OpKind::kBroadcast && op.contract.index == from ? part.count * element : 0;
}

FrameHeader Engine::header_for(const Op& op, std::uint32_t round, FrameKind kind, std::size_t bytes) const {
  return {
      .kind = kind, .sequence = op.sequence, .round = round, .contract = op.contract, .payload_bytes = bytes};
}

void Engine::send_partials(Remote& remote, const Op& op) {
  const std::uint32_t round = remote.send_round;
  const std::size_t bytes = partials_bytes(op, round, rank_, remote.link.rank());
  std::vector<std::span<const std::byte>> pieces;
  if (bytes != 0 && reduces(op)) {
    const std::size_t element = element_size(op.contract.dtype);
    const Slice theirs = slice_of(part_of(op, round).count, element, remote.link.rank(), size_);
    for (std::size_t p = 0; p < partials_of(op, rank_); ++p) {
      pieces.emplace_back(slot(op, round, rank_, p) + theirs.begin * element, theirs.size() * element);
    }
  } else if (bytes != 0) {
    pieces.emplace_back(slot(op, round, rank_, 0), bytes);
  }
  remote.link.send(header_for(op, round, FrameKind::kPartials, bytes), std::move(pieces));
}

void Engine::send_result(Remote& remote, const Op& op) {
  const std::uint32_t round = remote.send_round;
  const std::size_t element = element_size(op.contract.dtype);
  const Slice mine = slice_of(part_of(op, round).count, element, rank_, size_);
  const std::size_t bytes = mine.size() * element;
  remote.link.send(header_for(op, round, FrameKind::kResult, bytes),
                   {std::span<const std::byte>(slot(op, round, rank_, 0) + mine.begin * element, bytes)});
}

bool Engine::send_to(Remote& remote) {
  using Sending = Remote::Sending;
  bool moved = false;
  while (!remote.link.sending()) {
    const std::uint32_t round = remote.send_round;
    if (remote.sending == Sending::kNothing) {
      if (!is_before(round, arrived_)) break;
      send_partials(remote, op_of(round));
      remote.sending = Sending::kPartials;
    } else if (remote.sending == Sending::kPartials) {
      remote.sending = Sending::kToReduce;
    } else if (remote.sending == Sending::kToReduce && reduces(op_of(round))) {
      if (!is_before(round, reduced_)) break;
      send_result(remote, op_of(round));
      remote.sending = Sending::kResult;
    } else {
      remote.sending = Sending::kNothing;
      ++remote.send_round;
    }
    moved = true;
    remote.link.pump();
  }
  return moved;
}

/// Refuses a frame that is not the one that this rank's own operation calls for.
void Engine::check_frame(const Remote& remote, const Op& op, std::size_t expected_bytes) {
  const FrameHeader& header = *remote.link.header();
  const std::string who = "rank " + std::to_string(remote.link.rank());
  const auto kind = remote.has_partials ? FrameKind::kResult : FrameKind::kPartials;
  if (header.contract != op.contract || header.sequence != op.sequence) {
    fail(AbortKind::kMismatch, "rank " + std::to_string(rank_) + " called " + name_of(op) + " and " + who +
                                   " " + to_string(header.contract) + " #" + std::to_string(header.sequence));
  }
  if (header.kind != kind || header.round != remote.receive_round || header.payload_bytes != expected_bytes) {
    fail(AbortKind::kMismatch, who + " sent a frame out of turn during " + name_of(op));
  }
}

/// Where the payload of the frame that comes in goes.
std::span<std::byte> Engine::target_of(Remote& remote, const Op& op) {
  const std::uint32_t round = remote.receive_round;
  if (!remote.has_partials) {
    const std::size_t bytes = partials_bytes(op, round, remote.link.rank(), rank_);
    check_frame(remote, op, bytes);
    if (remote.partials.size() < bytes) remote.partials.resize(bytes);
    return std::span(remote.partials).first(bytes);
  }
  const std::size_t element = element_size(op.contract.dtype);
  const Slice theirs = slice_of(part_of(op, round).count, element, remote.link.rank(), size_);
  check_frame(remote, op, theirs.size() * element);
  return {slot(op, round, rank_, 0) + theirs.begin * element, theirs.size() * element};
}

bool Engine::receive_from(Remote& remote) {
  Link& link = remote.link;
  bool moved = false;
  while (link.header()) {
    if (!link.has_target()) {
      if (link.header()->kind == FrameKind::kAbort) {
        remote.partials.resize(link.header()->payload_bytes);
        link.receive_into(remote.partials);
      } else {
        // The next round's partials wait in the socket until this round's are summed.
        if (!is_before(remote.receive_round, launched_)) return moved;
        if (!remote.has_partials && is_before(reduced_, remote.receive_round)) return moved;
        link.receive_into(target_of(remote, op_of(remote.receive_round)));
      }
      link.pump();
    }
    if (!link.received()) return moved;
    if (link.header()->kind == FrameKind::kAbort) {
      const auto* text = reinterpret_cast<const char*>(remote.partials.data());
      fail(AbortKind::kRequested, std::string(text, link.header()->payload_bytes));
    }
    const bool result_follows = !remote.has_partials && reduces(op_of(remote.receive_round));
    remote.has_partials = result_follows;
    if (!result_follows) ++remote.receive_round;
    link.next_frame();
    link.pump();
    moved = true;
  }
  return moved;
}

bool Engine::exchange() {
  bool moved = false;
  for (auto& [rank, remote] : remotes_) {
    moved = remote.link.pump() || moved;
    moved = send_to(remote) || moved;
    moved = receive_from(remote) || moved;
    // A rank that has done its part may go; it is lost only if this one still needs it.
    const bool needed = is_before(remote.receive_round, launched_) || remote.link.sending();
    if (!remote.link.broken().empty() && needed) {
      fail(AbortKind::kPeerLost, "lost rank " + std::to_string(rank) + ": " + remote.link.broken());
    }
  }
  return moved;
}

void Engine::sleep_on_sockets() {
  std::vector<pollfd> sockets;
  for (const auto& [rank, remote] : remotes_) {
    const bool reads = !remote.link.header() || (remote.link.has_target() && !remote.link.received());
    const int events =
        (reads && remote.link.broken().empty() ? POLLIN : 0) | (remote.link.sending() ? POLLOUT : 0);
    if (events != 0) sockets.push_back({remote.link.fd(), static_cast<short>(events), 0});
  }
  ::poll(sockets.data(), sockets.size(), static_cast<int>(kSleepSlice / std::chrono::milliseconds(1)));
}

}  // namespace troupe::collectives
