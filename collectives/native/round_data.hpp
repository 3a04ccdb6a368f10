/// The elements of a round: where inputs, stages and outputs lie, and what is copied or added up. A `round`
/// counts from the operation's first.
///
/// Invariant: nothing here knows how far any rank is. Who calls has made sure that what is read is there, and
/// that nobody reads any more what is written (rounds.hpp).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "collectives/native/cost_model.hpp"
#include "collectives/native/data_space.hpp"
#include "collectives/native/float_mode.hpp"
#include "collectives/native/host_plan.hpp"
#include "collectives/native/kernels.hpp"
#include "collectives/native/leaf_sums.hpp"
#include "collectives/native/plan.hpp"
#include "collectives/native/rank_view.hpp"

namespace troupe::collectives {

/// What follows from a call's words and counts alone. Most calls are as the one before, and have the same.
struct KnownCall {
  OpWords words{};
  std::vector<std::size_t> counts;
  bool opens = false;  ///< it is of a group's first call
  std::uint64_t hash = 0;
  Choice choice;
  Plan plan;
  std::uint64_t rounds = 1;
  std::size_t element = 4;  ///< bytes
  Kernel kernel;
  std::vector<int> awaits;  ///< local ranks that have to arrive before a round is reduced
  bool is_read = false;     ///< by other ranks of this host, or for those of others
  bool hands_back = false;  ///< what this rank reads of a stage it reads alone, and writes nothing there
};

/// An operation that was launched and is not complete.
struct PendingCall {
  Op call;
  std::shared_ptr<const KnownCall> known;
  std::uint32_t hash = 0;  ///< of the words and the round
  std::uint32_t sequence = 0;
  std::uint32_t first_round = 0;
  std::uint32_t rounds = 1;
  bool copies_in = false;             ///< other local ranks read this rank's input from its stage
  bool gated = false;                 ///< a round has to wait for this rank's stage
  bool agreed = false;                ///< the calls of those that it awaits are compared
  HostPlan hosts;                     ///< where there are several
  std::vector<Op> packed;             ///< calls that this one stands for, and
  std::unique_ptr<std::byte[]> pack;  ///< its buffer
  std::uint32_t slot = 0;             ///< its published call
  FloatMode float_mode = FloatMode::here();
  std::vector<Place> places;  ///< of the inputs, by local rank
  bool is(OpKind kind) const { return call.kind == kind; }
  const Plan& plan() const { return known->plan; }
  const OpWords& words() const { return known->words; }
  std::size_t element() const { return known->element; }
};

/// Not thread-safe: it has scratch.
class RoundData {
 public:
  /// `intervals`: every rank's leaves.
  RoundData(const RankView& view, const std::vector<LeafInterval>& intervals);

  /// See ProcessGroup::reserve.
  std::vector<std::byte*> reserve(std::size_t count, DType dtype, bool tree);
  /// The memory of this rank that reserve() gave at `at`, not for a tree, and that was not given back; empty:
  /// there is none.
  std::span<const std::byte> reserved(const std::byte* at) const;
  /// Gives it back. REQUIRES: no operation of this rank is at it. Nobody else is, then: others read and write
  /// here in operations that this rank has launched.
  void release(std::span<const std::byte> memory);
  /// What follows from a call, which has these words. `opens`: it is the group's first.
  KnownCall learn(const Op& call, const OpWords& words, bool opens) const;
  /// Learns where this rank's input is, and whether it has to go through the stage.
  void prepare(PendingCall& op) const;

  // Within the host.
  void stage(const PendingCall& op, std::uint32_t round) const;
  void unstage(const PendingCall& op, std::uint32_t round) const;
  void sum(const PendingCall& op, std::uint32_t round);
  void copy(const PendingCall& op, std::uint32_t round) const;
  void hand_back(const PendingCall& op, std::uint32_t round) const;

  // Between hosts.
  LeafSums& sums_of(const PendingCall& op) { return op.is(OpKind::kAllReduceTree) ? leaf_sums_ : rank_sums_; }
  std::vector<std::span<std::byte>> blob(const PendingCall& op, std::uint32_t round, int origin) const;
  std::vector<std::span<const std::byte>> own_blob(const PendingCall& op, std::uint32_t round, int to_host,
                                                   std::vector<std::byte>& added_up);
  std::byte* target(const PendingCall& op, std::uint32_t round, int owner, int to) const;
  std::byte* own_sum(const PendingCall& op, std::uint32_t round, int owner) const;
  void pass_on(const PendingCall& op, std::uint32_t round, int owner) const;

 private:
  struct Tree {
    std::size_t offset = 0;  ///< of slot 0 in each rank's data
    std::size_t slot_bytes = 0;
  };
  const LeafSums& sums_of(const PendingCall& op) const { return const_cast<RoundData*>(this)->sums_of(op); }
  std::size_t partials_of(const PendingCall& op, int rank) const {
    return sums_of(op).of_rank[RankView::index_of(rank)];
  }
  const Place& place_of(const PendingCall& op, int rank) const { return op.places[view_.local(rank)]; }
  std::byte* stage_of(const PendingCall& op, int rank, std::uint32_t round) const {
    return view_.region.stage(view_.local(rank), op.first_round + round) + place_of(op, rank).shift();
  }
  std::size_t offset_of(const std::byte* at) const;  ///< in this rank's data
  Shape shape_of(const Op& call) const;
  void learn_partners(KnownCall& known) const;
  std::byte* slot(const PendingCall& op, int rank, std::size_t partial) const;
  const std::byte* own_input(const PendingCall& op, std::size_t partial) const;
  std::byte* own_output(const PendingCall& op) const;
  const std::byte* source(const PendingCall& op, std::uint32_t round, int from, int to,
                          std::size_t partial) const;
  const std::byte* landed_part(const PendingCall& op, std::uint32_t round, int from, std::size_t part) const;
  void gather_sources(const PendingCall& op, std::uint32_t round);
  void add_up(const PendingCall& op, std::uint32_t round, int to, std::byte* at);

  const RankView& view_;
  LeafSums leaf_sums_;
  LeafSums rank_sums_;  ///< of the tree on which a leaf is a rank
  std::vector<Tree> trees_;
  DataSpace space_;
  std::vector<const std::byte*> sources_;  ///< scratch
  std::vector<std::byte*> targets_;
  std::vector<std::size_t> next_part_;  ///< by host
};

}  // namespace troupe::collectives
