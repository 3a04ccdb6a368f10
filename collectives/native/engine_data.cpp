/// The engine's half that touches elements: where the inputs, stages and outputs of a round lie, and what is
/// copied or added up. A `round` counts from the operation's first.

#include <algorithm>
#include <cstring>

#include "collectives/native/engine.hpp"

namespace troupe::collectives {

std::size_t Engine::partials_of(const Op& op, int rank) const {
  return op.is(OpKind::kAllReduceTree) ? partials_[index_of(rank)] : 1;
}

/// Partial `partial` of local rank `rank` in a tree.
std::byte* Engine::slot(const Op& op, int rank, std::size_t partial) const {
  const Allocation& tree = allocations_[static_cast<std::size_t>(op.contract.index)];
  return region_.data(local(rank)) + tree.offset + partial * tree.slot_bytes;
}

const std::byte* Engine::own_input(const Op& op, std::size_t partial) const {
  return op.is(OpKind::kAllReduceTree) ? slot(op, rank_, partial) : op.input;
}

std::byte* Engine::own_output(const Op& op) const {
  return op.is(OpKind::kAllReduceTree) ? slot(op, rank_, 0) : op.output;
}

/// Learns where this rank's input is, and whether it has to go through the stage.
void Engine::prepare(Op& op) const {
  op.places.assign(locals_.size(), 0);
  if (op.is(OpKind::kAllReduceTree)) return;
  const std::size_t bytes = op.plan.input_count(rank_) * op.element;
  const bool placed = !op.plan.one_shot() && op.input != nullptr && bytes != 0 &&
                      region_.holds(local(rank_), op.input, bytes);
  if (placed) {
    op.places[local(rank_)] = static_cast<std::uint64_t>(op.input - region_.data(local(rank_))) + 1;
  }
  // What nobody reads in the first round, nobody reads later.
  op.copies_in = !placed && std::any_of(locals_.begin(), locals_.end(), [&](int peer) {
    return peer != rank_ && op.plan.reads(0, rank_, peer).size() != 0;
  });
  // A sum for a root on another machine waits in the stage until it is sent. One-shot, a rank would else be
  // ahead of the others' reading by more than there are contracts.
  op.gated = op.copies_in || op.plan.one_shot() || (op.is(OpKind::kReduce) && !is_local(op.contract.index));
}

/// Copies what the other local ranks will read of a private input to this rank's stage.
void Engine::stage(const Op& op, std::uint32_t round) const {
  std::byte* to = region_.stage(local(rank_), op.first_round + round);
  for (int peer : locals_) {
    if (peer == rank_) continue;
    const Slice wanted = op.plan.reads(round, rank_, peer);
    if (wanted.size() == 0) continue;
    std::memcpy(to + op.plan.staged(round, rank_, peer) * op.element, op.input + wanted.begin * op.element,
                wanted.size() * op.element);
    if (op.plan.reads_alike()) return;
  }
}

/// Copies the sums of other local ranks from this rank's stage to its private output.
void Engine::unstage(const Op& op, std::uint32_t round) const {
  if (op.is(OpKind::kAllReduceTree) || op.places[local(rank_)] != 0) return;
  const std::byte* from = region_.stage(local(rank_), op.first_round + round);
  const std::size_t begin = op.plan.part(round).begin;
  for (int owner : locals_) {
    const Slice sums = op.plan.results(round, owner, rank_);
    if (owner == rank_ || sums.size() == 0) continue;
    std::memcpy(op.output + sums.begin * op.element, from + (sums.begin - begin) * op.element,
                sums.size() * op.element);
  }
}

/// Where this rank reads what it reads from `from`. REQUIRES: it reads something, all have arrived.
const std::byte* Engine::source(const Op& op, std::uint32_t round, int from, std::size_t partial) {
  const Slice wanted = op.plan.reads(round, from, rank_);
  const std::size_t begin = wanted.begin * op.element;
  if (from == rank_) return own_input(op, partial) + begin;
  if (!is_local(from)) {
    return remotes_.at(from).parcels.front().bytes.data() + partial * wanted.size() * op.element;
  }
  if (op.is(OpKind::kAllReduceTree)) return slot(op, from, partial) + begin;
  if (op.places[local(from)] != 0) return region_.data(local(from)) + (op.places[local(from)] - 1) + begin;
  return region_.stage(local(from), op.first_round + round) + op.plan.staged(round, from, rank_) * op.element;
}

/// Where this rank stores what it summed for local rank `to`.
std::byte* Engine::target(const Op& op, std::uint32_t round, int to) const {
  const std::size_t begin = op.plan.results(round, rank_, to).begin;
  if (to == rank_) return own_output(op) + begin * op.element;
  if (op.is(OpKind::kAllReduceTree)) return slot(op, to, 0) + begin * op.element;
  if (op.places[local(to)] != 0) {
    return region_.data(local(to)) + (op.places[local(to)] - 1) + begin * op.element;
  }
  return region_.stage(local(to), op.first_round + round) + (begin - op.plan.part(round).begin) * op.element;
}

/// Where the sum lies that this rank sends to other machines: in its output, or, if it keeps none, in its
/// part of its own stage, which nobody else reads.
std::byte* Engine::own_sum(const Op& op, std::uint32_t round) const {
  if (op.plan.results(round, rank_, rank_).size() != 0) return target(op, round, rank_);
  const std::size_t at = op.plan.reads(round, rank_, rank_).begin - op.plan.part(round).begin;
  return region_.stage(local(rank_), op.first_round + round) + at * op.element;
}

void Engine::sum(const Op& op, std::uint32_t round) {
  const Slice mine = op.plan.reads(round, rank_, rank_);
  if (mine.size() == 0) return;
  sources_.clear();
  targets_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    for (std::size_t p = 0; p < partials_of(op, peer); ++p) sources_.push_back(source(op, round, peer, p));
  }
  if (!op.plan.answers()) {
    targets_.push_back(op.output + op.plan.writes(round, rank_) * op.element);
  } else {
    for (int peer : locals_) {
      if (op.plan.results(round, rank_, peer).size() != 0) targets_.push_back(target(op, round, peer));
    }
    if (targets_.empty()) targets_.push_back(own_sum(op, round));
  }
  TreeSum& tree = op.is(OpKind::kAllReduceTree) ? leaf_sum_ : rank_sum_;
  tree.run(op.kernel, sources_, targets_, mine.size(), op.element, op.contract.factor);
}

/// Copies what this rank reads to its output, beginning with its own and its neighbour's, so that not all
/// read from the same rank at once.
void Engine::copy(const Op& op, std::uint32_t round) {
  for (int i = 0; i < size_; ++i) {
    const int from = (rank_ + i) % size_;
    const Slice wanted = op.plan.reads(round, from, rank_);
    if (wanted.size() == 0 || (!is_local(from) && remotes_.at(from).parcels.front().placed)) continue;
    std::byte* to = op.output + op.plan.writes(round, from) * op.element;
    const std::byte* at = source(op, round, from, 0);
    if (at != to) std::memcpy(to, at, wanted.size() * op.element);
  }
}

}  // namespace troupe::collectives
