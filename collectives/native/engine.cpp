#include "collectives/native/engine.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

/// Of one operation, so that counts of rounds in flight are far from wrapping around: 4 TiB of a buffer that
/// goes in whole chunks.
constexpr std::uint64_t kMaxRounds = 1 << 24;

/// Of a stage, at a launch: small operations do not wait for more.
constexpr std::size_t kClaimed = 8 * kCacheLine;

}  // namespace

Engine::Engine(NativeGroupOptions options, Region region)
    : rank_(options.rank),
      size_(options.size),
      name_(std::move(options.name)),
      timeout_(options.timeout),
      trace_(options.trace),
      intervals_(std::move(options.leaves)),
      layout_(std::move(options.machines)),
      host_(layout_.host_of(options.rank)),
      locals_(layout_.members(host_)),
      local_index_(index_of(options.size), -1),
      region_(std::move(region)),
      mine_(region_.cell(static_cast<std::size_t>(std::find(locals_.begin(), locals_.end(), options.rank) -
                                                  locals_.begin()))),
      leaf_sums_(intervals_, layout_, options.rank),
      rank_sums_(rank_leaves(size_), layout_, options.rank),
      connector_(std::move(options.connector)) {
  for (std::size_t i = 0; i < locals_.size(); ++i) local_index_[index_of(locals_[i])] = static_cast<int>(i);
  region_.add_cores();
  if (connector_) {
    sockets_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    if (!sockets_ || ::epoll_ctl(sockets_.get(), EPOLL_CTL_ADD, connector_->fd(), &event) != 0)
      throw_error(io_error("cannot make an epoll", errno, "raise ulimit -n"));
  }
  for (auto& [rank, connection] : options.remote) adopt(rank, std::move(connection));
  next_part_.resize(static_cast<std::size_t>(layout_.hosts()));
  for (int other = 0; other < layout_.hosts(); ++other) {
    const std::uint32_t lanes = other == host_ ? 0 : layout_.lanes(host_, other);
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      if (layout_.gateway(host_, other, lane) != rank_) continue;
      Peer& gate = remotes_.at(layout_.gateway(other, host_, lane));
      gate.gate = true;
      gate.lane = lane;
      gate.lanes = lanes;
      gates_.push_back(&gate);
    }
  }
  const std::lock_guard lock(mutex_);  // other threads find it in the middle of the next line
  entry_.emplace(*this, region_.file());
}

/// Takes memory in every rank's data.
std::vector<std::byte*> Engine::reserve(std::size_t count, DType dtype, bool tree) {
  const std::lock_guard lock(mutex_);
  const auto& partials = leaf_sums_.of_rank;
  const std::size_t most = tree ? *std::max_element(partials.begin(), partials.end()) : 1;
  const Tree made{.offset = allocated_bytes_, .slot_bytes = native_tree_bytes({{0, 1}}, count, dtype)};
  if (made.slot_bytes * most > region_.data_bytes() - allocated_bytes_) {
    throw_error({ErrorCode::kLimit,
                 std::string("cannot allocate ") + (tree ? "a tree" : "a buffer") + " of " +
                     std::to_string(count) + " x " + std::string(dtype_name(dtype)),
                 "it takes " + std::to_string(made.slot_bytes * most) + " bytes and " +
                     std::to_string(region_.data_bytes() - allocated_bytes_) + " of the rank's " +
                     std::to_string(region_.data_bytes()) + " are left",
                 "raise data_bytes"});
  }
  // The others' too: this rank reads its part of them all and, in a tree, writes to their first slots.
  for (int peer : locals_) {
    const std::size_t bytes = made.slot_bytes * (tree ? partials[index_of(peer)] : 1);
    region_.populate(region_.data(local(peer)) + made.offset, bytes).value();
  }
  allocated_bytes_ += made.slot_bytes * most;
  if (tree) trees_.push_back(made);
  std::vector<std::byte*> slots(tree ? partials[index_of(rank_)] : 1);
  for (std::size_t p = 0; p < slots.size(); ++p)
    slots[p] = region_.data(local(rank_)) + made.offset + p * made.slot_bytes;
  return slots;
}

