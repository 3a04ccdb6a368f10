#include "collectives/native/engine.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "runtime/core/assert.hpp"

namespace troupe::collectives {
namespace {

std::vector<LeafInterval> nodes_of(const std::vector<LeafInterval>& intervals) {
  std::vector<LeafInterval> all;
  for (auto interval : intervals) {
    const auto nodes = canonical_nodes(interval, intervals.back().end);
    all.insert(all.end(), nodes.begin(), nodes.end());
  }
  return all;
}

std::vector<LeafInterval> one_leaf_a_rank(int size) {
  std::vector<LeafInterval> intervals;
  intervals.reserve(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) intervals.push_back({r, r + 1});
  return intervals;
}

std::size_t cores() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    return static_cast<std::size_t>(CPU_COUNT(&allowed));
  return std::thread::hardware_concurrency();
}

bool is_before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
}

}  // namespace

Engine::Engine(NativeGroupOptions options, Region region)
    : rank_(options.rank),
      size_(options.size),
      generation_(options.generation),
      timeout_(options.timeout),
      intervals_(std::move(options.leaves)),
      locals_(std::move(options.local_ranks)),
      local_index_(index_of(options.size), -1),
      region_(std::move(region)),
      mine_(region_.cell(static_cast<std::size_t>(std::find(locals_.begin(), locals_.end(), options.rank) -
                                                  locals_.begin()))),
      crowded_(locals_.size() > cores()),
      leaf_sum_(nodes_of(intervals_), intervals_.back().end),
      rank_sum_(one_leaf_a_rank(size_), size_) {
  for (std::size_t i = 0; i < locals_.size(); ++i) local_index_[index_of(locals_[i])] = static_cast<int>(i);
  for (auto interval : intervals_) {
    partials_.push_back(canonical_nodes(interval, intervals_.back().end).size());
  }
  for (auto& [rank, fd] : options.remote) remotes_.emplace(rank, Remote{.link = Link(rank, std::move(fd))});
}

TreeBuffer Engine::allocate(std::size_t count, DType dtype) {
  const std::lock_guard lock(mutex_);
  const std::size_t most = *std::max_element(partials_.begin(), partials_.end());
  Allocation made{.offset = allocated_bytes_, .count = count, .dtype = dtype};
  made.slot_bytes = native_tree_bytes(intervals_, count, dtype) / most;
  if (made.slot_bytes * most > region_.data_bytes() - allocated_bytes_) {
    throw_error(
        {ErrorCode::kLimit,
         "cannot allocate a tree of " + std::to_string(count) + " x " + std::string(dtype_name(dtype)),
         "it takes " + std::to_string(made.slot_bytes * most) + " bytes and " +
             std::to_string(region_.data_bytes() - allocated_bytes_) + " of the rank's " +
             std::to_string(region_.data_bytes()) + " are left",
         "raise data_bytes"});
  }
  TreeBuffer buffer{.count = count, .dtype = dtype, .index = static_cast<int>(allocations_.size())};
  for (std::size_t p = 0; p < partials_[index_of(rank_)]; ++p) {
    buffer.partials.push_back(region_.data(local(rank_)) + made.offset + p * made.slot_bytes);
  }
  // The others' too: this rank reads its slice of them all and writes to their first slots.
  for (int peer : locals_) {
    const std::size_t bytes = made.slot_bytes * partials_[index_of(peer)];
    region_.populate(region_.data(local(peer)) + made.offset, bytes).value();
  }
  allocated_bytes_ += made.slot_bytes * most;
  allocations_.push_back(made);
  return buffer;
}

// What an operation is made of.

std::size_t Engine::partials_of(const Op& op, int rank) const {
  return op.contract.kind == OpKind::kAllReduceTree ? partials_[index_of(rank)] : 1;
}

Engine::Op& Engine::op_of(std::uint32_t round) {
  for (Op& op : ops_) {
    if (is_before(round, op.first_round + op.rounds)) return op;
  }
  TROUPE_ASSERT(false, "a round that is not complete belongs to an operation in flight");
}

