/// A process group: ranks that agree on numbers.
///
/// Thread-safety: one thread a rank issues operations, in the same order on every rank; `abort` may be called
/// from any thread and any process. Every wait has a deadline and watches the group's abort word: after an
/// abort, on any rank, every operation throws CollectiveAborted within milliseconds, with the first reason. A
/// group that was aborted stays so: the next generation is a new group.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/types.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::collectives {

/// One operation in flight. Dropping it neither waits nor cancels.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the result is in place; on a GPU, once the buffer's stream waits for that (nccl_group.hpp),
  /// which wait_for() and is_completed() then tell. Throws CollectiveAborted or Timeout. Calling it again
  /// returns, or throws the same, at once.
  virtual void wait() = 0;
  /// As wait(), for no longer than `limit`: false means that the operation goes on; wait again.
  virtual bool wait_for(Duration limit) = 0;
  /// Whether wait() would return or throw at once. Does what can be done without waiting, so polling it gets
  /// there.
  virtual bool is_completed() = 0;
  /// What wait() throws; null while the operation goes on, and when it succeeded.
  virtual std::exception_ptr exception() = 0;
  /// From its launch until this rank saw it complete; empty before.
  virtual std::optional<Duration> duration() = 0;
};

/// Gradients of a bucket while they are reduced: per partial sum of this rank (see leaf_tree.hpp) one array
/// of `count` elements in memory that the group reaches without a copy. After the operation slot 0 holds the
/// result. The memory belongs to the group and lives as long as it.
struct TreeBuffer {
  std::vector<std::byte*> partials;  ///< one a canonical node of this rank's interval, left to right
  std::size_t count = 0;             ///< elements in each
  DType dtype = DType::kFloat32;
  int index = 0;           ///< which allocation of the group this is
  void* stream = nullptr;  ///< on a GPU, the stream that fills it, as in Buffer; the caller sets it
};

class ProcessGroup;

/// How new groups are made of the ranks of one; what forms groups (collectives/init) gives them theirs.
class GroupOrigin {
 public:
  virtual ~GroupOrigin() = default;
  virtual std::shared_ptr<ProcessGroup> new_group(ProcessGroup& parent, const std::vector<int>& ranks) = 0;
  virtual std::shared_ptr<ProcessGroup> rebuild(ProcessGroup& parent) = 0;
};

/// The raw front takes Buffer (pointer, count, dtype, device, stream); the typed front at the end of the
/// class takes std::span. An operation reads its inputs and writes its outputs until its Work is complete:
/// neither may be touched before. An output overlaps nothing, but that in gather and all_gather the input may
/// be this rank's part of the output, and in scatter and reduce_scatter the output this rank's part of the
/// input. Counts and dtypes are the same on every rank, and so is the order of operations; a rank that calls
/// something else aborts the group with an error that names both calls.
///
/// A backend that lacks an operation refuses it with BadConfig, which names both.
class ProcessGroup {
 public:
  ProcessGroup() = default;
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// "native", "nccl", "gloo" or "mpi".
  virtual std::string_view backend() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Generation generation() const = 0;

  /// This rank's leaves. A group without logical ranks has one leaf a rank.
  virtual LeafInterval leaves() const { return {rank(), rank() + 1}; }

  /// Memory for a reduction on the leaf tree. Collective: every rank allocates the same counts in the same
  /// order, and the group's segment must have room (its options say how much). 64-byte aligned.
  virtual TreeBuffer allocate_tree(std::size_t count, DType dtype);

  /// Memory that operations move without a copy. As allocate_tree: collective, the group's, 64-byte aligned.
  virtual Buffer allocate(std::size_t count, DType dtype);

  /// Sums (or the like) every rank's partials on the fixed tree; the result is in slot 0 on every rank, the
  /// same bits whatever the interval layout and the number of ranks. Returns at once; `launch` order is the
  /// same on every rank.
  virtual std::shared_ptr<Work> all_reduce_tree(const TreeBuffer& buffer, Reduction how);

