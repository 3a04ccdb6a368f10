/// The engine's half that waits, and that fails.

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "collectives/native/engine.hpp"
#include "collectives/texts.hpp"

namespace troupe::collectives {
namespace {

/// How long a rank that fails tries to say why to other machines.
constexpr Duration kLastWords = std::chrono::milliseconds(10);

/// After so long without progress ranks of different hosts say what they called.
constexpr Duration kStalled = std::chrono::milliseconds(20);

/// Who waits looks more often than this while it runs at all.
constexpr Duration kStopped = std::chrono::milliseconds(100);

/// Other groups may move so often before this one looks after its own deadline.
constexpr unsigned kMovesPerCheck = 64;

}  // namespace

bool Engine::done(const Token& token) const {
  return token.transfer ? token.transfer->done : !is_before(completed_, token.rounds);
}

bool Engine::wait(const Token& token, Duration limit) {
  struct Counted {
    explicit Counted(std::atomic<std::uint32_t>* all) : count(all) {
      if (count != nullptr) count->fetch_add(1, std::memory_order_relaxed);
    }
    ~Counted() {
      if (count != nullptr) count->fetch_sub(1, std::memory_order_relaxed);
    }
    std::atomic<std::uint32_t>* count;
  } const counted(server_.joinable() ? &waiting_ : nullptr);
  fork_guard_.check("process group");
  const std::lock_guard lock(mutex_);
  return drive(token, limit);
}

bool Engine::drive(const Token& token, Duration limit) {
  // What comes from other hosts wakes who sleeps, and the sockets' work needs a core: yield early and often.
  const bool between_hosts = layout_.hosts() > 1;
  Backoff backoff(crowded_, between_hosts ? nullptr : &spin_credit_);
  const bool polls = limit <= Duration::zero(), limited = !polls && limit != Duration::max();
  const Instant begun = limited ? clock_.now() : Instant{};
  const auto over = [&] { return limited && clock_.now() - begun >= limit; };
  unsigned moves_beside = 0;
  looked_at_ = Instant{};
  while (!done(token)) {
    throw_if_aborted();
    if (advance() || (token.transfer && exchange_messages(true))) {
      backoff.reset();
      moved_ = true;
      if (over()) return done(token);
      continue;
    }
    Backoff::Turn turn = Backoff::Turn::kCheck;
    if (!polls && EngineEntry::others_are_open() && entry_->move_others(false)) {
      backoff.reset();
      if (++moves_beside % kMovesPerCheck != 0) continue;
    } else if (!polls) {
      turn = backoff.next([&] { return between_hosts || waits_beside(token); });
    }
    if (turn == Backoff::Turn::kAgain) continue;
    if (turn == Backoff::Turn::kSleep) sleep(token);
    if (take_unasked()) moved_ = true;
    entry_->move_others(true);
    check_on_others(token);
    if (polls || over()) return done(token);
  }
  return true;
}

bool Engine::move_beside(bool all) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  const FloatMode mine = FloatMode::here();
  bool moved = false;
  try {
    throw_if_aborted();
    float_mode_.apply();
    moved = advance() || (all && take_unasked());
    moved_ = moved_ || moved;
    if (!is_busy()) entry_->close();
  } catch (const Error&) {
    entry_->close();  // who waits in this group learns why
  }
  mine.apply();
  return moved;
}

/// Whether a rank that this one waits for was last seen on this core.
bool Engine::waits_beside(const Token& token) const {
  const auto is_here = [core = core_here()](const RankCell& cell) {
    return core != 0 && cell.arrived.core.load(std::memory_order_relaxed) == core;
  };
  if (token.transfer) {
    const int peer = token.transfer->call.peer;
    return peer != kAnyRank && is_local(peer) && is_here(region_.cell(local(peer)));
  }
  const Awaited awaits = awaited();
  return std::any_of(awaits.ranks.begin(), awaits.ranks.end(), [&](int peer) {
    const RankCell& cell = region_.cell(local(peer));
    const Progress& word = awaits.what == Awaited::kArrival ? cell.arrived : cell.reduced;
    return !reached(word, awaits.round + 1) && is_here(cell);
  });
}

