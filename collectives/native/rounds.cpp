#include "collectives/native/rounds.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

/// Of one operation, so that counts of rounds in flight are far from wrapping around: 4 TiB of a buffer that
/// goes in whole chunks.
constexpr std::uint64_t kMaxRounds = 1 << 24;

/// Of a stage, at a launch: small operations do not wait for more.
constexpr std::size_t kClaimed = 8 * kCacheLine;

bool is_traced() {
  const char* trace = std::getenv("TROUPE_COLLECTIVES_TRACE");
  return trace != nullptr && std::string_view(trace) == "1";
}

}  // namespace

Rounds::Rounds(const RankView& view, RoundData& data)
    : view_(view), data_(data), trace_(is_traced()), mine_(view.mine) {}

PendingCall& Rounds::op_of(std::uint32_t round) {
  return const_cast<PendingCall&>(std::as_const(*this).op_of(round));
}

const PendingCall& Rounds::op_of(std::uint32_t round) const {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (is_before(round, ops_[i].first_round + ops_[i].rounds)) return ops_[i];
  }
  TROUPE_ASSERT(false, "a round that is not complete belongs to an operation in flight");
}

bool Rounds::uses(std::span<const std::byte> memory) const {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const PendingCall& op = ops_[i];
    const auto uses = [&](const Op& call) { return call.uses(memory); };
    if (op.call.uses(memory) || std::any_of(op.packed.begin(), op.packed.end(), uses)) return true;
  }
  return false;
}

const OpWords* Rounds::called(std::uint32_t sequence) const {
  for (const auto& [number, words] : recent_) {
    if (number == sequence && number != 0) return &words;
  }
  return nullptr;
}

Rounds::Awaited Rounds::awaited() const {
  if (reduced_ != arrived_) return {Awaited::kArrival, reduced_, op_of(reduced_).known->awaits};
  if (completed_ != reduced_) return {Awaited::kReduction, completed_, view_.locals};
  return {Awaited::kStage, arrived_ - kStages, view_.locals};
}

// Launching.

std::uint32_t Rounds::launch_packed(std::span<const Op> calls) {
  Op all = calls.back();
  all.peer = static_cast<std::int32_t>(calls.size());
  all.count = 0;
  for (const Op& call : calls) {
    all.count += call.count;
    all.counts.push_back(call.count);  // compared between the ranks
  }
  auto pack = std::make_unique_for_overwrite<std::byte[]>(all.bytes());
  std::byte* at = pack.get();
  for (const Op& call : calls) {
    if (call.count != 0) std::memcpy(at, call.in(), call.bytes());
    at += call.bytes();
  }
  all.input.data = all.output.data = pack.get();
  all.input.count = all.output.count = all.count;
  return launch(all, calls, std::move(pack));
}

void Rounds::unpack(const PendingCall& op) {
  const std::byte* at = op.pack.get();
  for (const Op& call : op.packed) {
    if (call.count != 0) std::memcpy(call.out(), at, call.bytes());
    at += call.bytes();
  }
}

const std::shared_ptr<const KnownCall>& Rounds::know(const Op& call) {
  const OpWords words = encode(call);
  const bool opens = launched_ == 0;
  const bool same = known_ && known_->opens == opens && known_->words[0] == words[0] &&
                    known_->words[1] == words[1] && known_->words[2] == words[2];
  if (same && known_->counts == call.counts) return known_;
  return known_ = std::make_shared<KnownCall>(data_.learn(call, words, opens));
}

std::uint32_t Rounds::launch(const Op& call, std::span<const Op> packed, std::unique_ptr<std::byte[]> pack) {
  const std::shared_ptr<const KnownCall>& same = know(call);
  const KnownCall& known = *same;
  if (known.rounds > kMaxRounds) {
    throw_error({ErrorCode::kLimit, "cannot " + to_string(call),
                 "it takes more than 2^24 rounds of one stage each", "split it"});
  }
  const bool may_stage = known.is_read || known.plan.one_shot() || call.kind == OpKind::kReduce;
  if (may_stage && !staging_populated_) {
    view_.region.populate_staging().value();  // may throw, so before the operation is in flight
    staging_populated_ = true;
  }
  if (known.plan.one_shot() && known.is_read) {  // others have read the lines that arrive() is about to write
    const std::size_t bytes = known.plan.input_count(view_.rank) * known.element;
    claim(view_.region.stage(view_.local(view_.rank), launched_), std::min<std::size_t>(bytes, kClaimed));
  }
  PendingCall& op = ops_.push();
  op.call = call;
  if (op.known != same) op.known = same;  // a count that cores share is left alone
  op.hash = static_cast<std::uint32_t>(mix(known.hash, launched_));
  op.sequence = static_cast<std::uint32_t>(call.sequence);
  op.first_round = launched_;
  op.rounds = static_cast<std::uint32_t>(known.rounds);
  op.agreed = false;
  op.float_mode = FloatMode::here();
  op.packed.assign(packed.begin(), packed.end());
  op.pack = std::move(pack);
  op.slot = calls_++ % kMaxInFlight;
  if (!view_.one_host())
    op.hosts = HostPlan(view_.layout, data_.sums_of(op), op.plan(), op.call, known.choice.route);
  recent_[op.slot] = {op.sequence, op.words()};
  data_.prepare(op);
  PublishedOp& published = mine_.calls[op.slot];
  for (std::size_t i = 0; i < op.words().size(); ++i)
    published.words[i].store(op.words()[i], std::memory_order_relaxed);
  published.place.store(op.places[view_.local(view_.rank)].bits(), std::memory_order_relaxed);
  if (trace_) trace(op);
  launched_ += op.rounds;
  const bool gives = op.known->awaits.empty();
  arrive();
  if (gives && reduce()) complete();
  if (!unseen_.empty()) compare_arrived();
  return launched_;
}