Engine::Part Engine::part_of(const Op& op, std::uint32_t round) const {
  if (op.contract.kind == OpKind::kBarrier) return {};
  if (op.contract.kind == OpKind::kAllReduceTree) return {0, op.contract.count};
  const std::size_t chunk = kChunkBytes / element_size(op.contract.dtype);
  const std::size_t begin = (round - op.first_round) * chunk;
  return {begin, std::min<std::size_t>(chunk, op.contract.count - begin)};
}

bool Engine::reduces(const Op& op) const {
  return op.contract.kind == OpKind::kAllReduceTree || op.contract.kind == OpKind::kAllReduce;
}

/// Whether this rank's input goes through the staging area.
bool Engine::stages(const Op& op) const {
  if (op.contract.kind == OpKind::kAllReduce) return op.places[local(rank_)] == 0;
  return op.contract.kind == OpKind::kBroadcast && op.contract.index == rank_ && op.places[local(rank_)] == 0;
}

/// Where partial `partial` of local rank `rank` lies in `round`.
std::byte* Engine::slot(const Op& op, std::uint32_t round, int rank, std::size_t partial) const {
  const std::size_t at = local(rank);
  if (op.contract.kind == OpKind::kAllReduceTree) {
    const Allocation& tree = allocations_[static_cast<std::size_t>(op.contract.index)];
    return region_.data(at) + tree.offset + partial * tree.slot_bytes;
  }
  if (op.places[at] == 0) return region_.stage(at, round);
  return region_.data(at) + (op.places[at] - 1) + part_of(op, round).begin * element_size(op.contract.dtype);
}

// Launching.

std::uint32_t Engine::launch_tree(const TreeBuffer& buffer, ReduceOp op) {
  {
    const std::lock_guard lock(mutex_);
    const bool known = buffer.index >= 0 && static_cast<std::size_t>(buffer.index) < allocations_.size();
    const Allocation* tree = known ? &allocations_[static_cast<std::size_t>(buffer.index)] : nullptr;
    if (tree == nullptr || tree->count != buffer.count || tree->dtype != buffer.dtype) {
      throw_error({ErrorCode::kBadInput, "cannot reduce this tree buffer",
                   "it was not allocated by this group", "use what allocate_tree returned"});
    }
  }
  return launch({.kind = OpKind::kAllReduceTree,
                 .op = op,
                 .dtype = buffer.dtype,
                 .index = buffer.index,
                 .count = buffer.count},
                nullptr);
}

std::uint32_t Engine::launch(const Contract& contract, std::byte* data) {
  const std::lock_guard lock(mutex_);
  throw_if_aborted();
  const std::size_t bytes = contract.count * element_size(contract.dtype);
  Op op{.contract = contract, .sequence = next_sequence_, .first_round = launched_, .data = data};
  if (reduces(op)) {
    op.kernel = kernel_for(contract.dtype, contract.op);
    if (op.kernel.combine == nullptr) {
      throw_error(
          {ErrorCode::kBadInput, "cannot " + to_string(contract),
           std::string(dtype_name(contract.dtype)) + " does not reduce by " +
               std::string(reduce_op_name(contract.op)),
           "use sum, avg, product, min or max of f32, f64, f16 or bf16, or all but avg of i32 or i64"});
    }
  }
  if (contract.kind == OpKind::kAllReduce || contract.kind == OpKind::kBroadcast) {
    op.rounds = static_cast<std::uint32_t>(std::max<std::size_t>(1, (bytes + kChunkBytes - 1) / kChunkBytes));
  }
  if (ops_.size() == kMaxInFlight) drive(ops_.front().first_round + ops_.front().rounds);
  op.places.resize(locals_.size());
  if (data != nullptr && region_.holds(local(rank_), data, bytes)) {
    op.places[local(rank_)] = static_cast<std::uint64_t>(data - region_.data(local(rank_))) + 1;
  }
  PublishedContract& published = mine_.contracts[op.sequence % kMaxInFlight];
  const ContractWords words = encode(contract);
  for (std::size_t i = 0; i < words.size(); ++i)
    published.words[i].store(words[i], std::memory_order_relaxed);
  published.place.store(op.places[local(rank_)], std::memory_order_relaxed);
  ++next_sequence_;
  launched_ += op.rounds;
  ops_.push_back(std::move(op));
  arrive();
  if (!remotes_.empty()) exchange();
  return launched_;
}

