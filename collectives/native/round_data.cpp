#include "collectives/native/round_data.hpp"

#include <algorithm>
#include <cstring>

#include "collectives/native/native_group.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {

RoundData::RoundData(const RankView& view, const std::vector<LeafInterval>& intervals)
    : view_(view),
      leaf_sums_(intervals, view.layout, view.rank),
      rank_sums_(rank_leaves(view.size), view.layout, view.rank),
      space_(view.region.data_bytes()),
      next_part_(static_cast<std::size_t>(view.layout.hosts())) {}

/// Takes memory in every rank's data.
std::vector<std::byte*> RoundData::reserve(std::size_t count, DType dtype, bool tree) {
  const auto& partials = leaf_sums_.of_rank;
  const std::size_t most = tree ? *std::max_element(partials.begin(), partials.end()) : 1;
  Tree made{.slot_bytes = native_tree_bytes({{0, 1}}, count, dtype)};
  const auto run = space_.take(made.slot_bytes * most);
  if (!run) {
    const std::size_t left = space_.left(), largest = space_.largest();
    throw_error(
        {ErrorCode::kLimit,
         std::string("cannot allocate ") + (tree ? "a tree" : "a buffer") + " of " + std::to_string(count) +
             " x " + std::string(dtype_name(dtype)),
         "it takes " + std::to_string(made.slot_bytes * most) + " bytes and " + std::to_string(left) +
             " of the rank's " + std::to_string(view_.region.data_bytes()) + " are left" +
             (largest < left ? ", no more than " + std::to_string(largest) + " of them in one piece" : ""),
         "give back what is not needed any more (deallocate), or raise data_bytes"});
  }
  made.offset = run->offset;
  // The others' too: this rank reads its part of them all and, in a tree, writes to their first slots.
  for (int peer : view_.locals) {
    const std::size_t bytes = made.slot_bytes * (tree ? partials[view_.index_of(peer)] : 1);
    if (auto populated = view_.region.populate(view_.region.data(view_.local(peer)) + made.offset, bytes);
        !populated) {
      space_.give(made.offset);
      std::move(populated).value();
    }
  }
  if (tree) trees_.push_back(made);
  std::vector<std::byte*> slots(tree ? partials[view_.index_of(view_.rank)] : 1);
  for (std::size_t p = 0; p < slots.size(); ++p)
    slots[p] = view_.region.data(view_.local(view_.rank)) + made.offset + p * made.slot_bytes;
  if (run->was_used) std::memset(slots.front(), 0, made.slot_bytes * slots.size());  // as at the first time
  return slots;
}

std::span<const std::byte> RoundData::reserved(const std::byte* at) const {
  if (!view_.region.holds(view_.local(view_.rank), at, 1)) return {};
  const std::size_t offset = offset_of(at);
  const bool is_tree =
      std::any_of(trees_.begin(), trees_.end(), [&](const Tree& tree) { return tree.offset == offset; });
  return {at, is_tree ? 0 : space_.bytes_at(offset)};
}

void RoundData::release(std::span<const std::byte> memory) {
  space_.give(offset_of(memory.data()));
}

std::size_t RoundData::offset_of(const std::byte* at) const {
  return static_cast<std::size_t>(at - view_.region.data(view_.local(view_.rank)));
}

KnownCall RoundData::learn(const Op& call, const OpWords& words, bool opens) const {
  const Shape shape = shape_of(call);
  KnownCall made;
  made.words = words;
  made.counts = call.counts;
  made.opens = opens;
  for (const std::uint64_t word : words) made.hash = mix(made.hash, word);
  made.choice = choose_algorithm(call, shape);
  made.plan = Plan(call, shape, made.choice.algorithm);
  made.rounds = made.plan.rounds();
  made.element = element_size(call.dtype);
  if (made.plan.sums()) made.kernel = kernel_for(call.dtype, call.how.op);
  learn_partners(made);
  return made;
}

Shape RoundData::shape_of(const Op& call) const {
  Shape shape{.ranks = view_.size, .hosts = view_.layout.hosts(), .members = view_.layout.most_members()};
  if (shape.hosts == 1) {
    shape.cores = static_cast<int>(view_.region.machine_cores());
    return shape;
  }
  const LeafSums& sums = call.kind == OpKind::kAllReduceTree ? leaf_sums_ : rank_sums_;
  const auto& nodes = call.how.op == ReduceOp::kPremulSum ? sums.apart : sums.of_host;
  shape.nodes = *std::max_element(nodes.begin(), nodes.end());
  shape.landing_bytes = view_.region.landing_bytes();
  return shape;
}

/// Partial `partial` of local rank `rank` in a tree.
std::byte* RoundData::slot(const PendingCall& op, int rank, std::size_t partial) const {
  const Tree& tree = trees_[static_cast<std::size_t>(op.call.peer)];
  return view_.region.data(view_.local(rank)) + tree.offset + partial * tree.slot_bytes;
}