Engine::Pending& Engine::op_of(std::uint32_t round) {
  return const_cast<Pending&>(std::as_const(*this).op_of(round));
}

const Engine::Pending& Engine::op_of(std::uint32_t round) const {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (is_before(round, ops_[i].first_round + ops_[i].rounds)) return ops_[i];
  }
  TROUPE_ASSERT(false, "a round that is not complete belongs to an operation in flight");
}

// Launching.

Token Engine::launch_packed(std::span<const Op> calls) {
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
  return launch_rounds(all, calls, std::move(pack));
}

void Engine::unpack(const Pending& op) {
  const std::byte* at = op.pack.get();
  for (const Op& call : op.packed) {
    if (call.count != 0) std::memcpy(call.out(), at, call.bytes());
    at += call.bytes();
  }
}

const std::shared_ptr<const Engine::Known>& Engine::know(const Op& call) {
  const OpWords words = encode(call);
  const bool opens = launched_ == 0;
  const bool same = known_ && known_->opens == opens && known_->words[0] == words[0] &&
                    known_->words[1] == words[1] && known_->words[2] == words[2];
  if (same && known_->counts == call.counts) return known_;
  const Shape shape = shape_of(call);
  auto made = std::make_shared<Known>();
  made->words = words;
  made->counts = call.counts;
  made->opens = opens;
  for (const std::uint64_t word : words) made->hash = mix(made->hash, word);
  made->choice = choose_algorithm(call, shape);
  made->plan = Plan(call, shape, made->choice.algorithm);
  made->rounds = made->plan.rounds();
  made->element = element_size(call.dtype);
  if (made->plan.sums()) made->kernel = kernel_for(call.dtype, call.how.op);
  learn_partners(*made);
  return known_ = std::move(made);
}

Token Engine::launch_rounds(const Op& call, std::span<const Op> packed, std::unique_ptr<std::byte[]> pack) {
  const std::lock_guard lock(mutex_);
  throw_if_aborted();
  const std::shared_ptr<const Known>& same = know(call);
  const Known& known = *same;
  if (known.rounds > kMaxRounds) {
    throw_error({ErrorCode::kLimit, "cannot " + to_string(call),
                 "it takes more than 2^24 rounds of one stage each", "split it"});
  }
  if (known.plan.one_shot() && known.is_read) {  // others have read the lines that arrive() is about to write
    const std::size_t bytes = known.plan.input_count(rank_) * known.element;
    claim(region_.stage(local(rank_), launched_), std::min<std::size_t>(bytes, kClaimed));
  }
  if (ops_.size() == kMaxLaunched) drive({ops_.front().first_round + ops_.front().rounds, nullptr, {}});
  Pending& op = ops_.push();
  op.call = call;
  if (op.known != same) op.known = same;  // a count that cores share is left alone
  op.hash = static_cast<std::uint32_t>(mix(known.hash, launched_));
  op.sequence = static_cast<std::uint32_t>(call.sequence);
  op.first_round = launched_;
  op.rounds = static_cast<std::uint32_t>(known.rounds);
  op.agreed = false;
  op.packed.assign(packed.begin(), packed.end());
  op.pack = std::move(pack);
  op.slot = calls_++ % kMaxInFlight;
  if (layout_.hosts() > 1) op.hosts = HostPlan(layout_, sums_of(op), op.plan(), op.call, known.choice.route);
  recent_[op.slot] = {op.sequence, op.words()};
  prepare(op);
  PublishedOp& published = mine_.calls[op.slot];
  for (std::size_t i = 0; i < op.words().size(); ++i)
    published.words[i].store(op.words()[i], std::memory_order_relaxed);
  published.place.store(op.places[local(rank_)], std::memory_order_relaxed);
  if (trace_) trace(op, known.choice);
  launched_ += op.rounds;
  float_mode_ = FloatMode::here();
  note_launch();
  const bool gives = op.known->awaits.empty();
  arrive();
  if (gives && reduce()) complete();
  if (!unseen_.empty()) compare_arrived();
  for (Peer* gate : gates_) {
    compare_its_call(*gate);
    place_early(*gate);
  }
  if (layout_.hosts() > 1) exchange();
  return {launched_, nullptr, call.timeout, completed_ == launched_};
}