/// What keeps this rank's oldest round.
Engine::Awaited Engine::awaited() const {
  if (reduced_ != arrived_) return {Awaited::kArrival, reduced_, op_of(reduced_).known->awaits};
  if (completed_ != reduced_) return {Awaited::kReduction, completed_, locals_};
  return {Awaited::kStage, arrived_ - kStages, locals_};
}

/// The ranks that this one waits for.
std::vector<int> Engine::missing(const Token& token) const {
  std::vector<int> ranks;
  if (token.transfer && token.transfer->call.peer == kAnyRank) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !is_gone(peer)) ranks.push_back(peer);
    }
    return ranks;
  }
  if (token.transfer) return {token.transfer->call.peer};
  const auto [what, round, awaits] = awaited();
  const bool arrives = what == Awaited::kArrival;
  for (const int peer : awaits) {
    const RankCell& cell = region_.cell(local(peer));
    const bool delivers = what == Awaited::kReduction && layout_.hosts() > 1 && op_of(round).plan().answers();
    const bool there = reached(arrives ? cell.arrived : cell.reduced, round + 1) &&
                       (!delivers || reached(cell.delivered, round + 1));
    if (!there) ranks.push_back(peer);
  }
  // A host has what it sends from all of its ranks. Which of them are missing it says when it stalls.
  std::set<int> hosts;
  for (const Peer* gate : gates_) {
    const bool past = arrives ? is_before(round, gate->partials_in) && is_before(round, gate->partials_out)
                              : is_before(round, gate->results_in) && is_before(round, gate->results_out);
    if (!past) hosts.insert(gate->host);
  }
  for (int host = 0; arrives && host < layout_.hosts(); ++host) {
    const Pending& op = op_of(round);
    const bool wanted = host != host_ && op.hosts.wants(round - op.first_round, host, host_);
    if (wanted && !has_landed(op, round, host)) hosts.insert(host);
  }
  std::vector<int> others;  // of hosts that say that all of theirs have called it: they wait, too
  for (const int host : hosts) {
    std::uint64_t missing = 0;
    bool said = false;
    for (std::uint32_t lane = 0; lane < layout_.lanes(host_, host); ++lane) {
      const GateCell& gate = region_.gate(host, lane);
      if (gate.stalls_at.load(std::memory_order_acquire) != op_of(round).sequence) continue;
      said = true;
      missing |= gate.missing_there.load(std::memory_order_relaxed);
    }
    const std::vector<int>& members = layout_.members(host);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!said || (i < 64 && (missing >> i & 1) != 0)) ranks.push_back(members[i]);
      if (said && missing == 0) others.push_back(members[i]);
    }
  }
  std::erase(ranks, rank_);
  if (ranks.empty()) ranks = others;
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::uint64_t Engine::progress_of_all() const {
  std::uint64_t sum = 0;
  for (int host = 0; layout_.hosts() > 1 && host < layout_.hosts(); ++host) {
    for (std::uint32_t lane = 0; host != host_ && lane < layout_.lanes(host_, host); ++lane) {
      sum += region_.gate(host, lane).landed.rounds.load(std::memory_order_relaxed);
    }
  }
  for (int peer : locals_) {
    const RankCell& cell = region_.cell(local(peer));
    sum += cell.arrived.rounds.load(std::memory_order_relaxed);
    sum += cell.reduced.rounds.load(std::memory_order_relaxed);
    sum += cell.delivered.rounds.load(std::memory_order_relaxed);
  }
  return sum;
}

