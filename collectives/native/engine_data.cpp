/// The engine's half that touches elements: where the inputs, stages and outputs of a round lie, and what is
/// copied or added up. A `round` counts from the operation's first.

#include <algorithm>
#include <cstring>

#include "collectives/native/engine.hpp"

namespace troupe::collectives {

Shape Engine::shape_of(const Op& call) const {
  Shape shape{.ranks = size_, .hosts = layout_.hosts(), .members = layout_.most_members()};
  if (shape.hosts == 1) {
    shape.cores = static_cast<int>(region_.machine_cores());
    return shape;
  }
  const LeafSums& sums = call.kind == OpKind::kAllReduceTree ? leaf_sums_ : rank_sums_;
  const auto& nodes = call.how.op == ReduceOp::kPremulSum ? sums.apart : sums.of_host;
  shape.nodes = *std::max_element(nodes.begin(), nodes.end());
  shape.landing_bytes = region_.landing_bytes();
  return shape;
}

/// Partial `partial` of local rank `rank` in a tree.
std::byte* Engine::slot(const Pending& op, int rank, std::size_t partial) const {
  const Tree& tree = trees_[static_cast<std::size_t>(op.call.peer)];
  return region_.data(local(rank)) + tree.offset + partial * tree.slot_bytes;
}

const std::byte* Engine::own_input(const Pending& op, std::size_t partial) const {
  return op.is(OpKind::kAllReduceTree) ? slot(op, rank_, partial) : op.call.in();
}

std::byte* Engine::own_output(const Pending& op) const {
  return op.is(OpKind::kAllReduceTree) ? slot(op, rank_, 0) : op.call.out();
}

/// Learns where this rank's input is, and whether it has to go through the stage.
void Engine::prepare(Pending& op) const {
  op.places.assign(locals_.size(), 0);
  op.copies_in = op.gated = false;
  if (op.is(OpKind::kAllReduceTree)) {  // compared: every rank has it at the same offset
    op.places[local(rank_)] = trees_[static_cast<std::size_t>(op.call.peer)].offset + 1;
    return;
  }
  const std::size_t bytes = op.plan().input_count(rank_) * op.element();
  const bool placed = !op.plan().one_shot() && op.call.in() != nullptr && bytes != 0 &&
                      region_.holds(local(rank_), op.call.in(), bytes);
  if (placed) {
    op.places[local(rank_)] = static_cast<std::uint64_t>(op.call.in() - region_.data(local(rank_))) + 1;
  }
  op.copies_in = !placed && op.known->is_read;
  // A sum for a root on another host waits in the stage until it is sent. One-shot, a rank would else be
  // ahead of the others' reading by more than there are published calls.
  op.gated = op.copies_in || op.plan().one_shot() || (op.is(OpKind::kReduce) && !is_local(op.call.peer));
}

/// Whether others read what this rank gives, and for whom it waits: one-shot, for those that it reads. A
/// broadcast's root waits for nobody, the others for the root. Where nobody reads anything, as in a barrier,
/// all wait for all.
void Engine::learn_partners(Known& known) const {
  known.is_read = false;
  known.awaits.clear();
  // What nobody reads in the first round, nobody reads later. For other hosts any rank of this one may read.
  for (int other = 0; other < size_ && !alone(); ++other) {
    if (other == rank_) continue;
    known.is_read = known.is_read || known.plan.reads(0, rank_, other).size() != 0;
    if (known.plan.reads(0, other, rank_).size() != 0) known.awaits.push_back(other);
  }
  const bool all = known.awaits.size() + 1 == locals_.size(), none = known.awaits.empty() && !known.is_read;
  // After the first call every rank knows that all are there.
  if (!known.plan.one_shot() || layout_.hosts() > 1 || all || none || known.opens) known.awaits = locals_;
}

/// Copies what others of this host will read of a private input to this rank's stage.
void Engine::stage(const Pending& op, std::uint32_t round) const {
  std::byte* to = region_.stage(local(rank_), op.first_round + round);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Slice wanted = op.plan().reads(round, rank_, peer);
    if (wanted.size() == 0) continue;
    std::memcpy(to + op.plan().staged(round, rank_, peer) * op.element(),
                op.call.in() + wanted.begin * op.element(), wanted.size() * op.element());
    if (op.plan().reads_alike()) return;
  }
}

