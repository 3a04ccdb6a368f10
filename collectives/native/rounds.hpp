/// How far the collectives of one rank are.
///
/// Collectives are done in rounds, numbered through all operations of a group: as many as plan.hpp says. A
/// rank carries each round through three counts, in order:
///
///   arrived    its input can be read (in place: at launch; a private buffer: once it is in a free stage)
///   reduced    all had arrived: it has compared calls, read its part of the others' input and copied it
///              to its output, or added it up and stored the sum to all who get it
///   completed  all have reduced: the result is in place (and copied out, for a private buffer), and nobody
///              reads this rank's input any more. One-shot (cost_model.hpp), a rank completes a round once it
///              has reduced it: what others read of its input is in its stage. On one host it then waits,
///              too, only for those that it reads: the root of a broadcast for nobody, the others for the
///              root.
///
/// The first two counts are words of the region that the others watch. Several rounds can be between these
/// states, so buckets that are launched during a backward are reduced one after another without waiting for
/// the last rank in between. Between hosts, the gateways (gateways.hpp) bring what ranks of others have and
/// take what these get.
///
/// Invariant: completed <= reduced <= arrived <= launched, and arrived <= completed + kStages where a round
/// goes through a stage.
#pragma once

#include <array>
#include <set>

#include "collectives/native/fixed_queue.hpp"
#include "collectives/native/round_data.hpp"

namespace troupe::collectives {

/// Not thread-safe. What aborts the group throws, as RankView::fail.
class Rounds {
 public:
  /// Both outlive it. With TROUPE_COLLECTIVES_TRACE=1 in the environment it says on stderr, once for each
  /// call, which algorithm was chosen and why.
  Rounds(const RankView& view, RoundData& data);

  /// Whether no operation can be launched until the oldest is complete, which is after so many rounds.
  bool is_full() const { return ops_.size() == kMaxLaunched; }
  std::uint32_t oldest_ends() const { return oldest().first_round + oldest().rounds; }
  /// Starts an operation: how many rounds have been launched with it. REQUIRES: !is_full().
  std::uint32_t launch(const Op& call, std::span<const Op> packed = {},
                       std::unique_ptr<std::byte[]> pack = nullptr);
  /// Starts all_reduces of one dtype, reduction and timeout as one, whose output is copied to theirs at its
  /// end.
  std::uint32_t launch_packed(std::span<const Op> calls);
  /// Carries rounds on as far as the others have come; whether any moved.
  bool advance();

  std::uint32_t launched() const { return launched_; }
  std::uint32_t completed() const { return completed_; }
  /// Rounds that all ranks of this host have reduced.
  std::uint32_t freed() const;
  bool empty() const { return ops_.empty(); }
  /// REQUIRES: !empty().
  const PendingCall& oldest() const { return ops_.front(); }
  PendingCall& op_of(std::uint32_t round);
  const PendingCall& op_of(std::uint32_t round) const;
  /// Whether an operation that is not complete has a buffer in `memory`.
  bool uses(std::span<const std::byte> memory) const;
  /// What this rank called by that number, if that is not long ago.
  const OpWords* called(std::uint32_t sequence) const;

  /// What keeps this rank's oldest round.
  struct Awaited {
    enum What { kArrival, kReduction, kStage } what;
    std::uint32_t round;
    const std::vector<int>& ranks;  ///< of this host, whose words are waited for
  };
  Awaited awaited() const;
  /// There are fewer cores than ranks of this host; known from the first round on.
  bool is_crowded() const { return crowded_; }

  // For the gateways.
  /// Whether all ranks of this host have arrived.
  bool locals_arrived(std::uint32_t round) const {
    return is_before(round, arrived_) && have_arrived(view_.locals, round);
  }
  /// Whether the blob of a host is here. REQUIRES: one comes.
  bool has_landed(const PendingCall& op, std::uint32_t round, int origin) const;
  /// Compares the call with those of the ranks that it waited for, and learns where their buffers are.
  void agree(PendingCall& op);
  /// The inputs of all rounds before this one have gone over this rank's connections, both ways.
  void set_passed(std::uint32_t round) { passed_ = round; }

 private:
  /// A call that was not compared with those of all local ranks, since it did not wait for all.
  struct Unseen {
    std::uint32_t round = 0;
    std::uint32_t slot = 0;
    std::uint32_t hash = 0;
    std::uint32_t sequence = 0;
    OpWords words{};
    bool gave = false;  ///< this rank waited for nobody
  };

  bool arrive();
  bool reduce();
  bool complete();
  bool have_arrived(const std::vector<int>& ranks, std::uint32_t round) const;
  bool all_arrived(const PendingCall& op, std::uint32_t round);
  bool locals_reduced(std::uint32_t round) const {
    return is_before(round, freed_) || is_before(round, freed());
  }
  bool locals_delivered(std::uint32_t round) const;
  OpWords published(int peer, std::uint32_t slot) const;
  [[noreturn]] void fail_mismatch(int peer, std::uint32_t slot, std::uint32_t sequence,
                                  const std::string& mine) const;
  void compare_unseen(const std::vector<int>& peers, std::uint32_t until);
  void compare_arrived();
  bool has_called(int peer, std::uint32_t round, std::uint32_t hash) const;
  void trace(const PendingCall& op);
  const std::shared_ptr<const KnownCall>& know(const Op& call);
  static void unpack(const PendingCall& op);

  const RankView& view_;
  RoundData& data_;
  const bool trace_;
  std::set<OpWords> traced_;
  RankCell& mine_;
  bool crowded_ = false;
  bool staging_populated_ = false;

  std::shared_ptr<const KnownCall> known_;     ///< of the last call; null before the first
  FixedQueue<PendingCall, kMaxInFlight> ops_;  ///< launched and not complete, oldest first
  FixedQueue<Unseen, 2 * kStages> unseen_;
  std::uint32_t calls_ = 0;     ///< operations launched
  std::uint32_t launched_ = 0;  ///< rounds, as the following
  std::uint32_t arrived_ = 0;
  std::uint32_t reduced_ = 0;
  std::uint32_t completed_ = 0;
  std::uint32_t passed_ = 0;
  mutable std::uint32_t freed_ = 0;  ///< of which all of this host have reduced, when it was last looked at
  int landed_hosts_ = 0;             ///< of the next round to reduce: of all before it everything has landed
  /// The last calls, by number, to name what another rank's does not match.
  std::array<std::pair<std::uint32_t, OpWords>, kMaxInFlight> recent_{};
};

}  // namespace troupe::collectives