void Engine::check_on_others(const Token& token) {
  const bool any = token.transfer && token.transfer->call.peer == kAnyRank;
  if (any) check_senders(token);
  if (any && done(token)) return;
  for (int peer : any ? std::vector<int>{} : missing(token)) {
    if (!is_local(peer) || !left(peer)) continue;
    // It may have done its part right before it left, so whether it is missing is looked up again.
    if (token.transfer) exchange_messages();
    if (done(token)) return;
    const auto still = missing(token);
    if (std::find(still.begin(), still.end(), peer) == still.end()) continue;
    fail(AbortKind::kPeerLost, "rank " + std::to_string(peer) + " left the group before " + name_of(token));
  }
  // The timeout runs from the launch, the last progress of any rank, or this rank's first look at it,
  // whichever was last: however long the caller takes between two polls, others had the chance to be seen.
  const std::uint64_t progress = progress_of_all();
  const Instant now = clock_.now();
  if (std::exchange(moved_, false) || progress != seen_progress_) {
    seen_progress_ = progress;
    progress_at_ = now;
  } else if (looked_at_ != Instant{}) {
    // While this rank was stopped the others may have been, too: a whole machine can stand still.
    progress_at_ += std::max(now - looked_at_ - kStopped, Duration::zero());
  }
  looked_at_ = now;
  stalled_ = now - progress_at_ >= kStalled;
  if (stalled_ && !gates_.empty() && !ops_.empty()) {
    missing_here_ = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(64, locals_.size()); ++i) {
      const bool there = reached(region_.cell(i).arrived, ops_.front().first_round + 1);
      missing_here_ |= std::uint64_t{there ? 0U : 1U} << i;
    }
  }
  if (now - progress_at_ >= timeout_of(token)) fail_timeout(token);
}

void Engine::sleep(const Token& token) {
  if (!remotes_.empty()) {
    poll_sockets(kSleepSlice);
    return;
  }
  if (token.transfer) {
    const int peer = token.transfer->call.peer;
    if (peer == kAnyRank) return std::this_thread::sleep_for(kSleepSlice);
    sleep_on_messages(peer);
    return;
  }
  const auto [what, round, awaits] = awaited();
  const bool arrives = what == Awaited::kArrival;
  const auto slept = [until = round + 1](Progress& word) {
    const std::uint32_t seen = word.rounds.load(std::memory_order_acquire);
    if (!is_before(seen, until)) return false;
    sleep_on(word, seen, kSleepSlice);
    return true;
  };
  for (int peer : awaits) {
    RankCell& cell = region_.cell(local(peer));
    if (slept(arrives ? cell.arrived : cell.reduced)) return;
  }
  // A stage is waited for after its operation: that is gone.
  if (layout_.hosts() == 1 || what == Awaited::kStage) return;
  const Pending& op = op_of(round);
  for (int peer : locals_) {
    if (!arrives && op.plan().answers() && slept(region_.cell(local(peer)).delivered)) return;
  }
  for (int host = 0; arrives && host < layout_.hosts(); ++host) {
    if (host == host_ || !op.hosts.wants(round - op.first_round, host, host_)) continue;
    const int from = op.hosts.via(host, host_);
    if (slept(region_.gate(from, round % layout_.lanes(host_, from)).landed)) return;
  }
}

std::string Engine::name_of(const Transfer& transfer) const {
  const bool counted = transfer.number != 0 && !of_collective(transfer.call);
  return to_string(transfer.call) + (counted ? " #" + std::to_string(transfer.number) : "");
}

std::string Engine::name_of(const Token& token) {
  return token.transfer ? name_of(*token.transfer) : numbered(op_of(completed_).call);
}

/// What this rank is at; "nothing" if nothing is in flight.
std::string Engine::name_of_oldest() const {
  if (!ops_.empty()) return numbered(ops_.front().call);
  const auto transfer = oldest_transfer();
  return transfer ? name_of(*transfer) : "nothing";
}

void Engine::throw_if_aborted() {
  if (region_aborted(region_.abort_word())) throw_aborted();
}

void Engine::throw_aborted() {
  tell_other_machines();
  throw_error({ErrorCode::kAborted, group_called(name_) + " was aborted",
               region_abort_reason(region_.abort_word()).text, kAfterAbort});
}

void Engine::fail(AbortKind kind, const std::string& reason) {
  abort_region(region_.abort_word(), reason, kind);
  throw_aborted();
}