const std::byte* RoundData::own_input(const PendingCall& op, std::size_t partial) const {
  return op.is(OpKind::kAllReduceTree) ? slot(op, view_.rank, partial) : op.call.in();
}

std::byte* RoundData::own_output(const PendingCall& op) const {
  return op.is(OpKind::kAllReduceTree) ? slot(op, view_.rank, 0) : op.call.out();
}

/// Learns where this rank's input is, and whether it has to go through the stage.
void RoundData::prepare(PendingCall& op) const {
  op.places.assign(view_.locals.size(), Place());
  op.copies_in = op.gated = false;
  if (op.is(OpKind::kAllReduceTree)) {  // compared: every rank has it at the same offset
    op.places[view_.local(view_.rank)] =
        Place::in_data(trees_[static_cast<std::size_t>(op.call.peer)].offset);
    return;
  }
  const std::size_t bytes = op.plan().input_count(view_.rank) * op.element();
  const bool placed = !op.plan().one_shot() && op.call.in() != nullptr && bytes != 0 &&
                      view_.region.holds(view_.local(view_.rank), op.call.in(), bytes);
  if (placed) {
    op.places[view_.local(view_.rank)] = Place::in_data(offset_of(op.call.in()));
  } else if (!op.plan().one_shot()) {  // where nobody reads another's place
    op.places[view_.local(view_.rank)] = Place::outside(op.call.in());
  }
  op.copies_in = !placed && op.known->is_read;
  // A sum for a root on another host waits in the stage until it is sent. One-shot, a rank would else be
  // ahead of the others' reading by more than there are published calls.
  op.gated =
      op.copies_in || op.plan().one_shot() || (op.is(OpKind::kReduce) && !view_.is_local(op.call.peer));
}

/// Whether others read what this rank gives, and for whom it waits: one-shot, for those that it reads. A
/// broadcast's root waits for nobody, the others for the root. Where nobody reads anything, as in a barrier,
/// all wait for all.
void RoundData::learn_partners(KnownCall& known) const {
  known.is_read = false;
  known.awaits.clear();
  // What nobody reads in the first round, nobody reads later. For other hosts any rank of this one may read.
  for (int other = 0; other < view_.size && !view_.alone(); ++other) {
    if (other == view_.rank) continue;
    known.is_read = known.is_read || known.plan.reads(0, view_.rank, other).size() != 0;
    if (known.plan.reads(0, other, view_.rank).size() != 0) known.awaits.push_back(other);
  }
  const bool all = known.awaits.size() + 1 == view_.locals.size(),
             none = known.awaits.empty() && !known.is_read;
  const bool one_reader =
      view_.layout.hosts() == 1 && (view_.locals.size() == 2 || !known.plan.reads_alike());
  known.hands_back = one_reader && !(known.plan.answers() && !known.plan.goes_to_root());
  // After the first call every rank knows that all are there.
  if (!known.plan.one_shot() || view_.layout.hosts() > 1 || all || none || known.opens)
    known.awaits = view_.locals;
}

/// Copies what others of this host will read of a private input to this rank's stage.
void RoundData::stage(const PendingCall& op, std::uint32_t round) const {
  std::byte* to = stage_of(op, view_.rank, round);
  for (int peer = 0; peer < view_.size; ++peer) {
    if (peer == view_.rank) continue;
    const Slice wanted = op.plan().reads(round, view_.rank, peer);
    if (wanted.size() == 0) continue;
    std::memcpy(to + op.plan().staged(round, view_.rank, peer) * op.element(),
                op.call.in() + wanted.begin * op.element(), wanted.size() * op.element());
    if (op.plan().reads_alike()) return;
  }
}

/// Copies the sums that others of this host stored to this rank's stage to its private output.
void RoundData::unstage(const PendingCall& op, std::uint32_t round) const {
  if (place_of(op, view_.rank).is_in_data()) return;
  const std::byte* from = stage_of(op, view_.rank, round);
  const std::size_t begin = op.plan().part(round).begin;
  for (int owner = 0; owner < view_.size; ++owner) {
    const Slice sums = op.plan().results(round, owner, view_.rank);
    const int storer =
        view_.is_local(owner)
            ? owner
            : view_.layout.gateway_in(view_.host, view_.layout.host_of(owner), op.first_round + round);
    if (storer == view_.rank || sums.size() == 0) continue;
    std::memcpy(op.call.out() + sums.begin * op.element(), from + (sums.begin - begin) * op.element(),
                sums.size() * op.element());
  }
}

