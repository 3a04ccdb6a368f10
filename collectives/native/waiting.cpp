#include "collectives/native/waiting.hpp"

#include <algorithm>
#include <thread>

#include "collectives/group_facts.hpp"
#include "collectives/native/backoff.hpp"
#include "collectives/texts.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

/// After so long without progress ranks of different hosts say what they called.
constexpr Duration kStalled = std::chrono::milliseconds(20);

/// Who waits looks more often than this while it runs at all.
constexpr Duration kStopped = std::chrono::milliseconds(100);

}  // namespace

bool Waiting::waits_beside(const Token& token) const {
  const auto is_here = [core = core_here()](const RankCell& cell) {
    return core != 0 && cell.arrived.core.load(std::memory_order_relaxed) == core;
  };
  if (token.transfer) {
    const int peer = token.transfer->call.peer;
    return peer != kAnyRank && view_.is_local(peer) && is_here(view_.cell(peer));
  }
  const Rounds::Awaited awaits = rounds_.awaited();
  return std::any_of(awaits.ranks.begin(), awaits.ranks.end(), [&](int peer) {
    const RankCell& cell = view_.cell(peer);
    const Progress& word = awaits.what == Rounds::Awaited::kArrival ? cell.arrived : cell.reduced;
    return !reached(word, awaits.round + 1) && is_here(cell);
  });
}

std::vector<int> Waiting::missing(const Token& token) const {
  std::vector<int> ranks;
  if (is_from_any(token)) {
    for (int peer = 0; peer < view_.size; ++peer) {
      if (peer != view_.rank && !messages_.is_gone(peer)) ranks.push_back(peer);
    }
    return ranks;
  }
  if (token.transfer) return {token.transfer->call.peer};
  const Rounds::Awaited awaited = rounds_.awaited();
  missing_locals(awaited, ranks);
  missing_elsewhere(awaited, ranks);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

/// Those of this host whose words have not come so far.
void Waiting::missing_locals(const Rounds::Awaited& awaited, std::vector<int>& ranks) const {
  const auto& [what, round, awaits] = awaited;
  const bool delivers =
      what == Rounds::Awaited::kReduction && !view_.one_host() && rounds_.op_of(round).plan().answers();
  for (const int peer : awaits) {
    const RankCell& cell = view_.cell(peer);
    const Progress& word = what == Rounds::Awaited::kArrival ? cell.arrived : cell.reduced;
    const bool there = reached(word, round + 1) && (!delivers || reached(cell.delivered, round + 1));
    if (!there && peer != view_.rank) ranks.push_back(peer);
  }
}

/// Those of other hosts. A host has what it sends from all of its ranks; which of them are missing it says
/// when it stalls. One that says that none of its ranks is missing waits, too: it counts where nobody else
/// is.
void Waiting::missing_elsewhere(const Rounds::Awaited& awaited, std::vector<int>& ranks) const {
  const std::uint32_t round = awaited.round;
  std::vector<int> waiting;
  for (const int host : gateways_.missing_hosts(round, awaited.what == Rounds::Awaited::kArrival)) {
    std::uint64_t missing = 0;
    bool said = false;
    for (std::uint32_t lane = 0; lane < view_.layout.lanes(view_.host, host); ++lane) {
      const GateCell& gate = view_.region.gate(host, lane);
      if (gate.stalls_at.load(std::memory_order_acquire) != rounds_.op_of(round).sequence) continue;
      said = true;
      missing |= gate.missing_there.load(std::memory_order_relaxed);
    }
    const std::vector<int>& members = view_.layout.members(host);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!said || (i < 64 && (missing >> i & 1) != 0)) ranks.push_back(members[i]);
      if (said && missing == 0) waiting.push_back(members[i]);
    }
  }
  if (ranks.empty()) ranks = waiting;
}

std::uint64_t Waiting::progress_of_all() const {
  std::uint64_t sum = 0;
  const auto add = [&](const Progress& word) { sum += word.rounds.load(std::memory_order_relaxed); };
  for (int host = 0; !view_.one_host() && host < view_.layout.hosts(); ++host) {
    for (std::uint32_t lane = 0; host != view_.host && lane < view_.layout.lanes(view_.host, host); ++lane)
      add(view_.region.gate(host, lane).landed);
  }
  for (const int peer : view_.locals) {
    const RankCell& cell = view_.cell(peer);
    add(cell.arrived);
    add(cell.reduced);
    add(cell.delivered);
  }
  return sum;
}

/// The ranks of this host that have not called the oldest operation: bits, of the first 64.
std::uint64_t Waiting::not_arrived() const {
  std::uint64_t missing = 0;
  for (std::size_t i = 0; !rounds_.empty() && i < std::min<std::size_t>(64, view_.locals.size()); ++i) {
    const bool there = reached(view_.region.cell(i).arrived, rounds_.oldest().first_round + 1);
    missing |= std::uint64_t{there ? 0U : 1U} << i;
  }
  return missing;
}

void Waiting::check_leavers(const Token& token) {
  for (const int peer : missing(token)) {
    if (!view_.is_local(peer) || !view_.left(peer)) continue;
    // It may have done its part right before it left, so whether it is missing is looked up again.
    if (token.transfer) messages_.exchange();
    if (is_done(token)) return;
    const auto still = missing(token);
    if (std::find(still.begin(), still.end(), peer) == still.end()) continue;
    view_.fail(AbortKind::kPeerLost,
               "rank " + std::to_string(peer) + " left the group before " + name_of(token));
  }
}