// The three counts.

bool Engine::advance() {
  bool moved = arrive();
  moved = reduce() || moved;
  moved = complete() || moved;
  return (!remotes_.empty() && exchange()) || moved;
}

bool Engine::arrive() {
  const std::uint32_t before = arrived_;
  while (arrived_ != launched_) {
    const Op& op = op_of(arrived_);
    if (stages(op)) {
      if (arrived_ - completed_ >= kStages) break;  // the stage of this round is still in use
      if (!std::exchange(staging_populated_, true)) region_.populate_staging().value();
      const Part part = part_of(op, arrived_);
      const std::size_t element = element_size(op.contract.dtype);
      if (part.count != 0) {
        std::memcpy(region_.stage(local(rank_), arrived_), op.data + part.begin * element,
                    part.count * element);
      }
    }
    ++arrived_;
  }
  if (arrived_ == before) return false;
  publish(mine_.arrived, arrived_);
  return true;
}

bool Engine::all_arrived(std::uint32_t round) const {
  for (int peer : locals_) {
    if (!reached(region_.cell(local(peer)).arrived, round + 1)) return false;
  }
  return std::all_of(remotes_.begin(), remotes_.end(),
                     [&](const auto& entry) { return has_partials(entry.second, round); });
}

bool Engine::reduce() {
  if (reduced_ == arrived_ || !all_arrived(reduced_)) return false;
  Op& op = op_of(reduced_);
  if (!op.agreed) agree(op);
  if (reduces(op)) sum(op, reduced_);
  if (op.contract.kind == OpKind::kBroadcast && op.contract.index != rank_) receive_broadcast(op, reduced_);
  publish(mine_.reduced, ++reduced_);
  return true;
}

/// Compares the local ranks' contracts, and learns where their buffers are.
void Engine::agree(Op& op) {
  for (int peer : locals_) {
    const PublishedContract& theirs = region_.cell(local(peer)).contracts[op.sequence % kMaxInFlight];
    const ContractWords words{theirs.words[0].load(std::memory_order_relaxed),
                              theirs.words[1].load(std::memory_order_relaxed)};
    const auto contract = decode_contract(words);
    if (!contract || *contract != op.contract) {
      fail(AbortKind::kMismatch, "at #" + std::to_string(op.sequence) + " rank " + std::to_string(rank_) +
                                     " called " + to_string(op.contract) + " and rank " +
                                     std::to_string(peer) + " " +
                                     (contract ? to_string(*contract) : "something unknown"));
    }
    const std::uint64_t place = theirs.place.load(std::memory_order_relaxed);
    const std::size_t bytes = op.contract.count * element_size(op.contract.dtype);
    if (place != 0 && (place > region_.data_bytes() || bytes > region_.data_bytes() - (place - 1))) {
      fail(AbortKind::kMismatch, "rank " + std::to_string(peer) + " published a buffer outside its memory");
    }
    op.places[local(peer)] = place;
  }
  op.agreed = true;
}

void Engine::sum(const Op& op, std::uint32_t round) {
  const std::size_t element = element_size(op.contract.dtype);
  const Slice mine = slice_of(part_of(op, round).count, element, rank_, size_);
  sources_.clear();
  targets_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    for (std::size_t p = 0; p < partials_of(op, peer); ++p) {
      sources_.push_back(is_local(peer) ? slot(op, round, peer, p) + mine.begin * element
                                        : remotes_.at(peer).partials.data() + p * mine.size() * element);
    }
    if (is_local(peer)) targets_.push_back(slot(op, round, peer, 0) + mine.begin * element);
  }
  TreeSum& tree = op.contract.kind == OpKind::kAllReduceTree ? leaf_sum_ : rank_sum_;
  tree.run(op.kernel, sources_, targets_, mine.size(), element);
}