/// Says once for each call what was chosen, on the first rank of the machine.
void Rounds::trace(const PendingCall& op) {
  if (view_.rank != view_.locals.front() || !traced_.insert(op.words()).second) return;
  std::fprintf(stderr, "troupe: rank %d of %d: %s: %s\n", view_.rank, view_.size, numbered(op.call).c_str(),
               to_string(op.known->choice).c_str());
}

// The three counts.

bool Rounds::advance() {
  bool moved = arrive();
  moved = reduce() || moved;
  return complete() || moved;
}

bool Rounds::arrive() {
  const std::uint32_t before = arrived_;
  while (arrived_ != launched_) {
    const PendingCall& op = op_of(arrived_);
    if (op.gated) {
      // The stage of this round is still in use, or somebody reads what this rank left there.
      if (arrived_ - completed_ >= kStages || !locals_reduced(arrived_ - kStages)) break;
      compare_unseen(view_.locals, freed_);
      if (op.copies_in) data_.stage(op, arrived_ - op.first_round);
    }
    if (op.plan().one_shot() && arrived_ == op.first_round)
      mine_.arrived.calls[arrived_ % mine_.arrived.calls.size()].store(op.hash, std::memory_order_relaxed);
    ++arrived_;
  }
  if (arrived_ == before) return false;
  mine_.arrived.core.store(core_here(), std::memory_order_relaxed);
  publish(mine_.arrived, arrived_);
  return true;
}

bool Rounds::have_arrived(const std::vector<int>& ranks, std::uint32_t round) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int peer) { return reached(view_.cell(peer).arrived, round + 1); });
}

/// Whether the input of every rank for this one is there, and this rank has done what others have of it.
bool Rounds::all_arrived(const PendingCall& op, std::uint32_t round) {
  if (!have_arrived(op.known->awaits, round)) return false;
  if (view_.one_host()) return true;
  if (!is_before(round, passed_)) return false;
  for (; landed_hosts_ < view_.layout.hosts(); ++landed_hosts_) {
    const int origin = landed_hosts_;
    if (origin == view_.host || !op.hosts.wants(round - op.first_round, origin, view_.host)) continue;
    if (!has_landed(op, round, origin)) return false;
  }
  return true;
}

bool Rounds::reduce() {
  if (reduced_ == arrived_) return false;
  PendingCall& op = op_of(reduced_);
  if (!all_arrived(op, reduced_)) return false;
  if (!op.agreed) agree(op);
  if (op.plan().sums()) {
    data_.sum(op, reduced_ - op.first_round);
  } else {
    data_.copy(op, reduced_ - op.first_round);
  }
  if (op.known->hands_back) data_.hand_back(op, reduced_ - op.first_round);
  landed_hosts_ = 0;
  publish(mine_.reduced, ++reduced_);
  return true;
}

/// One-shot, all buffers are in stages, and the hashes of the calls are all that counts: where that of this
/// round is missing, `peer` is in another call, and has perhaps not launched one of this number. REQUIRES: it
/// has arrived in the round, and this rank has not reduced the round kStages later: so long who is ahead
/// keeps the hash.
bool Rounds::has_called(int peer, std::uint32_t round, std::uint32_t hash) const {
  const auto& calls = view_.cell(peer).arrived.calls;
  return calls[round % calls.size()].load(std::memory_order_relaxed) == hash;
}

OpWords Rounds::published(int peer, std::uint32_t slot) const {
  OpWords words;
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = view_.cell(peer).calls[slot].words[i].load(std::memory_order_relaxed);
  return words;
}

void Rounds::fail_mismatch(int peer, std::uint32_t slot, std::uint32_t sequence,
                           const std::string& mine) const {
  view_.fail(AbortKind::kMismatch, "at #" + std::to_string(sequence) + " rank " + std::to_string(view_.rank) +
                                       " called " + mine + " and rank " + std::to_string(peer) + " " +
                                       to_string(published(peer, slot)));
}