/// Copies the sums that others of this host stored to this rank's stage to its private output.
void Engine::unstage(const Pending& op, std::uint32_t round) const {
  if (op.is(OpKind::kAllReduceTree) || op.places[local(rank_)] != 0) return;
  const std::byte* from = region_.stage(local(rank_), op.first_round + round);
  const std::size_t begin = op.plan().part(round).begin;
  for (int owner = 0; owner < size_; ++owner) {
    const Slice sums = op.plan().results(round, owner, rank_);
    const int storer =
        is_local(owner) ? owner : layout_.gateway_in(host_, layout_.host_of(owner), op.first_round + round);
    if (storer == rank_ || sums.size() == 0) continue;
    std::memcpy(op.call.out() + sums.begin * op.element(), from + (sums.begin - begin) * op.element(),
                sums.size() * op.element());
  }
}

/// Where this rank reads what `to` reads of the input of `from`, a rank of this host: for itself, or for a
/// rank of another host. REQUIRES: that is something, and `from` has arrived.
const std::byte* Engine::source(const Pending& op, std::uint32_t round, int from, int to,
                                std::size_t partial) const {
  const Slice wanted = op.plan().reads(round, from, to);
  const std::size_t begin = wanted.begin * op.element();
  if (from == rank_) return own_input(op, partial) + begin;
  if (op.is(OpKind::kAllReduceTree)) return slot(op, from, partial) + begin;
  if (op.places[local(from)] != 0) return region_.data(local(from)) + (op.places[local(from)] - 1) + begin;
  return region_.stage(local(from), op.first_round + round) +
         op.plan().staged(round, from, to) * op.element();
}

/// What this rank reads of the input of `from`, a rank of another host. REQUIRES: it has landed.
const std::byte* Engine::landed_part(const Pending& op, std::uint32_t round, int from,
                                     std::size_t part) const {
  return region_.landing(layout_.host_of(from), op.first_round + round) +
         op.hosts.offset(round, from, rank_, part);
}

/// Where the blob of another host goes: to the landing, or to the output where only this rank copies it.
std::vector<std::span<std::byte>> Engine::blob(const Pending& op, std::uint32_t round, int origin) const {
  std::vector<std::span<std::byte>> pieces;
  if (!alone() || op.plan().sums() || !op.hosts.wants(round, origin, host_)) {
    pieces.emplace_back(region_.landing(origin, op.first_round + round),
                        op.hosts.blob_bytes(round, origin, host_));
    return pieces;
  }
  for (const int from : layout_.members(origin)) {
    const std::size_t bytes = op.plan().reads(round, from, rank_).size() * op.element();
    if (bytes != 0) pieces.emplace_back(op.call.out() + op.plan().writes(round, from) * op.element(), bytes);
  }
  return pieces;
}

/// What this host sends another one of its own. REQUIRES: the local ranks have arrived.
std::vector<std::span<const std::byte>> Engine::own_blob(Peer& remote, const Pending& op,
                                                         std::uint32_t round) {
  std::vector<std::span<const std::byte>> pieces;
  const bool adds_up = op.hosts.adds_up() && !alone();
  const int readers = op.hosts.readers(host_, remote.host);
  const std::size_t bytes = op.hosts.bytes(round, host_, readers);
  if (adds_up && remote.added_up.size() < bytes) remote.added_up.resize(bytes);
  for (const int to : op.hosts.receivers(round, host_, readers)) {
    if (adds_up) {
      add_up(remote, op, round, to, op.hosts.offset(round, rank_, to, 0));
      continue;
    }
    for (const int from : locals_) {
      const std::size_t part = op.plan().reads(round, from, to).size() * op.element();
      const std::size_t parts = op.plan().sums() ? partials_of(op, from) : 1;
      for (std::size_t p = 0; p < parts && part != 0; ++p) {
        pieces.emplace_back(source(op, round, from, to, p), part);
      }
    }
  }
  if (adds_up) pieces.emplace_back(remote.added_up.data(), bytes);
  return pieces;
}

/// Where the sum of `owner` is stored for local rank `to`.
std::byte* Engine::target(const Pending& op, std::uint32_t round, int owner, int to) const {
  const std::size_t begin = op.plan().results(round, owner, to).begin;
  if (to == rank_) return own_output(op) + begin * op.element();
  if (op.is(OpKind::kAllReduceTree)) return slot(op, to, 0) + begin * op.element();
  if (op.places[local(to)] != 0) {
    return region_.data(local(to)) + (op.places[local(to)] - 1) + begin * op.element();
  }
  return region_.stage(local(to), op.first_round + round) +
         (begin - op.plan().part(round).begin) * op.element();
}