void Engine::receive_broadcast(const Op& op, std::uint32_t round) {
  const int root = op.contract.index;
  const Part part = part_of(op, round);
  const std::size_t element = element_size(op.contract.dtype);
  if (part.count == 0) return;
  const std::byte* from = is_local(root) ? slot(op, round, root, 0) : remotes_.at(root).partials.data();
  std::memcpy(op.data + part.begin * element, from, part.count * element);
}

bool Engine::all_reduced(std::uint32_t round) const {
  for (int peer : locals_) {
    if (!reached(region_.cell(local(peer)).reduced, round + 1)) return false;
  }
  return std::all_of(remotes_.begin(), remotes_.end(), [&](const auto& entry) {
    return is_before(round, entry.second.receive_round) && is_before(round, entry.second.send_round);
  });
}

bool Engine::complete() {
  if (completed_ == reduced_ || !all_reduced(completed_)) return false;
  const Op& op = op_of(completed_);
  if (op.contract.kind == OpKind::kAllReduce && stages(op)) {
    const Part part = part_of(op, completed_);
    const std::size_t element = element_size(op.contract.dtype);
    if (part.count != 0) {
      std::memcpy(op.data + part.begin * element, region_.stage(local(rank_), completed_),
                  part.count * element);
    }
  }
  ++completed_;
  if (completed_ == op.first_round + op.rounds) ops_.pop_front();
  return true;
}

// Waiting and failing.

void Engine::wait(std::uint32_t rounds) {
  const std::lock_guard lock(mutex_);
  if (is_before(completed_, rounds)) drive(rounds);
}

bool Engine::wait_for(std::uint32_t rounds, Duration limit) {
  const std::lock_guard lock(mutex_);
  return !is_before(completed_, rounds) || drive(rounds, limit);
}

bool Engine::test(std::uint32_t rounds) {
  const std::lock_guard lock(mutex_);
  while (is_before(completed_, rounds)) {
    throw_if_aborted();
    if (!advance()) return false;
  }
  return true;
}

bool Engine::drive(std::uint32_t rounds, Duration limit) {
  Patience patience(crowded_);
  const Instant begun = progress_at_ = clock_.now();
  while (is_before(completed_, rounds)) {
    throw_if_aborted();
    if (advance()) {
      patience.reset();
      progress_at_ = clock_.now();
      continue;
    }
    const Patience::Turn turn = patience.next();
    if (turn == Patience::Turn::kAgain) continue;
    if (turn == Patience::Turn::kSleep) sleep();
    check_on_others();
    if (clock_.now() - begun >= limit) return false;
  }
  return true;
}

/// The ranks that this one waits for.
std::vector<int> Engine::missing() const {
  std::vector<int> ranks;
  const bool to_arrive = reduced_ != arrived_;
  for (int peer = 0; peer < size_; ++peer) {
    bool there = false;
    if (is_local(peer)) {
      const RankCell& cell = region_.cell(local(peer));
      there = to_arrive ? reached(cell.arrived, reduced_ + 1) : reached(cell.reduced, completed_ + 1);
    } else {
      const Remote& remote = remotes_.at(peer);
      there = to_arrive
                  ? has_partials(remote, reduced_)
                  : is_before(completed_, remote.receive_round) && is_before(completed_, remote.send_round);
    }
    if (!there) ranks.push_back(peer);
  }
  return ranks;
}

std::uint64_t Engine::progress_of_all() const {
  std::uint64_t sum = 0;
  for (int peer : locals_) {
    const RankCell& cell = region_.cell(local(peer));
    sum += cell.arrived.rounds.load(std::memory_order_relaxed);
    sum += cell.reduced.rounds.load(std::memory_order_relaxed);
  }
  return sum;
}

