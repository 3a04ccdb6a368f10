/// The NCCL backend: ranks with a GPU each (or a share of one).
///
/// What is different on a GPU (docs/collectives/nccl.md):
/// - Buffers are device memory. An operation starts after what was enqueued on the buffer's stream before,
///   and Work::wait() makes that stream wait for it: the host goes on at once. Work::wait_for() and
///   is_completed() tell the host; ask them before something that cannot be undone, such as committing a
///   step, since a wait that only a stream does cannot throw. The Work of a barrier waits on the host.
/// - A thread of the group watches what is in flight; a failure on any rank fails the group on all of them.
/// - Messages have no tags (only 0). send and recv note them; the rank's next collective, or wait or poll of
///   any Work, issues what was noted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::collectives {

namespace nccl {
struct Api;
}

struct NcclGroupOptions {
  int rank = 0;
  int size = 1;
  int device = 0;  ///< CUDA's index of this rank's GPU
  /// Every rank's leaves: adjacent, none empty, in rank order from 0. Empty: one leaf a rank.
  std::vector<LeafInterval> leaves;
  /// Which host every rank is on, by rank, as any numbers; the same on every rank. Exact sums of adjacent
  /// ranks on one host cross to another as one. Empty: all are on one.
  std::vector<int> hosts;
  std::string name;  ///< in errors; may be empty
  Generation generation;
  /// An operation fails once no rank has made progress for this long, and so does making the group.
  Duration timeout = std::chrono::seconds(30);
  /// A round among the ranks, called once by each when the group is made: gives rank 0 what every rank says,
  /// by rank, and every rank what rank 0 answers. `answer` is called on rank 0 alone. The answer lets whoever
  /// has it join: use an authenticated channel (a Store of the job). Has a deadline of its own. Empty: over
  /// `host`.
  using Answer = std::function<std::string(const std::vector<std::string>& said)>;
  std::function<std::string(const std::string& mine, const Answer& answer)> exchange;
  /// Whether a rank is known to be gone while the group is made, so that the wait for it is in vain: then
  /// making it throws CollectiveAborted. Empty: nobody knows.
  std::function<bool()> is_vain;
  /// A group of the same ranks for the host's memory, where aborts are told: it becomes this one's
  /// host_group(), and both end together. Not null.
  std::shared_ptr<ProcessGroup> host;
  /// Whether send and recv are there; they take two more communicators, and the time to make them. The same
  /// on every rank.
  bool messages = true;
  /// Several ranks may be on one GPU, which NCCL refuses by itself: for tests, and slow. Set on every rank,
  /// before the process makes its first communicator. Sets NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment;
  /// before NCCL 2.30.3 NCCL_HOSTID, so that NCCL takes the ranks for ones on several hosts.
  bool share_gpu = false;
  /// An all-gather of 40 bytes a rank rides before every collective and tells the ranks' calls, which are
  /// compared while the GPU goes on: different calls abort the group with an error that names both. Costs
  /// some microseconds a collective. Without it such calls end by the timeout. The same on every rank.
  bool compare_calls = false;
  /// Buffers above this are reduced exactly in pieces of it, one moved while another is added up. It bounds
  /// the memory for the other ranks' data: 4 pieces where all ranks are on one host, else 10. The same on
  /// every rank.
  std::size_t exact_piece_bytes = std::size_t{32} << 20;
};

/// Collective; returns when all ranks have joined. Throws BadConfig for options that make no sense,
/// Unavailable without NCCL or a GPU, Timeout when a rank is missing, CollectiveAborted when another rank
/// gave up.
std::unique_ptr<ProcessGroup> make_nccl_group(NcclGroupOptions options);

/// The next generation of `old`, on all its ranks but those that are `gone` (of the old numbering, ascending,
/// at least one); the others move up in order. Aborts `old`, unless it is aborted. Where all of its ranks
/// can, the new communicators are made from its, by ncclCommShrink (NCCL 2.28.7); else all are made from
/// scratch. Throws as make_nccl_group; then try again with the next generation.
std::unique_ptr<ProcessGroup> succeed_nccl_group(ProcessGroup& old, const std::vector<int>& gone,
                                                 NcclGroupOptions options);

/// As above, over other tables of calls: tests.
std::unique_ptr<ProcessGroup> make_nccl_group(NcclGroupOptions options, const nccl::Api& api);

}  // namespace troupe::collectives