/// Where this rank reads what `to` reads of the input of `from`, a rank of this host: for itself, or for a
/// rank of another host. REQUIRES: that is something, and `from` has arrived.
const std::byte* RoundData::source(const PendingCall& op, std::uint32_t round, int from, int to,
                                   std::size_t partial) const {
  const Slice wanted = op.plan().reads(round, from, to);
  const std::size_t begin = wanted.begin * op.element();
  if (from == view_.rank) return own_input(op, partial) + begin;
  if (op.is(OpKind::kAllReduceTree)) return slot(op, from, partial) + begin;
  if (const Place& place = place_of(op, from); place.is_in_data())
    return view_.region.data(view_.local(from)) + place.offset() + begin;
  return stage_of(op, from, round) + op.plan().staged(round, from, to) * op.element();
}

/// What this rank reads of the input of `from`, a rank of another host. REQUIRES: it has landed.
const std::byte* RoundData::landed_part(const PendingCall& op, std::uint32_t round, int from,
                                        std::size_t part) const {
  return view_.region.landing(view_.layout.host_of(from), op.first_round + round) +
         op.hosts.offset(round, from, view_.rank, part);
}

/// Where the blob of another host goes: to the landing, or to the output where only this rank copies it.
std::vector<std::span<std::byte>> RoundData::blob(const PendingCall& op, std::uint32_t round,
                                                  int origin) const {
  std::vector<std::span<std::byte>> pieces;
  if (!view_.alone() || op.plan().sums() || !op.hosts.wants(round, origin, view_.host)) {
    pieces.emplace_back(view_.region.landing(origin, op.first_round + round),
                        op.hosts.blob_bytes(round, origin, view_.host));
    return pieces;
  }
  for (const int from : view_.layout.members(origin)) {
    const std::size_t bytes = op.plan().reads(round, from, view_.rank).size() * op.element();
    if (bytes != 0) pieces.emplace_back(op.call.out() + op.plan().writes(round, from) * op.element(), bytes);
  }
  return pieces;
}

/// What this host sends another one of its own. REQUIRES: the local ranks have arrived.
std::vector<std::span<const std::byte>> RoundData::own_blob(const PendingCall& op, std::uint32_t round,
                                                            int to_host, std::vector<std::byte>& added_up) {
  std::vector<std::span<const std::byte>> pieces;
  const bool adds_up = op.hosts.adds_up() && !view_.alone();
  const int readers = op.hosts.readers(view_.host, to_host);
  const std::size_t bytes = op.hosts.bytes(round, view_.host, readers);
  if (adds_up && added_up.size() < bytes) added_up.resize(bytes);
  for (const int to : op.hosts.receivers(round, view_.host, readers)) {
    if (adds_up) {
      add_up(op, round, to, added_up.data() + op.hosts.offset(round, view_.rank, to, 0));
      continue;
    }
    for (const int from : view_.locals) {
      const std::size_t part = op.plan().reads(round, from, to).size() * op.element();
      const std::size_t parts = op.plan().sums() ? partials_of(op, from) : 1;
      for (std::size_t p = 0; p < parts && part != 0; ++p) {
        pieces.emplace_back(source(op, round, from, to, p), part);
      }
    }
  }
  if (adds_up) pieces.emplace_back(added_up.data(), bytes);
  return pieces;
}

/// Where the sum of `owner` is stored for local rank `to`.
std::byte* RoundData::target(const PendingCall& op, std::uint32_t round, int owner, int to) const {
  const std::size_t begin = op.plan().results(round, owner, to).begin;
  if (to == view_.rank) return own_output(op) + begin * op.element();
  if (op.is(OpKind::kAllReduceTree)) return slot(op, to, 0) + begin * op.element();
  if (const Place& place = place_of(op, to); place.is_in_data())
    return view_.region.data(view_.local(to)) + place.offset() + begin * op.element();
  return stage_of(op, to, round) + (begin - op.plan().part(round).begin) * op.element();
}

/// Where the sum of `owner`, a rank of this host, lies for other hosts: where it is stored for this rank, or,
/// if this one gets none, in the owner's part of its own stage, which nobody else reads.
std::byte* RoundData::own_sum(const PendingCall& op, std::uint32_t round, int owner) const {
  const Slice sum = op.plan().results(round, owner, view_.rank);
  const bool placed = place_of(op, view_.rank).is_in_data();
  if (sum.size() != 0 && (owner == view_.rank || placed)) return target(op, round, owner, view_.rank);
  const std::size_t at = op.plan().reads(round, owner, owner).begin - op.plan().part(round).begin;
  return stage_of(op, sum.size() != 0 ? view_.rank : owner, round) + at * op.element();
}

