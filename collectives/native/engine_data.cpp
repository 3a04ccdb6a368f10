/// The engine's half that touches elements: where the inputs, stages and outputs of a round lie, and what is
/// copied or added up. A `round` counts from the operation's first.

#include <algorithm>
#include <cstring>

#include "collectives/native/engine.hpp"

namespace troupe::collectives {

/// Partial sums that `from` sends to `to` on another machine.
std::size_t Engine::partials_sent(const Pending& op, int from, int to) const {
  if (!by_host_group(op, from)) return partials_of(op, from);
  return layout_.leader(from, to) == from ? sums_of(op).of_host_group[layout_.host_group_of(from)] : 0;
}

/// Whether `to` receives the sum of `owner`, on another host, for its host group.
bool Engine::takes_result(const Pending& op, int to, int owner) const {
  return !by_host_group(op, to) || op.is(OpKind::kReduce) || layout_.leader(to, owner) == to;
}

/// Who on this machine reads this rank's input for `to`; this rank itself if nobody else does.
int Engine::reader_of(const Pending& op, int to) const {
  if (is_local(to)) return to;
  return by_host_group(op, rank_) ? layout_.leader(rank_, to) : rank_;
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
  if (op.is(OpKind::kAllReduceTree)) return;
  const std::size_t bytes = op.plan.input_count(rank_) * op.element;
  const bool placed = !op.plan.one_shot() && op.call.in() != nullptr && bytes != 0 &&
                      region_.holds(local(rank_), op.call.in(), bytes);
  if (placed) {
    op.places[local(rank_)] = static_cast<std::uint64_t>(op.call.in() - region_.data(local(rank_))) + 1;
  }
  // What nobody reads in the first round, nobody reads later.
  for (int to = 0; to < size_ && !placed && !op.copies_in; ++to) {
    op.copies_in = reader_of(op, to) != rank_ && op.plan.reads(0, rank_, to).size() != 0;
  }
  // A sum for a root on another machine waits in the stage until it is sent. One-shot, a rank would else be
  // ahead of the others' reading by more than there are published calls.
  op.gated = op.copies_in || op.plan.one_shot() || into_stage(op) ||
             (op.is(OpKind::kReduce) && !is_local(op.call.peer));
}

/// Copies what the other local ranks will read of a private input to this rank's stage.
void Engine::stage(const Pending& op, std::uint32_t round) const {
  std::byte* to = region_.stage(local(rank_), op.first_round + round);
  for (int peer = 0; peer < size_; ++peer) {
    if (reader_of(op, peer) == rank_) continue;
    const Slice wanted = op.plan.reads(round, rank_, peer);
    if (wanted.size() == 0) continue;
    std::memcpy(to + op.plan.staged(round, rank_, peer) * op.element,
                op.call.in() + wanted.begin * op.element, wanted.size() * op.element);
    if (op.plan.reads_alike()) return;
  }
}

/// Copies the sums that other local ranks stored to this rank's stage to its private output.
void Engine::unstage(const Pending& op, std::uint32_t round) const {
  if (op.is(OpKind::kAllReduceTree) || op.places[local(rank_)] != 0) return;
  const std::byte* from = region_.stage(local(rank_), op.first_round + round);
  const std::size_t begin = op.plan.part(round).begin;
  for (int owner = 0; owner < size_; ++owner) {
    const Slice sums = op.plan.results(round, owner, rank_);
    const bool by_others = owner != rank_ && (is_local(owner) || !takes_result(op, rank_, owner));
    if (!by_others || sums.size() == 0) continue;
    std::memcpy(op.call.out() + sums.begin * op.element, from + (sums.begin - begin) * op.element,
                sums.size() * op.element);
  }
}

/// Where this rank reads of the input of `from` what `to` reads of it: for itself, or of its own host group
/// for a rank of another machine. REQUIRES: that is something, and `from` has arrived.
const std::byte* Engine::source(const Pending& op, std::uint32_t round, int from, int to,
                                std::size_t partial) {
  const Slice wanted = op.plan.reads(round, from, to);
  const std::size_t begin = wanted.begin * op.element;
  if (from == rank_) return own_input(op, partial) + begin;
  if (!is_local(from)) {
    return remotes_.at(from).received.front().bytes.data() + partial * wanted.size() * op.element;
  }
  if (op.is(OpKind::kAllReduceTree)) return slot(op, from, partial) + begin;
  if (op.places[local(from)] != 0) return region_.data(local(from)) + (op.places[local(from)] - 1) + begin;
  return region_.stage(local(from), op.first_round + round) + op.plan.staged(round, from, to) * op.element;
}

/// Where the sum of `owner` is stored for local rank `to`.
std::byte* Engine::target(const Pending& op, std::uint32_t round, int owner, int to) const {
  const std::size_t begin = op.plan.results(round, owner, to).begin;
  if (to == rank_) return own_output(op) + begin * op.element;
  if (op.is(OpKind::kAllReduceTree)) return slot(op, to, 0) + begin * op.element;
  if (op.places[local(to)] != 0) {
    return region_.data(local(to)) + (op.places[local(to)] - 1) + begin * op.element;
  }
  return region_.stage(local(to), op.first_round + round) + (begin - op.plan.part(round).begin) * op.element;
}

/// Where the sum lies that this rank sends to other machines: in its output, or, if it keeps none, in its
/// part of its own stage, which nobody else reads.
std::byte* Engine::own_sum(const Pending& op, std::uint32_t round) const {
  if (op.plan.results(round, rank_, rank_).size() != 0) return target(op, round, rank_, rank_);
  const std::size_t at = op.plan.reads(round, rank_, rank_).begin - op.plan.part(round).begin;
  return region_.stage(local(rank_), op.first_round + round) + at * op.element;
}

/// Whose input `sender` sends to another machine.
int Engine::origin_of(const Pending& op, int sender) const {
  return op.is(OpKind::kBroadcast) ? op.call.peer : sender;
}

/// The address of the relayed input of `from`, a rank of another host: in the relay's stage, or in
/// the output where no other rank of this host copies it.
std::byte* Engine::landing(const Pending& op, std::uint32_t round, int from) const {
  if (!into_stage(op)) return op.call.out() + op.plan.writes(round, from) * op.element;
  const int relay = layout_.relay(from, rank_, op.first_round + round);
  const std::size_t at = op.plan.relayed(layout_.place(from, rank_));
  return region_.stage(local(relay), op.first_round + round) + at * op.element;
}

void Engine::sum(const Pending& op, std::uint32_t round) {
  const Slice mine = op.plan.reads(round, rank_, rank_);
  if (mine.size() == 0) return;
  sources_.clear();
  targets_.clear();
  LeafSums& sums = sums_of(op);
  for (const LeafInterval group : layout_.host_groups()) {
    if (!is_local(group.begin) && by_host_group(op, group.begin)) {
      const int leader = layout_.leader(group.begin, rank_);
      const std::size_t partials = partials_sent(op, leader, rank_);
      for (std::size_t p = 0; p < partials; ++p) sources_.push_back(source(op, round, leader, rank_, p));
      continue;
    }
    for (int peer = group.begin; peer < group.end; ++peer) {
      for (std::size_t p = 0; p < partials_of(op, peer); ++p) {
        sources_.push_back(source(op, round, peer, rank_, p));
      }
    }
  }
  if (!op.plan.answers()) {
    targets_.push_back(op.call.out() + op.plan.writes(round, rank_) * op.element);
  } else {
    for (int peer : locals_) {
      if (op.plan.results(round, rank_, peer).size() != 0) targets_.push_back(target(op, round, rank_, peer));
    }
    if (targets_.empty()) targets_.push_back(own_sum(op, round));
  }
  TreeSum& tree = op.by_host_group ? sums.mixed : sums.all;
  tree.run(op.kernel, sources_, targets_, mine.size(), op.element, op.call.how.factor);
}

/// Adds up what the ranks of this host group have for `remote`. REQUIRES: the local ranks have arrived.
std::span<const std::byte> Engine::add_up_host_group(Remote& remote, const Pending& op, std::uint32_t round) {
  const int to = remote.link.rank();
  const LeafInterval group = layout_.host_groups()[layout_.host_group_of(rank_)];
  const std::size_t count = op.plan.reads(round, rank_, to).size(), bytes = count * op.element;
  LeafSums& sums = sums_of(op);
  remote.added_up.resize(sums.own_host_group.size() * bytes);
  Kernel kernel = op.kernel;
  kernel.divide = nullptr;  // once, at the root
  int peer = group.begin;
  std::size_t partial = 0;
  for (std::size_t n = 0; n < sums.own_host_group.size(); ++n) {
    sources_.clear();
    while (sources_.size() < sums.own_host_group[n].sources) {
      if (partial == partials_of(op, peer)) {
        ++peer;
        partial = 0;
      }
      sources_.push_back(source(op, round, peer, to, partial++));
    }
    std::byte* target = remote.added_up.data() + n * bytes;
    sums.own_host_group[n].sum.run(kernel, sources_, std::span(&target, 1), count, op.element);
  }
  return remote.added_up;
}

/// Stores the sum of `owner`, which this rank received, to the others of its host group.
void Engine::pass_on(const Pending& op, std::uint32_t round, int owner) const {
  if (!by_host_group(op, rank_) || op.is(OpKind::kReduce)) return;
  const LeafInterval group = layout_.host_groups()[layout_.host_group_of(rank_)];
  for (int to = group.begin; to < group.end; ++to) {
    const Slice sum = op.plan.results(round, owner, to);
    if (to == rank_ || sum.size() == 0) continue;
    std::memcpy(target(op, round, owner, to), target(op, round, owner, rank_), sum.size() * op.element);
  }
}

/// Copies what this rank reads to its output, beginning with its own and its neighbour's, so that not all
/// read from the same rank at once.
void Engine::copy(const Pending& op, std::uint32_t round) {
  for (int i = 0; i < size_; ++i) {
    const int from = (rank_ + i) % size_;
    const Slice wanted = op.plan.reads(round, from, rank_);
    if (wanted.size() == 0) continue;
    const bool relayed = !is_local(from) && op.relayed;
    if (!relayed && !is_local(from) && remotes_.at(from).received.front().placed) continue;
    std::byte* to = op.call.out() + op.plan.writes(round, from) * op.element;
    const std::byte* at = relayed ? landing(op, round, from) : source(op, round, from, rank_, 0);
    if (at != to) std::memcpy(to, at, wanted.size() * op.element);
  }
}

}  // namespace troupe::collectives