  /// In place over one buffer a rank, on the tree of ranks.
  virtual std::shared_ptr<Work> all_reduce(const Buffer& buffer, Reduction how);
  /// As all_reduce, with the result on `root` alone; the buffers of the others stay as they were.
  virtual std::shared_ptr<Work> reduce(const Buffer& buffer, Reduction how, int root);
  /// `root`'s buffer to every rank.
  virtual std::shared_ptr<Work> broadcast(const Buffer& buffer, int root);
  /// Every rank's `input` (count elements) to `output` (size() x count) on `root`, in rank order. `output` is
  /// not looked at on the other ranks.
  virtual std::shared_ptr<Work> gather(const Buffer& input, const Buffer& output, int root);
  /// Part r of `root`'s `input` (size() x count elements) to `output` (count) on rank r. `input` is not
  /// looked at on the other ranks.
  virtual std::shared_ptr<Work> scatter(const Buffer& input, const Buffer& output, int root);
  /// Every rank's `input` (count elements) to `output` (size() x count) on every rank, in rank order.
  virtual std::shared_ptr<Work> all_gather(const Buffer& input, const Buffer& output);
  /// Part r of the reduced `input` (size() x count elements) to `output` (count) on rank r.
  virtual std::shared_ptr<Work> reduce_scatter(const Buffer& input, const Buffer& output, Reduction how);
  /// Part s of rank r's `input` (size() x count elements) becomes part r of rank s's `output` (the same).
  virtual std::shared_ptr<Work> all_to_all(const Buffer& input, const Buffer& output);
  /// Returns at once; its wait() returns when every rank has called it.
  virtual std::shared_ptr<Work> barrier() = 0;

  /// Point to point. A message goes to the receive with its tag and its sender, in the order of sending;
  /// count and dtype are the same on both sides. They keep their own order, apart from the collectives'. The
  /// Work of a send is complete when the buffer may be used again.
  virtual std::shared_ptr<Work> send(const Buffer& buffer, int to, std::uint32_t tag = 0);
  virtual std::shared_ptr<Work> recv(const Buffer& buffer, int from, std::uint32_t tag = 0);

  /// Aborts the group for every rank; the first reason wins.
  virtual void abort(const std::string& reason) = 0;
  /// The first reason, or empty while the group is good.
  virtual std::string abort_reason() const = 0;

  /// A group of `ranks` of this one, in ascending order, whatever the order of the list. Every rank of this
  /// group calls it, with the same list and in the same order of calls; those that are not in the list get
  /// null at once. Throws as init_process_group, and BadConfig for a group that it did not make.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);
  /// The next generation of this group: those of its ranks that still live, in the same order, close
  /// together. Aborts this group unless it is aborted already. Every rank of it that lives calls it; Timeout
  /// names those that do not. Throws as init_process_group, and BadConfig for a group that it did not make.
  std::shared_ptr<ProcessGroup> rebuild();
  /// For what forms groups, before anybody else has the group.
  void set_origin(std::shared_ptr<GroupOrigin> origin) { origin_ = std::move(origin); }

  // The typed front: T is float, double, an integer of 1 to 8 bytes (no unsigned but std::uint8_t), or bool.
  template <class T>
  std::span<T> allocate(std::size_t count) {
    return {static_cast<T*>(allocate(count, dtype_of<T>()).data), count};
  }
  template <class T>
  std::shared_ptr<Work> all_reduce(std::span<T> buffer, Reduction how = {}) {
    return all_reduce(buffer_of(buffer), how);
  }
  template <class T>
  std::shared_ptr<Work> reduce(std::span<T> buffer, int root, Reduction how = {}) {
    return reduce(buffer_of(buffer), how, root);
  }
  template <class T>
  std::shared_ptr<Work> broadcast(std::span<T> buffer, int root) {
    return broadcast(buffer_of(buffer), root);
  }
  template <class T>
  std::shared_ptr<Work> gather(std::span<const T> input, std::span<T> output, int root) {
    return gather(buffer_of(input), buffer_of(output), root);
  }
  template <class T>
  std::shared_ptr<Work> scatter(std::span<const T> input, std::span<T> output, int root) {
    return scatter(buffer_of(input), buffer_of(output), root);
  }
  template <class T>
  std::shared_ptr<Work> all_gather(std::span<const T> input, std::span<T> output) {
    return all_gather(buffer_of(input), buffer_of(output));
  }
  template <class T>
  std::shared_ptr<Work> reduce_scatter(std::span<const T> input, std::span<T> output, Reduction how = {}) {
    return reduce_scatter(buffer_of(input), buffer_of(output), how);
  }
  template <class T>
  std::shared_ptr<Work> all_to_all(std::span<const T> input, std::span<T> output) {
    return all_to_all(buffer_of(input), buffer_of(output));
  }
  template <class T>
  std::shared_ptr<Work> send(std::span<const T> buffer, int to, std::uint32_t tag = 0) {
    return send(buffer_of(buffer), to, tag);
  }
  template <class T>
  std::shared_ptr<Work> recv(std::span<T> buffer, int from, std::uint32_t tag = 0) {
    return recv(buffer_of(buffer), from, tag);
  }

 private:
  std::shared_ptr<GroupOrigin> origin_;
};

}  // namespace troupe::collectives