/// The partial sums that this rank adds up, in the order of the tree: of this host's ranks as they are, of
/// another host's as they landed, a group of its ranks added up already where it does that.
void RoundData::gather_sources(const PendingCall& op, std::uint32_t round) {
  const LeafSums& sums = sums_of(op);
  const bool added_up = !view_.one_host() && op.hosts.adds_up();
  sources_.clear();
  std::fill(next_part_.begin(), next_part_.end(), 0);
  const auto take_landed = [&](int peer, std::size_t parts) {
    std::size_t& part = next_part_[RankView::index_of(view_.layout.host_of(peer))];
    for (; parts != 0; --parts) sources_.push_back(landed_part(op, round, peer, part++));
  };
  const std::vector<LeafInterval>& groups = view_.layout.host_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (added_up && !view_.is_local(groups[g].begin)) {
      take_landed(groups[g].begin, sums.of_group[g]);
      continue;
    }
    for (int peer = groups[g].begin; peer < groups[g].end; ++peer) {
      const std::size_t parts = partials_of(op, peer);
      if (!view_.is_local(peer)) take_landed(peer, parts);
      for (std::size_t p = 0; view_.is_local(peer) && p < parts; ++p)
        sources_.push_back(source(op, round, peer, view_.rank, p));
    }
  }
}

/// Adds up this rank's slice and stores the sum to all who get it.
void RoundData::sum(const PendingCall& op, std::uint32_t round) {
  const Slice mine = op.plan().reads(round, view_.rank, view_.rank);
  if (mine.size() == 0) return;
  const InFloatMode mode(op.float_mode);
  gather_sources(op, round);
  targets_.clear();
  if (!op.plan().answers()) {
    targets_.push_back(op.call.out() + op.plan().writes(round, view_.rank) * op.element());
  } else {
    for (int peer : view_.locals) {
      if (op.plan().results(round, view_.rank, peer).size() != 0)
        targets_.push_back(target(op, round, view_.rank, peer));
    }
    if (targets_.empty()) targets_.push_back(own_sum(op, round, view_.rank));
  }
  LeafSums& sums = sums_of(op);
  TreeSum& tree = !view_.one_host() && op.hosts.adds_up() ? sums.mixed : sums.all;
  tree.run(op.known->kernel, sources_, targets_, mine.size(), op.element(), op.call.how.factor);
}

/// Adds up what the ranks of this host have for `to`, on another one, to `at`.
void RoundData::add_up(const PendingCall& op, std::uint32_t round, int to, std::byte* at) {
  const InFloatMode mode(op.float_mode);
  const std::size_t count = op.plan().reads(round, view_.rank, to).size();
  LeafSums& sums = sums_of(op);
  Kernel kernel = op.known->kernel;
  kernel.divide = nullptr;  // once, at the root
  auto peer = view_.locals.begin();
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
    node.sum.run(kernel, sources_, std::span(&at, 1), count, op.element());
    at += count * op.element();
  }
}

/// Stores the sum of `owner`, which this rank received, to the others of its host.
void RoundData::pass_on(const PendingCall& op, std::uint32_t round, int owner) const {
  if (op.is(OpKind::kReduce)) return;
  for (const int to : view_.locals) {
    const Slice sum = op.plan().results(round, owner, to);
    if (to == view_.rank || sum.size() == 0) continue;
    std::memcpy(target(op, round, owner, to), target(op, round, owner, view_.rank),
                sum.size() * op.element());
  }
}

/// Copies what this rank reads to its output, beginning with its own and its neighbour's, so that not all
/// read from the same rank at once.
void RoundData::copy(const PendingCall& op, std::uint32_t round) const {
  for (int i = 0; i < view_.size; ++i) {
    const int from = (view_.rank + i) % view_.size;
    const Slice wanted = op.plan().reads(round, from, view_.rank);
    if (wanted.size() == 0) continue;
    if (!view_.is_local(from) && view_.alone()) continue;  // it came to the output
    std::byte* to = op.call.out() + op.plan().writes(round, from) * op.element();
    const std::byte* at =
        view_.is_local(from) ? source(op, round, from, view_.rank, 0) : landed_part(op, round, from, 0);
    if (at != to) std::memcpy(to, at, wanted.size() * op.element());
  }
}

/// Writes to every line that this rank read of a stage, whose owner fills it next. A line that one core
/// writes and another one only reads takes each of these writes several times as long, where the two share no
/// cache, as one that goes to and fro.
void RoundData::hand_back(const PendingCall& op, std::uint32_t round) const {
  for (const int from : view_.locals) {
    if (from == view_.rank || place_of(op, from).is_in_data()) continue;
    if (op.plan().answers() && from == op.call.peer) continue;  // the sum for the root lies there
    const std::size_t bytes = op.plan().reads(round, from, view_.rank).size() * op.element();
    if (bytes == 0) continue;
    std::byte* at = stage_of(op, from, round) + op.plan().staged(round, from, view_.rank) * op.element();
    for (std::size_t i = 0; i < bytes; i += kCacheLine)
      *static_cast<volatile std::byte*>(at + i) = std::byte{0};
  }
}

}  // namespace troupe::collectives
