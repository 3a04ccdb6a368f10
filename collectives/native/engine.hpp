/// What moves the operations of one rank forward.
///
/// Every operation is done in rounds, numbered through all operations of a group: a tree or a barrier takes
/// one, a private buffer one a chunk. A rank carries each round through three counts, in order:
///
///   arrived    its input is in place (an allocated tree: at launch; a private buffer: once it is in a free
///   stage) reduced    all had arrived: it has compared contracts, summed its slice and stored it to all
///   completed  all have reduced: the result is in place (and copied out, for a private buffer)
///
/// The first two are words of the region that the others watch. Several rounds can be between these states,
/// so buckets that are launched during a backward are reduced one after another without waiting for the last
/// rank in between. A rank of another machine takes part by frames: its partials stand for its arrival, its
/// slice of the result for having reduced.
///
/// Thread-safety: a mutex; a thread in wait() keeps it, and leaves within a slice of sleep once the group
/// aborts.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/native/contract.hpp"
#include "collectives/native/kernels.hpp"
#include "collectives/native/link.hpp"
#include "collectives/native/native_group.hpp"
#include "collectives/native/patience.hpp"
#include "collectives/native/region.hpp"
#include "collectives/native/tree_sum.hpp"

namespace troupe::collectives {

class Engine {
 public:
  /// `options` are valid (native_group.cpp); `region` is attached.
  Engine(NativeGroupOptions options, Region region);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Generation generation() const { return generation_; }
  LeafInterval leaves() const { return intervals_[index_of(rank_)]; }

  TreeBuffer allocate(std::size_t count, DType dtype);

  /// Starts an operation and returns the count of completed rounds at which it is done. `data` is the private
  /// buffer, or null for a tree and a barrier.
  std::uint32_t launch(const Contract& contract, std::byte* data);
  std::uint32_t launch_tree(const TreeBuffer& buffer, ReduceOp op);
  void wait(std::uint32_t rounds);
  /// As wait(), for no longer than `limit`; whether the operation is complete.
  bool wait_for(std::uint32_t rounds, Duration limit);
  /// Does what can be done without waiting. Throws what wait() would throw at once.
  bool test(std::uint32_t rounds);

  void abort(AbortKind kind, const std::string& reason);
  std::string abort_reason() const;
  /// The group is destroyed: others must not wait for this rank.
  void leave();

 private:
  struct Allocation {
    std::size_t offset = 0;  ///< of slot 0 in each rank's data
    std::size_t slot_bytes = 0;
    std::size_t count = 0;
    DType dtype = DType::kFloat32;
  };
  struct Op {
    Contract contract;
    std::uint32_t sequence = 0;
    std::uint32_t first_round = 0;
    std::uint32_t rounds = 1;
    std::byte* data = nullptr;
    Kernel kernel;
    bool agreed = false;                ///< the local ranks' contracts are compared
    std::vector<std::uint64_t> places;  ///< by local rank: offset of its buffer in its data + 1, or 0
  };
  /// One round's part of its operation's elements.
  struct Part {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  struct Remote {
    Link link;
    std::uint32_t send_round = 0;
    enum class Sending { kNothing, kPartials, kToReduce, kResult } sending = Sending::kNothing;
    std::uint32_t receive_round = 0;
    bool has_partials = false;  ///< of receive_round
    std::vector<std::byte> partials;
  };

  // What an operation is made of.
  static std::size_t index_of(int rank) { return static_cast<std::size_t>(rank); }
  bool is_local(int rank) const { return local_index_[index_of(rank)] >= 0; }
  std::size_t local(int rank) const { return static_cast<std::size_t>(local_index_[index_of(rank)]); }
  std::size_t partials_of(const Op& op, int rank) const;
  Op& op_of(std::uint32_t round);
  Part part_of(const Op& op, std::uint32_t round) const;
  bool reduces(const Op& op) const;
  bool stages(const Op& op) const;
  std::byte* slot(const Op& op, std::uint32_t round, int rank, std::size_t partial) const;

  // The three counts. Each returns whether it moved.
  bool advance();
  bool arrive();
  bool reduce();
  bool complete();
  bool all_arrived(std::uint32_t round) const;
  bool all_reduced(std::uint32_t round) const;
  void agree(Op& op);
  void sum(const Op& op, std::uint32_t round);
  void receive_broadcast(const Op& op, std::uint32_t round);

  // Waiting and failing.
  bool drive(std::uint32_t rounds, Duration limit = Duration::max());
  void check_on_others();
  void sleep();
  std::vector<int> missing() const;
  std::uint64_t progress_of_all() const;
  void throw_if_aborted();
  [[noreturn]] void fail(AbortKind kind, const std::string& reason);
  [[noreturn]] void throw_aborted();
  [[noreturn]] void fail_timeout();
  void tell_other_machines();
  std::string name_of(const Op& op) const;

  // Other machines (engine_remote.cpp).
  bool exchange();
  bool send_to(Remote& remote);
  bool receive_from(Remote& remote);
  std::span<std::byte> target_of(Remote& remote, const Op& op);
  void check_frame(const Remote& remote, const Op& op, std::size_t expected_bytes);
  void send_partials(Remote& remote, const Op& op);
  void send_result(Remote& remote, const Op& op);
  FrameHeader header_for(const Op& op, std::uint32_t round, FrameKind kind, std::size_t bytes) const;
  std::size_t partials_bytes(const Op& op, std::uint32_t round, int from, int to) const;
  bool has_partials(const Remote& remote, std::uint32_t round) const;
  void sleep_on_sockets();

  const int rank_;
  const int size_;
  const Generation generation_;
  const Duration timeout_;
  const std::vector<LeafInterval> intervals_;
  std::vector<int> locals_;
  std::vector<int> local_index_;  ///< by rank: its place among the local ranks, or -1
  Region region_;
  RankCell& mine_;
  const bool crowded_;
  std::vector<std::size_t> partials_;  ///< by rank: its partial sums on the leaf tree
  TreeSum leaf_sum_;
  TreeSum rank_sum_;

  mutable std::mutex mutex_;
  std::vector<Allocation> allocations_;
  std::size_t allocated_bytes_ = 0;
  bool staging_populated_ = false;
  std::map<int, Remote> remotes_;
  bool told_ = false;  ///< other machines know of the abort

  std::deque<Op> ops_;  ///< launched and not complete, oldest first
  std::uint32_t next_sequence_ = 1;
  std::uint32_t launched_ = 0;  ///< rounds, as the following
  std::uint32_t arrived_ = 0;
  std::uint32_t reduced_ = 0;
  std::uint32_t completed_ = 0;

  MonotonicClock clock_;
  std::uint64_t seen_progress_ = 0;
  Instant progress_at_{0};

  std::vector<const std::byte*> sources_;  ///< scratch of sum()
  std::vector<std::byte*> targets_;
};

}  // namespace troupe::collectives