/// Where the sum of `owner`, a rank of this host, lies for other hosts: where it is stored for this rank, or,
/// if this one gets none, in the owner's part of its own stage, which nobody else reads.
std::byte* Engine::own_sum(const Pending& op, std::uint32_t round, int owner) const {
  const Slice sum = op.plan().results(round, owner, rank_);
  const bool placed = op.is(OpKind::kAllReduceTree) || op.places[local(rank_)] != 0;
  if (sum.size() != 0 && (owner == rank_ || placed)) return target(op, round, owner, rank_);
  const std::size_t at = op.plan().reads(round, owner, owner).begin - op.plan().part(round).begin;
  return region_.stage(local(sum.size() != 0 ? rank_ : owner), op.first_round + round) + at * op.element();
}

void Engine::sum(const Pending& op, std::uint32_t round) {
  const Slice mine = op.plan().reads(round, rank_, rank_);
  if (mine.size() == 0) return;
  sources_.clear();
  targets_.clear();
  LeafSums& sums = sums_of(op);
  const bool added_up = layout_.hosts() > 1 && op.hosts.adds_up();
  std::fill(next_part_.begin(), next_part_.end(), 0);
  for (std::size_t g = 0; g < layout_.host_groups().size(); ++g) {
    const LeafInterval group = layout_.host_groups()[g];
    for (int peer = group.begin; peer < group.end; ++peer) {
      if (!is_local(peer)) {
        std::size_t& part = next_part_[index_of(layout_.host_of(peer))];
        std::size_t parts = added_up ? sums.of_group[g] : partials_of(op, peer);
        for (; parts != 0; --parts) sources_.push_back(landed_part(op, round, peer, part++));
        if (added_up) break;
        continue;
      }
      for (std::size_t p = 0; p < partials_of(op, peer); ++p) {
        sources_.push_back(source(op, round, peer, rank_, p));
      }
    }
  }
  if (!op.plan().answers()) {
    targets_.push_back(op.call.out() + op.plan().writes(round, rank_) * op.element());
  } else {
    for (int peer : locals_) {
      if (op.plan().results(round, rank_, peer).size() != 0)
        targets_.push_back(target(op, round, rank_, peer));
    }
    if (targets_.empty()) targets_.push_back(own_sum(op, round, rank_));
  }
  TreeSum& tree = added_up ? sums.mixed : sums.all;
  tree.run(op.known->kernel, sources_, targets_, mine.size(), op.element(), op.call.how.factor);
}

/// Adds up what the ranks of this host have for `to`, on another one, to `at` of what is sent.
void Engine::add_up(Peer& remote, const Pending& op, std::uint32_t round, int to, std::size_t at) {
  const std::size_t count = op.plan().reads(round, rank_, to).size();
  LeafSums& sums = sums_of(op);
  Kernel kernel = op.known->kernel;
  kernel.divide = nullptr;  // once, at the root
  auto peer = locals_.begin();
  std::size_t partial = 0;
  for (LeafSums::Node& node : sums.own_host) {
    sources_.clear();
    while (sources_.size() < node.sources) {
      if (partial == partials_of(op, *peer)) {
        ++peer;
        partial = 0;
      }
      sources_.push_back(source(op, round, *peer, to, partial++));
    }
    std::byte* target = remote.added_up.data() + at;
    node.sum.run(kernel, sources_, std::span(&target, 1), count, op.element());
    at += count * op.element();
  }
}

/// Stores the sum of `owner`, which this rank received, to the others of its host.
void Engine::pass_on(const Pending& op, std::uint32_t round, int owner) const {
  if (op.is(OpKind::kReduce)) return;
  for (const int to : locals_) {
    const Slice sum = op.plan().results(round, owner, to);
    if (to == rank_ || sum.size() == 0) continue;
    std::memcpy(target(op, round, owner, to), target(op, round, owner, rank_), sum.size() * op.element());
  }
}

/// Copies what this rank reads to its output, beginning with its own and its neighbour's, so that not all
/// read from the same rank at once.
void Engine::copy(const Pending& op, std::uint32_t round) {
  for (int i = 0; i < size_; ++i) {
    const int from = (rank_ + i) % size_;
    const Slice wanted = op.plan().reads(round, from, rank_);
    if (wanted.size() == 0) continue;
    if (!is_local(from) && alone()) continue;  // it came to the output
    std::byte* to = op.call.out() + op.plan().writes(round, from) * op.element();
    const std::byte* at =
        is_local(from) ? source(op, round, from, rank_, 0) : landed_part(op, round, from, 0);
    if (at != to) std::memcpy(to, at, wanted.size() * op.element());
  }
}

}  // namespace troupe::collectives