void Engine::check_on_others() {
  for (int peer : missing()) {
    if (!is_local(peer)) continue;
    const RankCell& cell = region_.cell(local(peer));
    // It may have done its part right before it left, so whether it is missing is looked up again.
    if (cell.left.load(std::memory_order_acquire) == 0) continue;
    const auto still = missing();
    if (std::find(still.begin(), still.end(), peer) == still.end()) continue;
    fail(AbortKind::kPeerLost,
         "rank " + std::to_string(peer) + " left the group before " + name_of(op_of(completed_)));
  }
  const std::uint64_t progress = progress_of_all();
  const Instant now = clock_.now();
  if (progress != seen_progress_) {
    seen_progress_ = progress;
    progress_at_ = now;
  }
  if (now - progress_at_ >= timeout_) fail_timeout();
}

void Engine::sleep() {
  if (!remotes_.empty()) {
    sleep_on_sockets();
    return;
  }
  const bool to_arrive = reduced_ != arrived_;
  const std::uint32_t wanted = (to_arrive ? reduced_ : completed_) + 1;
  for (int peer : locals_) {
    RankCell& cell = region_.cell(local(peer));
    Progress& word = to_arrive ? cell.arrived : cell.reduced;
    const std::uint32_t seen = word.rounds.load(std::memory_order_acquire);
    if (!is_before(seen, wanted)) continue;
    sleep_on(word, seen, kSleepSlice);
    return;
  }
}

std::string Engine::name_of(const Op& op) const {
  return to_string(op.contract) + " #" + std::to_string(op.sequence);
}

void Engine::throw_if_aborted() {
  if (region_aborted(region_.abort_word())) throw_aborted();
}

void Engine::throw_aborted() {
  tell_other_machines();
  throw_error({ErrorCode::kAborted, "the process group was aborted",
               region_abort_reason(region_.abort_word()).text, "form the next generation"});
}

void Engine::fail(AbortKind kind, const std::string& reason) {
  abort_region(region_.abort_word(), reason, kind);
  throw_aborted();
}

void Engine::fail_timeout() {
  std::string ranks;
  for (int peer : missing()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(peer);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g", to_seconds(timeout_));
  const std::string reason = "rank " + std::to_string(rank_) + ": " + name_of(op_of(completed_)) +
                             ": no rank made progress for " + seconds + " s; waiting for rank " + ranks;
  if (!abort_region(region_.abort_word(), reason, AbortKind::kTimeout)) throw_aborted();
  tell_other_machines();
  throw_error({ErrorCode::kTimeout, "a collective timed out", reason,
               "see what the missing ranks do, or raise NativeGroupOptions::timeout"});
}

void Engine::tell_other_machines() {
  if (std::exchange(told_, true) || remotes_.empty()) return;
  const std::string reason = region_abort_reason(region_.abort_word()).text;
  for (auto& [rank, remote] : remotes_) remote.link.close_with(reason);
}

void Engine::abort(AbortKind kind, const std::string& reason) {
  abort_region(region_.abort_word(), reason, kind);
  // A thread that waits leaves within a slice, so the mutex is free soon.
  const std::lock_guard lock(mutex_);
  tell_other_machines();
}

std::string Engine::abort_reason() const {
  if (!region_aborted(region_.abort_word())) return {};
  return region_abort_reason(region_.abort_word()).text;
}

void Engine::leave() {
  const std::lock_guard lock(mutex_);
  const bool aborted = region_aborted(region_.abort_word());
  if (!ops_.empty() && !aborted) {
    abort_region(region_.abort_word(),
                 "rank " + std::to_string(rank_) + " destroyed its group during " + name_of(ops_.front()),
                 AbortKind::kRequested);
  }
  if (!ops_.empty() || aborted) tell_other_machines();
  mine_.left.store(1, std::memory_order_release);
}

}  // namespace troupe::collectives