/// Says once for each call what was chosen, on the first rank of the machine.
void Engine::trace(const Pending& op, const Choice& choice) {
  if (rank_ != locals_.front() || !traced_.insert(op.words()).second) return;
  std::fprintf(stderr, "troupe: rank %d of %d: %s: %s\n", rank_, size_, numbered(op.call).c_str(),
               to_string(choice).c_str());
}

// The three counts.

bool Engine::advance() {
  bool moved = arrive();
  moved = reduce() || moved;
  moved = complete() || moved;
  if (!neighbours_.empty()) moved = exchange_messages() || moved;
  return (layout_.hosts() > 1 && exchange()) || moved;
}

bool Engine::arrive() {
  const std::uint32_t before = arrived_;
  while (arrived_ != launched_) {
    const Pending& op = op_of(arrived_);
    if (op.gated) {
      // The stage of this round is still in use, or somebody reads what this rank left there.
      if (arrived_ - completed_ >= kStages || !locals_reduced(arrived_ - kStages)) break;
      compare_unseen(locals_, freed_);
      if (!std::exchange(staging_populated_, true)) region_.populate_staging().value();
      if (op.copies_in) stage(op, arrived_ - op.first_round);
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

bool Engine::have_arrived(const std::vector<int>& ranks, std::uint32_t round) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int peer) { return reached(region_.cell(local(peer)).arrived, round + 1); });
}

/// Whether the input of every rank for this one is there, and this rank has done what others have of it.
bool Engine::all_arrived(const Pending& op, std::uint32_t round) {
  if (!have_arrived(op.known->awaits, round)) return false;
  if (layout_.hosts() == 1) return true;
  if (!gates_are_past(round)) return false;
  for (; landed_hosts_ < layout_.hosts(); ++landed_hosts_) {
    const int origin = landed_hosts_;
    if (origin == host_ || !op.hosts.wants(round - op.first_round, origin, host_)) continue;
    if (!has_landed(op, round, origin)) return false;
  }
  return true;
}

bool Engine::reduce() {
  if (reduced_ == arrived_) return false;
  Pending& op = op_of(reduced_);
  if (!all_arrived(op, reduced_)) return false;
  if (!op.agreed) agree(op);
  if (op.plan().sums()) {
    sum(op, reduced_ - op.first_round);
  } else {
    copy(op, reduced_ - op.first_round);
  }
  landed_hosts_ = 0;
  publish(mine_.reduced, ++reduced_);
  return true;
}

/// One-shot, all buffers are in stages, and the hashes of the calls are all that counts: where that of this
/// round is missing, `peer` is in another call, and has perhaps not launched one of this number. REQUIRES: it
/// has arrived in the round, and this rank has not reduced the round kStages later: so long who is ahead
/// keeps the hash.
bool Engine::has_called(int peer, std::uint32_t round, std::uint32_t hash) const {
  const auto& calls = region_.cell(local(peer)).arrived.calls;
  return calls[round % calls.size()].load(std::memory_order_relaxed) == hash;
}

OpWords Engine::published(int peer, std::uint32_t slot) const {
  OpWords words;
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = region_.cell(local(peer)).calls[slot].words[i].load(std::memory_order_relaxed);
  return words;
}

void Engine::fail_mismatch(int peer, std::uint32_t slot, std::uint32_t sequence, const std::string& mine) {
  fail(AbortKind::kMismatch, "at #" + std::to_string(sequence) + " rank " + std::to_string(rank_) +
                                 " called " + mine + " and rank " + std::to_string(peer) + " " +
                                 to_string(published(peer, slot)));
}

