/// The native backend: ranks of one machine through shared memory, ranks of others through sockets.
///
/// It has every operation of ProcessGroup, on the CPU's memory. A rank reads its part of the others' inputs
/// and copies it, or adds it up in tree order; see docs/collectives/native.md for the steps and the bytes of
/// each operation, what is refused, and the layout of the region.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/native/connector.hpp"
#include "collectives/process_group.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives {

struct NativeGroupOptions {
  int rank = 0;
  int size = 1;
  /// Every rank's leaves: adjacent, none empty, in rank order from 0. Empty: one leaf a rank.
  std::vector<LeafInterval> leaves;
  Generation generation;
  std::string name;  ///< in errors; empty: it has none
  /// An operation fails once no rank has made progress for this long.
  Duration timeout = std::chrono::seconds(30);
  /// This machine's region: the same memfd in every local rank, of native_region_bytes, zeroed when made. A
  /// region serves one generation.
  std::shared_ptr<SharedMemory> region;
  /// Bytes of the region that a rank has for allocate_tree and allocate, as given to native_region_bytes.
  std::size_t data_bytes = 0;
  /// By rank, which machine it is on (any numbers): ranks with the same one share a region. The same on every
  /// rank. Empty: all on one.
  std::vector<int> machines;
  /// By rank, connections to the ranks of native_peers(), which collectives need. The same on both sides.
  std::map<int, PeerConnection> remote;
  /// Makes those for messages (send, recv, all_to_all_v) with other ranks of other machines, when they are
  /// needed. Not null where there are several machines.
  std::unique_ptr<Connector> connector;
  /// Whether a thread moves operations while no thread waits. Empty: where ranks are on several machines.
  /// Without it a rank that computes may keep others waiting, also with a first message to it from another
  /// machine, which has to connect the two, and does not see that another machine aborted.
  std::optional<bool> progress_thread{};
};

/// How large the region for `local_ranks` ranks is, each with `data_bytes` for allocate_tree and allocate:
/// allocate takes the bytes of the buffer, rounded up to 64 (at least 64), and allocate_tree that times the
/// most partials that any rank has.
/// The region may be sparse (SharedMemory::create without prefault): what is used gets populated.
std::size_t native_region_bytes(int local_ranks, std::size_t data_bytes);

/// As native_region_bytes, of the machine of `rank` among several.
std::size_t native_region_bytes(const std::vector<int>& machines, int rank, std::size_t data_bytes);

/// The ranks of other machines with which `rank` has to be connected for collectives: few of its machine's
/// ranks with one of each other machine, so that connections grow with machines and not with ranks.
std::vector<int> native_peers(const std::vector<int>& machines, int rank);

/// The bytes of data_bytes that one allocate_tree of `count` elements takes, for `leaves` as in the options.
std::size_t native_tree_bytes(const std::vector<LeafInterval>& leaves, std::size_t count, DType dtype);

/// Throws BadConfig for options that make no sense, Refused for a region of another generation or geometry.
/// Returns at once: nobody is waited for. Element types and operations: see kernels.hpp; CPU buffers only.
std::unique_ptr<ProcessGroup> make_native_group(NativeGroupOptions options);

/// The ranks that an operation of a native group waits for, ascending, as far as this rank knows: those that
/// have not called it. Empty: it is complete, or of another backend. For who waits and wants to say for whom,
/// before the timeout does.
std::vector<int> missing_ranks(const Work& work);

}  // namespace troupe::collectives
