/// For what a rank waits, how long already, and who keeps it: deadlines, ranks that left, and where to sleep.
///
/// Invariant: a wait ends in bounded time. Either some rank makes progress, which begins the timeout anew, or
/// this one fails the group and names who is missing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/native/messages.hpp"

namespace troupe::collectives {

/// What somebody waits for: a send or receive, or that so many rounds are complete.
struct Token {
  std::uint32_t rounds = 0;
  std::shared_ptr<const Transfer> transfer;  ///< null: rounds
  Duration timeout{};                        ///< 0: the group's
  bool complete = false;                     ///< at its launch
};

/// Not thread-safe. What aborts the group throws, as RankView::fail.
class Waiting {
 public:
  /// All outlive it. `timeout`: of the group.
  Waiting(const RankView& view, const Rounds& rounds, Gateways& gateways, Messages& messages,
          Duration timeout)
      : view_(view), rounds_(rounds), gateways_(gateways), messages_(messages), timeout_(timeout) {}

  bool is_done(const Token& token) const {
    return token.transfer ? token.transfer->done : !is_before(rounds_.completed(), token.rounds);
  }
  /// A wait begins. The time before it is nobody's.
  void begin() { looked_at_ = Instant{}; }
  /// Something of this rank moved.
  void note_move() { moved_ = true; }
  /// Looks who left and what is overdue, on the clock: not at every step. Throws Timeout, too.
  void check(const Token& token, Instant now);
  /// Sleeps for a slice at most, on what the token's end waits for.
  void sleep(const Token& token);
  /// Whether a rank that this one waits for was last seen on this core.
  bool waits_beside(const Token& token) const;
  /// The ranks that this one waits for, ascending.
  std::vector<int> missing(const Token& token) const;

 private:
  Duration timeout_of(const Token& token) const {
    return token.timeout > Duration::zero() ? token.timeout : timeout_;
  }
  bool is_from_any(const Token& token) const {
    return token.transfer && token.transfer->call.peer == kAnyRank;
  }
  void missing_locals(const Rounds::Awaited& awaited, std::vector<int>& ranks) const;
  void missing_elsewhere(const Rounds::Awaited& awaited, std::vector<int>& ranks) const;
  int behind(const std::vector<int>& ranks) const;
  std::uint64_t progress_of_all() const;
  std::uint64_t not_arrived() const;
  void check_leavers(const Token& token);
  void check_senders(const Token& token);
  void sleep_on_rounds();
  std::string name_of(const Token& token) const;
  [[noreturn]] void fail_timeout(const Token& token) const;

  const RankView& view_;
  const Rounds& rounds_;
  Gateways& gateways_;
  Messages& messages_;
  const Duration timeout_;
  bool moved_ = false;  ///< since check() looked
  std::uint64_t seen_progress_ = 0;
  Instant progress_at_{0};
  Instant looked_at_{0};  ///< in this wait; 0: not yet
};

}  // namespace troupe::collectives