/// Compares the calls before round `until` that were not compared with all with those of `peers`, which have
/// arrived in their rounds: the first that differs is the one to name.
void Rounds::compare_unseen(const std::vector<int>& peers, std::uint32_t until) {
  for (std::size_t i = 0; i < unseen_.size() && is_before(unseen_[i].round, until); ++i) {
    const Unseen& mine = unseen_[i];
    for (const int peer : peers) {
      if (!has_called(peer, mine.round, mine.hash))
        fail_mismatch(peer, mine.slot, mine.sequence, to_string(mine.words));
    }
  }
  if (peers.size() != view_.locals.size()) return;
  while (!unseen_.empty() && is_before(unseen_.front().round, until)) unseen_.pop();
}

/// Compares the calls in which this rank waited for nobody with those of all that have arrived in their
/// rounds by now. Of two that wait for none of each other, the one that launches last finds the other there;
/// where both launch at once, at the next launch.
void Rounds::compare_arrived() {
  for (std::size_t i = 0; i < unseen_.size(); ++i) {
    const Unseen& mine = unseen_[i];
    if (!mine.gave) continue;
    for (const int peer : view_.locals) {
      const bool there = reached(view_.cell(peer).arrived, mine.round + 1);
      if (there && !has_called(peer, mine.round, mine.hash))
        fail_mismatch(peer, mine.slot, mine.sequence, to_string(mine.words));
    }
  }
}

/// Compares the call with those of the ranks that it waited for, and learns where their buffers are. With the
/// other ranks' it is compared at its launch and each that follows, as far as these have arrived, and with
/// all as soon as a round waits for all or a stage is used again.
void Rounds::agree(PendingCall& op) {
  if (op.first_round == 0) crowded_ = view_.locals.size() > view_.region.cores();  // all are there
  const bool all = op.known->awaits.size() == view_.locals.size();
  compare_unseen(op.known->awaits, op.first_round);
  op.agreed = true;
  for (const int peer : op.known->awaits) {
    const bool alike = op.plan().one_shot() ? has_called(peer, op.first_round, op.hash)
                                            : published(peer, op.slot) == op.words();
    if (!alike) fail_mismatch(peer, op.slot, op.sequence, to_string(op.call));
    if (op.plan().one_shot()) continue;
    const Place place(view_.cell(peer).calls[op.slot].place.load(std::memory_order_relaxed));
    if (op.is(OpKind::kAllReduceTree) && place != op.places[view_.local(view_.rank)]) {
      view_.fail(AbortKind::kMismatch,
                 "rank " + std::to_string(view_.rank) + " has the tree of " + numbered(op.call) +
                     " elsewhere than rank " + std::to_string(peer) +
                     ": they allocated with different counts, or they allocated or gave "
                     "back in another order");
    }
    const std::size_t bytes = op.plan().input_count(peer) * op.element();
    const std::size_t most = view_.region.data_bytes();
    if (place.is_in_data() && (place.offset() >= most || bytes > most - place.offset())) {
      view_.fail(AbortKind::kMismatch,
                 "rank " + std::to_string(peer) + " published a buffer outside its memory");
    }
    op.places[view_.local(peer)] = place;
  }
  if (all) return;
  unseen_.push() = {op.first_round, op.slot, op.hash, op.sequence, op.words(), op.known->awaits.empty()};
}

/// Whether the sums of a round that come from other hosts, or go there, are where they belong.
bool Rounds::locals_delivered(std::uint32_t round) const {
  return std::all_of(view_.locals.begin(), view_.locals.end(),
                     [&](int peer) { return reached(view_.cell(peer).delivered, round + 1); });
}

/// Rounds that all ranks of this host have reduced.
std::uint32_t Rounds::freed() const {
  std::uint32_t least = reduced_;
  for (const int peer : view_.locals) {
    const std::uint32_t theirs = view_.cell(peer).reduced.rounds.load(std::memory_order_acquire);
    if (is_before(theirs, least)) least = theirs;
  }
  return freed_ = least;
}

bool Rounds::complete() {
  if (completed_ == reduced_) return false;
  PendingCall& op = op_of(completed_);
  if (!op.plan().one_shot() && !locals_reduced(completed_)) return false;
  if (!view_.one_host() && op.plan().answers() && !locals_delivered(completed_)) return false;
  if (op.plan().answers()) data_.unstage(op, completed_ - op.first_round);
  ++completed_;
  if (completed_ == op.first_round + op.rounds) {
    unpack(op);
    op.pack.reset();
    ops_.pop();
  }
  return true;
}

bool Rounds::has_landed(const PendingCall& op, std::uint32_t round, int origin) const {
  const int from = op.hosts.via(origin, view_.host);
  return reached(view_.region.gate(from, round % view_.layout.lanes(view_.host, from)).landed, round + 1);
}

}  // namespace troupe::collectives