/// A receive from any rank needs one that can still send. Where no such rank is known, this one connects to
/// one of another host after the other: it lives, and tells when it leaves, or is gone.
void Waiting::check_senders(const Token& token) {
  int unknown = -1;
  bool died = false;
  std::vector<int> gone;
  for (int peer = 0; peer < view_.size; ++peer) {
    if (peer == view_.rank) continue;
    if (messages_.is_gone(peer)) {
      died = died || (!view_.is_local(peer) && !gateways_.has_left(peer));
      gone.push_back(peer);
    } else if (view_.is_local(peer) || gateways_.knows(peer)) {
      return;
    } else if (unknown < 0) {
      unknown = peer;
    }
  }
  if (unknown >= 0) return void(gateways_.mailbox_of(unknown));
  messages_.exchange();  // they may have sent right before they left
  if (gone.empty() || is_done(token)) return;
  view_.fail(AbortKind::kPeerLost,
             name_ranks(gone) + " left the group " + (died ? "or died " : "") + "before " + name_of(token));
}

void Waiting::check(const Token& token, Instant now) {
  if (is_from_any(token)) {
    check_senders(token);
  } else {
    check_leavers(token);
  }
  if (is_done(token)) return;
  // The timeout runs from the launch, the last progress of any rank, or this rank's first look at it,
  // whichever was last: however long the caller takes between two polls, others had the chance to be seen.
  const std::uint64_t progress = progress_of_all();
  if (std::exchange(moved_, false) || progress != seen_progress_) {
    seen_progress_ = progress;
    progress_at_ = now;
  } else if (looked_at_ != Instant{}) {
    // While this rank was stopped the others may have been, too: a whole machine can stand still.
    progress_at_ += std::max(now - looked_at_ - kStopped, Duration::zero());
  }
  looked_at_ = now;
  const bool stalled = now - progress_at_ >= kStalled;
  if (gateways_.carry_rounds()) gateways_.set_stalled(stalled, stalled ? not_arrived() : 0);
  if (now - progress_at_ >= timeout_of(token)) fail_timeout(token);
}

void Waiting::sleep(const Token& token) {
  if (gateways_.any()) return gateways_.poll(kSleepSlice);
  if (!token.transfer) return sleep_on_rounds();
  if (is_from_any(token)) return std::this_thread::sleep_for(kSleepSlice);
  messages_.sleep_on(token.transfer->call.peer);
}

void Waiting::sleep_on_rounds() {
  const auto [what, round, awaits] = rounds_.awaited();
  const bool arrives = what == Rounds::Awaited::kArrival;
  const auto slept = [until = round + 1](Progress& word) {
    const std::uint32_t seen = word.rounds.load(std::memory_order_acquire);
    if (!is_before(seen, until)) return false;
    sleep_on(word, seen, kSleepSlice);
    return true;
  };
  for (const int peer : awaits) {
    RankCell& cell = view_.cell(peer);
    if (slept(arrives ? cell.arrived : cell.reduced)) return;
  }
  // A stage is waited for after its operation: that is gone.
  if (view_.one_host() || what == Rounds::Awaited::kStage) return;
  const PendingCall& op = rounds_.op_of(round);
  for (const int peer : view_.locals) {
    if (!arrives && op.plan().answers() && slept(view_.cell(peer).delivered)) return;
  }
  for (int host = 0; arrives && host < view_.layout.hosts(); ++host) {
    if (host == view_.host || !op.hosts.wants(round - op.first_round, host, view_.host)) continue;
    const int from = op.hosts.via(host, view_.host);
    if (slept(view_.region.gate(from, round % view_.layout.lanes(view_.host, from)).landed)) return;
  }
}

std::string Waiting::name_of(const Token& token) const {
  return token.transfer ? to_string(*token.transfer) : numbered(rounds_.op_of(rounds_.completed()).call);
}

/// A local rank that has reduced fewer rounds than any of `ranks`, who may wait for that one themselves: a
/// root for a stage that it has not read. -1: there is none.
int Waiting::behind(const std::vector<int>& ranks) const {
  const auto reduced = [&](int peer) { return view_.cell(peer).reduced.rounds.load(); };
  int last = view_.locals.front();
  for (const int peer : view_.locals) {
    if (is_before(reduced(peer), reduced(last))) last = peer;
  }
  const bool behind_all = std::all_of(ranks.begin(), ranks.end(), [&](int r) {
    return view_.is_local(r) && is_before(reduced(last), reduced(r));
  });
  return behind_all ? last : -1;
}

void Waiting::fail_timeout(const Token& token) const {
  const std::vector<int> waits_for = missing(token);
  std::string ranks = listed(waits_for);
  if (const int last = behind(waits_for); last >= 0 && last != view_.rank && !token.transfer)
    ranks += "; furthest behind is rank " + std::to_string(last);
  const std::string reason = "rank " + std::to_string(view_.rank) + ": " + name_of(token) +
                             ": no rank made progress for " + seconds_text(timeout_of(token)) +
                             "; waiting for " + (ranks.empty() ? "any rank" : "rank " + ranks);
  if (!abort_region(view_.region.abort_word(), reason, AbortKind::kTimeout)) view_.throw_aborted();
  throw_error({ErrorCode::kTimeout, timed_out_in(view_.name), reason,
               token.timeout > Duration::zero()
                   ? "see what the missing ranks do, or give this call more time"
                   : "see what the missing ranks do, or raise the timeout with which the group was made"});
}

}  // namespace troupe::collectives
