/// Process groups in an ordinary program, under any launcher or none:
///
///   auto group = troupe::collectives::init_process_group("native");
///   auto values = group->allocate<float>(1 << 20);
///   group->all_reduce(values)->wait();
///
/// docs/collectives/forming-groups.md has the URLs, the job's key and what happens when a rank dies.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "collectives/process_group.hpp"

namespace troupe::collectives {

struct InitOptions {
  int rank = -1;  ///< -1: as the URL or the environment says
  int size = -1;  ///< the same
  /// For all ranks to come together, here and in new_group and rebuild.
  Duration timeout = std::chrono::minutes(5);
  /// An operation fails once no rank has made progress for this long.
  Duration operation_timeout = std::chrono::seconds(30);
  /// Of native, and of nccl's host_group(): a rank's memory for allocate() and allocate_tree(). What is not
  /// used takes no memory. Other backends allocate what they are asked for.
  std::size_t data_bytes = std::size_t{256} << 20;
  /// Of nccl, refused by the others: CUDA's index of this rank's GPU. -1: the launcher's local rank, else the
  /// rank's place among those of its machine, modulo the number of GPUs that the process sees.
  int device = -1;
  /// Of nccl, refused by the others: several ranks may be on one GPU, which NCCL refuses by itself: for
  /// tests, and slow. The same on every rank, and before the process makes its first communicator of NCCL,
  /// whose environment it sets.
  bool share_gpu = false;
  /// Of nccl, refused by the others: different calls of the ranks abort the group at once, with an error that
  /// names both, as those of native always do. Costs some microseconds a collective. Without it such calls
  /// end by the timeout. The same on every rank.
  bool compare_calls = false;
  /// What this rank's host is called: ranks with the same text share memory. Empty: it is found out, by the
  /// boot, the network namespace and the user. At most 1024 bytes. Give it where that is the same and memory
  /// cannot be shared.
  std::string host{};
  /// Of native, refused by the others: whether what ranks of different hosts send each other is encrypted,
  /// and not only authenticated when they connect. The same on every rank; docs/collectives/between-hosts.md
  /// has the cost. Within a host nothing is sent.
  bool encrypt_data_plane = false;
  /// Of native, and of nccl's host_group(): whether a thread moves operations while no thread waits, so that
  /// a rank that computes keeps nobody waiting and reductions go on behind a backward. Empty: in groups of
  /// several hosts; true: within a host, too, where it takes about half a percent of a core while operations
  /// are launched (docs/collectives/native.md). Without it a rank takes part only while it waits for
  /// something, in whichever group: until then a first message from another host, which has to connect the
  /// two, waits too, and a send of it is not done.
  std::optional<bool> progress_thread{};
  /// The job's key, 64 hexadecimal digits, the same on every rank. Empty: that of TROUPE_JOB_KEY or of the
  /// file TROUPE_JOB_KEY_FILE; without these one is made, which the same user's processes on this machine
  /// find (with file://, those that can read the file).
  std::string key{};
  /// Of the group, in this process: a rank has one group of a name at a time.
  std::string name = "default";
};

/// The group of all ranks. Blocks until every rank has called it, at the same URL and with the same size.
///
/// backend: "native", "nccl", or another that the build has.
/// url: env:// (what torchrun, mpirun and srun set), tcp://HOST:PORT or file:///PATH (rendezvous.hpp has the
/// details).
///
/// Rank 0 serves the store at which the ranks meet, on a thread, until its last group of this job is
/// destroyed; then it waits for the others to leave, for at most 2 s. When it dies or leaves before them, the
/// lowest rank that lives serves another, at a port of its own. Every rank has a thread that notices
/// the death of others: it aborts the groups that they are in.
///
/// Throws BadConfig (wrong or missing options, variables or key), Timeout (which lists the ranks that are
/// missing), CollectiveAborted (a rank died meanwhile), Refused (another key, another user's file),
/// Unavailable (no such host; a rank gave up meanwhile, with its reason), IoError (a port in use, a path that
/// cannot be written). Thread-safe.
std::shared_ptr<ProcessGroup> init_process_group(std::string_view backend, std::string_view url = "env://",
                                                 InitOptions options = {});

}  // namespace troupe::collectives