/// A local rank that has reduced fewer rounds than any of `ranks`, who may wait for that one themselves: a
/// root for a stage that it has not read. -1: there is none.
int Engine::behind(const std::vector<int>& ranks) const {
  const auto reduced = [&](int peer) { return region_.cell(local(peer)).reduced.rounds.load(); };
  int last = -1;
  for (const int peer : locals_) {
    if (last < 0 || is_before(reduced(peer), reduced(last))) last = peer;
  }
  const bool behind_all = std::all_of(
      ranks.begin(), ranks.end(), [&](int r) { return is_local(r) && is_before(reduced(last), reduced(r)); });
  return behind_all ? last : -1;
}

void Engine::fail_timeout(const Token& token) {
  const std::vector<int> waits_for = missing(token);
  std::string ranks = listed(waits_for);
  if (const int last = behind(waits_for); last >= 0 && last != rank_ && !token.transfer)
    ranks += "; furthest behind is rank " + std::to_string(last);
  const std::string reason = "rank " + std::to_string(rank_) + ": " + name_of(token) +
                             ": no rank made progress for " + seconds_text(timeout_of(token)) +
                             "; waiting for " + (ranks.empty() ? "any rank" : "rank " + ranks);
  if (!abort_region(region_.abort_word(), reason, AbortKind::kTimeout)) throw_aborted();
  tell_other_machines();
  throw_error({ErrorCode::kTimeout, timed_out_in(name_), reason,
               token.timeout > Duration::zero()
                   ? "see what the missing ranks do, or give this call more time"
                   : "see what the missing ranks do, or raise the timeout with which the group was made"});
}

void Engine::tell_other_machines() {
  if (std::exchange(told_, true)) return;
  connector_.reset();  // nobody connects with this group any more
  if (remotes_.empty()) return;
  const std::string reason = region_abort_reason(region_.abort_word()).text;
  for (auto& [rank, remote] : remotes_) {
    remote.link.say_abort(reason);
  }
  // A large frame may be half out, and the reason behind it: a peer that waits reads it at once. Nothing is
  // received any more: it would go to buffers that may be their owner's again.
  const Instant until = clock_.now() + kLastWords;
  while (wait_to_send() && clock_.now() < until) {
    for (auto& [rank, remote] : remotes_) remote.link.pump_out();
  }
  for (auto& [rank, remote] : remotes_) remote.link.close();
}

void Engine::abort(AbortKind kind, const std::string& reason) {
  abort_region(region_.abort_word(), reason, kind);
  // A thread that waits leaves within a slice, so the mutex is free soon.
  const std::lock_guard lock(mutex_);
  tell_other_machines();
}

/// A rank that waits for nothing reads its sockets here: the others of another machine tell of an abort
/// there.
std::string Engine::abort_reason() {
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock && !remotes_.empty() && !told_) {
    try {
      exchange();
    } catch (const Error&) {
      // It is in the abort word.
    }
  }
  if (!region_aborted(region_.abort_word())) return {};
  return region_abort_reason(region_.abort_word()).text;
}

void Engine::leave() {
  if (fork_guard_.is_in_child()) {  // the group is the parent's, and the thread stayed there
    if (server_.joinable()) server_.detach();
    return;
  }
  if (server_.joinable()) {
    stops_ = true;
    wake_server();
    server_.join();
  }
  entry_->remove();
  const std::lock_guard lock(mutex_);
  const bool aborted = region_aborted(region_.abort_word());
  const bool busy = is_busy();
  if (busy && !aborted) {
    abort_region(region_.abort_word(),
                 "rank " + std::to_string(rank_) + " destroyed its group during " + name_of_oldest(),
                 AbortKind::kRequested);
  }
  if (busy || aborted) {
    // Half a frame may lie in buffers that are gone by now: it stays unsent, and the reason with it.
    for (auto& [rank, remote] : remotes_) {
      if (remote.link.sending()) remote.link.close();
    }
    tell_other_machines();
  } else {
    for (auto& [rank, remote] : remotes_) remote.link.say_left();
  }
  connector_.reset();
  mine_.left.store(1, std::memory_order_release);
}

}  // namespace troupe::collectives