/// Compares the calls before round `until` that were not compared with all with those of `peers`, which have
/// arrived in their rounds: the first that differs is the one to name.
void Engine::compare_unseen(const std::vector<int>& peers, std::uint32_t until) {
  for (std::size_t i = 0; i < unseen_.size() && is_before(unseen_[i].round, until); ++i) {
    const Unseen& mine = unseen_[i];
    for (const int peer : peers) {
      if (!has_called(peer, mine.round, mine.hash))
        fail_mismatch(peer, mine.slot, mine.sequence, to_string(mine.words));
    }
  }
  if (peers.size() != locals_.size()) return;
  while (!unseen_.empty() && is_before(unseen_.front().round, until)) unseen_.pop();
}

/// Compares the calls in which this rank waited for nobody with those of all that have arrived in their
/// rounds by now. Of two that wait for none of each other, the one that launches last finds the other there;
/// where both launch at once, at the next launch.
void Engine::compare_arrived() {
  for (std::size_t i = 0; i < unseen_.size(); ++i) {
    const Unseen& mine = unseen_[i];
    if (!mine.gave) continue;
    for (const int peer : locals_) {
      const bool there = reached(region_.cell(local(peer)).arrived, mine.round + 1);
      if (there && !has_called(peer, mine.round, mine.hash))
        fail_mismatch(peer, mine.slot, mine.sequence, to_string(mine.words));
    }
  }
}

/// Compares the call with those of the ranks that it waited for, and learns where their buffers are. With the
/// other ranks' it is compared at its launch and each that follows, as far as these have arrived, and with
/// all as soon as a round waits for all or a stage is used again.
void Engine::agree(Pending& op) {
  if (op.first_round == 0) crowded_ = locals_.size() > region_.cores();  // all are there
  const bool all = op.known->awaits.size() == locals_.size();
  compare_unseen(op.known->awaits, op.first_round);
  op.agreed = true;
  for (const int peer : op.known->awaits) {
    const bool alike = op.plan().one_shot() ? has_called(peer, op.first_round, op.hash)
                                            : published(peer, op.slot) == op.words();
    if (!alike) fail_mismatch(peer, op.slot, op.sequence, to_string(op.call));
    if (op.plan().one_shot()) continue;
    const std::uint64_t place =
        region_.cell(local(peer)).calls[op.slot].place.load(std::memory_order_relaxed);
    if (op.is(OpKind::kAllReduceTree) && place != op.places[local(rank_)]) {
      fail(AbortKind::kMismatch, "rank " + std::to_string(rank_) + " has the tree of " + numbered(op.call) +
                                     " elsewhere than rank " + std::to_string(peer) +
                                     ": they allocated with different counts, or in another order");
    }
    const std::size_t bytes = op.plan().input_count(peer) * op.element();
    if (place != 0 && (place > region_.data_bytes() || bytes > region_.data_bytes() - (place - 1))) {
      fail(AbortKind::kMismatch, "rank " + std::to_string(peer) + " published a buffer outside its memory");
    }
    op.places[local(peer)] = place;
  }
  if (all) return;
  unseen_.push() = {op.first_round, op.slot, op.hash, op.sequence, op.words(), op.known->awaits.empty()};
}

/// Whether the sums of a round that come from other hosts, or go there, are where they belong.
bool Engine::locals_delivered(std::uint32_t round) const {
  return std::all_of(locals_.begin(), locals_.end(),
                     [&](int peer) { return reached(region_.cell(local(peer)).delivered, round + 1); });
}

/// Rounds that all ranks of this host have reduced.
std::uint32_t Engine::freed() const {
  std::uint32_t least = reduced_;
  for (const int peer : locals_) {
    const std::uint32_t theirs = region_.cell(local(peer)).reduced.rounds.load(std::memory_order_acquire);
    if (is_before(theirs, least)) least = theirs;
  }
  return freed_ = least;
}

bool Engine::complete() {
  if (completed_ == reduced_) return false;
  Pending& op = op_of(completed_);
  if (!op.plan().one_shot() && !locals_reduced(completed_)) return false;
  if (layout_.hosts() > 1 && op.plan().answers() && !locals_delivered(completed_)) return false;
  if (op.plan().answers()) unstage(op, completed_ - op.first_round);
  ++completed_;
  if (completed_ == op.first_round + op.rounds) {
    unpack(op);
    op.pack.reset();
    ops_.pop();
  }
  return true;
}

}  // namespace troupe::collectives
