/// A process group: ranks that agree on numbers.
///
/// Thread-safety: one thread a rank issues operations, in the same order on every rank; `abort` may be called
/// from any thread of any rank. Whoever waits in one native group moves those of all in its process, so that
/// several groups may be waited for in any order. Every wait has a deadline and watches the group's
/// abort word: after an abort, on any rank, every operation throws CollectiveAborted within milliseconds,
/// with the first reason. A group that was aborted stays so: the next generation is a new group.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/group_facts.hpp"
#include "collectives/op.hpp"
#include "collectives/work.hpp"
#include "runtime/core/fork_guard.hpp"

namespace troupe::collectives {

class ProcessGroup;

/// How new groups are made of the ranks of one; what forms groups (collectives/rendezvous) gives them theirs.
class GroupOrigin {
 public:
  virtual ~GroupOrigin() = default;
  virtual std::shared_ptr<ProcessGroup> new_group(ProcessGroup& parent, const std::vector<int>& ranks) = 0;
  virtual std::shared_ptr<ProcessGroup> rebuild(ProcessGroup& parent) = 0;
};

/// What std::span makes of a vector, an array or a span: the elements of the typed front. An input may be
/// const, an output may not.
template <class Range>
using ElementOf = typename decltype(std::span(std::declval<Range&>()))::element_type;
template <class Range>
concept Input = has_dtype<std::remove_cv_t<ElementOf<Range>>>;
template <class Range>
concept Output = Input<Range> && !std::is_const_v<ElementOf<Range>>;
template <class From, class To>
concept Alike =
    Input<From> && Output<To> && std::is_same_v<std::remove_const_t<ElementOf<From>>, ElementOf<To>>;

/// The raw front takes Buffer (pointer, count, dtype, device, stream); the typed front takes whatever becomes
/// a std::span: vectors, arrays, spans of float, double, std::complex of these, bool or integers. An
/// operation reads its inputs and writes its outputs until its Work is complete: neither may be touched
/// before. Buffers must not overlap, except in place: in gather and all_gather the input may be this rank's
/// part of the output, and in scatter and reduce_scatter the output this rank's part of the input. Counts and
/// dtypes are the same on every rank, and so is the order of operations; a rank that calls something else
/// aborts the group with an error that names both calls, at the next call at the latest; a barrier at the end
/// finds it in the last one.
///
/// An operation is complete on a rank when that one's part is done, as MPI's are: the root of a broadcast may
/// be through before the others have called it. A barrier is over when all have called it.
///
/// Arguments are checked before anybody takes part: BadInput, or Error with ErrorCode::kLimit, and the group
/// stays good. A backend that lacks an operation refuses it with BadConfig, which names both.
///
/// This class is the front of every backend: it checks, numbers and records each call, once, as an Op, and
/// gives it to launch().
class ProcessGroup {
 public:
  /// `facts` have been checked, and their leaves filled in.
  explicit ProcessGroup(GroupFacts facts) : facts_(std::move(facts)) {}
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  std::string_view backend() const { return facts_.backend; }
  int rank() const { return facts_.rank; }
  int size() const { return facts_.size; }
  Generation generation() const { return facts_.generation; }
  /// This rank's leaves. A group without logical ranks has one leaf a rank.
  LeafInterval leaves() const { return facts_.leaves[static_cast<std::size_t>(facts_.rank)]; }
  const GroupFacts& facts() const { return facts_; }
  /// The group of the same ranks for host memory: this one, or beside a group of GPUs that
  /// init_process_group made a native one. Its operations have an order of their own. Both end together: an
  /// abort of either is one of both, with its reason. It lives as long as this group and makes no others.
  /// Throws BadConfig where a group of GPUs was made without one.
  virtual ProcessGroup& host_group() { return *this; }

  /// Memory for a reduction on the leaf tree. Collective: every rank allocates the same counts in the same
  /// order, and the group's segment must have room (its options say how much). 64-byte aligned. Throws
  /// CollectiveAborted once the group was aborted.
  TreeBuffer allocate_tree(std::size_t count, DType dtype);
  /// Memory that operations move without a copy. As allocate_tree: collective, the group's, 64-byte aligned;
  /// zeros, but on a GPU. It is not a value that frees itself: it is there until deallocate() or the group's
  /// end. Allocate once and use it again, or give it back.
  Buffer allocate(std::size_t count, DType dtype);
  template <class T>
  std::span<T> allocate(std::size_t count) {
    return {static_cast<T*>(allocate(count, dtype_of<T>()).data), count};
  }
  /// Gives back what allocate() gave, for later calls of it. Collective as allocate(): every rank, in the
  /// same order of both; it waits for no other rank. Throws BadInput for anything else, a part of it, memory
  /// that was given back and that of a tree among it, and while an operation of this rank on it is in flight:
  /// wait() for that first. On a GPU it waits until the group's streams are through with their operations,
  /// and throws Timeout or CollectiveAborted, with the memory still there, where one of them does not end
  /// well; memory that a CUDA graph uses is given back after its last replay. Does nothing in an aborted
  /// group, which keeps its memory to its end.
  void deallocate(const Buffer& buffer);
  template <class T>
  void deallocate(std::span<T> values) {
    deallocate(buffer_of(values));
  }

  /// Sums (or the like) every rank's partials on the fixed tree; the result is in slot 0 on every rank, the
  /// same bits whatever the interval layout and the number of ranks. Returns at once; `launch` order is the
  /// same on every rank.
  std::shared_ptr<Work> all_reduce_tree(const TreeBuffer& buffer, Reduction how) {
    return start(Op::all_reduce_tree(buffer, how));
  }

  /// In place over one buffer a rank, on the tree of ranks.
  std::shared_ptr<Work> all_reduce(const Buffer& buffer, Reduction how) {
    return start(Op::all_reduce(buffer, how));
  }
  template <Output T>
  std::shared_ptr<Work> all_reduce(T&& buffer, Reduction how = {}) {
    return all_reduce(of(buffer), how);
  }
  /// As all_reduce, with the result on `root` alone; the buffers of the others stay as they were.
  std::shared_ptr<Work> reduce(const Buffer& buffer, Reduction how, int root) {
    return start(Op::reduce(buffer, how, root));
  }
  template <Output T>
  std::shared_ptr<Work> reduce(T&& buffer, int root, Reduction how = {}) {
    return reduce(of(buffer), how, root);
  }
  /// `root`'s buffer to every rank.
  std::shared_ptr<Work> broadcast(const Buffer& buffer, int root) {
    return start(Op::broadcast(buffer, root));
  }
  template <Output T>
  std::shared_ptr<Work> broadcast(T&& buffer, int root) {
    return broadcast(of(buffer), root);
  }
  /// Every rank's `input` (count elements) to `output` (size() x count) on `root`, in rank order. `output` is
  /// not looked at on the other ranks.
  std::shared_ptr<Work> gather(const Buffer& input, const Buffer& output, int root) {
    return start(Op::gather(input, output, root));
  }
  template <class From, class To>
  requires Alike<From, To> std::shared_ptr<Work> gather(From&& input, To&& output, int root) {
    return gather(of(input), of(output), root);
  }
  /// Part r of `root`'s `input` (size() x count elements) to `output` (count) on rank r. `input` is not
  /// looked at on the other ranks.
  std::shared_ptr<Work> scatter(const Buffer& input, const Buffer& output, int root) {
    return start(Op::scatter(input, output, root));
  }
  template <class From, class To>
  requires Alike<From, To> std::shared_ptr<Work> scatter(From&& input, To&& output, int root) {
    return scatter(of(input), of(output), root);
  }
  /// Every rank's `input` (count elements) to `output` (size() x count) on every rank, in rank order.
  std::shared_ptr<Work> all_gather(const Buffer& input, const Buffer& output) {
    return start(Op::all_gather(input, output));
  }
  template <class From, class To>
  requires Alike<From, To> std::shared_ptr<Work> all_gather(From&& input, To&& output) {
    return all_gather(of(input), of(output));
  }
  /// Part r of the reduced `input` (size() x count elements) to `output` (count) on rank r.
  std::shared_ptr<Work> reduce_scatter(const Buffer& input, const Buffer& output, Reduction how) {
    return start(Op::reduce_scatter(input, output, how));
  }
  template <class From, class To>
  requires Alike<From, To> std::shared_ptr<Work> reduce_scatter(From&& input, To&& output,
                                                                Reduction how = {}) {
    return reduce_scatter(of(input), of(output), how);
  }
  /// Part s of rank r's `input` (size() x count elements) becomes part r of rank s's `output` (the same).
  std::shared_ptr<Work> all_to_all(const Buffer& input, const Buffer& output) {
    return start(Op::all_to_all(input, output));
  }
  template <class From, class To>
  requires Alike<From, To> std::shared_ptr<Work> all_to_all(From&& input, To&& output) {
    return all_to_all(of(input), of(output));
  }
  /// As all_gather, with counts[r] elements of rank r, which are its `input`; `output` has all of them, in
  /// rank order. The same counts on every rank. In place: `input` is this rank's part of `output`.
  std::shared_ptr<Work> all_gather(const Buffer& input, const Buffer& output,
                                   std::vector<std::size_t> counts) {
    return start(Op::all_gather_v(input, output, std::move(counts)));
  }
  template <class From, class To>
  requires Alike<From, To> std::shared_ptr<Work> all_gather(From&& input, To&& output,
                                                            std::vector<std::size_t> counts) {
    return all_gather(of(input), of(output), std::move(counts));
  }
  /// As reduce_scatter, with counts[r] elements for rank r, side by side in `input`. The same counts on every
  /// rank. In place: `output` is this rank's part of `input`.
  std::shared_ptr<Work> reduce_scatter(const Buffer& input, const Buffer& output,
                                       std::vector<std::size_t> counts, Reduction how) {
    return start(Op::reduce_scatter_v(input, output, std::move(counts), how));
  }
  template <class From, class To>
  requires Alike<From, To> std::shared_ptr<Work> reduce_scatter(From&& input, To&& output,
                                                                std::vector<std::size_t> counts,
                                                                Reduction how = {}) {
    return reduce_scatter(of(input), of(output), std::move(counts), how);
  }
  /// As all_to_all, with counts[s] elements for rank s, side by side in `input`, and from_counts[r] from rank
  /// r, side by side in `output`: what r's counts say of this rank. Two ranks whose counts differ end the
  /// group with an error that names both.
  std::shared_ptr<Work> all_to_all(const Buffer& input, std::vector<std::size_t> counts, const Buffer& output,
                                   std::vector<std::size_t> from_counts) {
    return start(Op::all_to_all_v(input, std::move(counts), output, std::move(from_counts)));
  }
  template <class From, class To>
  requires Alike<From, To> std::shared_ptr<Work> all_to_all(From&& input, std::vector<std::size_t> counts,
                                                            To&& output,
                                                            std::vector<std::size_t> from_counts) {
    return all_to_all(of(input), std::move(counts), of(output), std::move(from_counts));
  }
  /// Returns when every rank has called it. Throws Timeout, which names the ranks that are missing, on a rank
  /// that has seen no other arrive for `limit`; the group is over then. The backend native has it.
  void monitored_barrier(Duration limit);
  /// Returns at once; its wait() returns when every rank has called it.
  std::shared_ptr<Work> barrier() { return start(Op::barrier()); }

  /// Point to point. A message goes to the receive with its tag and its sender, in the order of sending;
  /// count and dtype are the same on both sides. They keep their own order, apart from the collectives'. The
  /// Work of a send is complete when the buffer may be used again.
  std::shared_ptr<Work> send(const Buffer& buffer, int to, std::uint32_t tag = 0) {
    return start(Op::send(buffer, to, tag));
  }
  template <Input T>
  std::shared_ptr<Work> send(T&& buffer, int to, std::uint32_t tag = 0) {
    return send(of(buffer), to, tag);
  }
  /// `from` kAnyRank: the first message with the tag of whichever rank, which Work::source() then names. A
  /// message that comes goes to a receive that names its sender, if one was posted before; else to one from
  /// any rank. Native: it fails once all other ranks have left. Native throws LimitExceeded for more than
  /// 4,096 sends and receives in flight with one rank, and for more receives than that from any rank.
  std::shared_ptr<Work> recv(const Buffer& buffer, int from, std::uint32_t tag = 0) {
    return start(Op::recv(buffer, from, tag));
  }
  template <Output T>
  std::shared_ptr<Work> recv(T&& buffer, int from, std::uint32_t tag = 0) {
    return recv(of(buffer), from, tag);
  }

  /// Launches several operations together, in this order; the Work is complete when all are. All are checked
  /// first: one that is refused leaves none launched. The collectives among them are the same on every rank,
  /// and batched alike: a backend may make one of several (native: all_reduces of up to 16 KiB side by side,
  /// of one dtype and reduction). Sends and receives may be in any order: none waits for another. A call of
  /// its own timeout is a batch of one: batch({Op::barrier().within(5s)}). What one of
  /// them writes no other one reads or writes.
  ///
  ///   group.batch({Op::send(buffer_of(std::span(mine)), right), Op::recv(buffer_of(std::span(theirs)),
  ///   left)});
  std::shared_ptr<Work> batch(std::span<const Op> operations);
  std::shared_ptr<Work> batch(std::initializer_list<Op> operations) {
    return batch(std::span(operations.begin(), operations.size()));
  }

  /// Aborts the group for every rank; the first reason wins.
  void abort(const std::string& reason);
  /// The first reason, or empty while the group is good.
  virtual std::string abort_reason() const = 0;
  /// Throws CollectiveAborted, with the reason, once the group was aborted.
  void throw_if_aborted() const;
  /// Of a group that was aborted, and at once of another: returns when none of its operations is at anybody's
  /// memory any more. On a GPU kernels may still run when wait() has thrown; a launch that throws has waited
  /// for them. Takes at most the group's timeout; throws Timeout, or Unavailable for an error of the device.
  virtual void await_quiet() {}

  /// A group of `ranks` of this one, in ascending order, whatever the order of the list. Every rank of this
  /// group calls it, with the same list and in the same order of calls; those that are not in the list get
  /// null at once. Throws as init_process_group, and BadConfig for a group that it did not make.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);
  /// The next generation of this group: those of its ranks that still live, in the same order, close
  /// together; rank 0 may be dead. Aborts this group unless it is aborted already. Every rank of it that
  /// lives calls it; Timeout names those that do not. Throws as init_process_group, and BadConfig for a group
  /// that it did not make.
  std::shared_ptr<ProcessGroup> rebuild();

  /// For what forms groups, before anybody else has the group.
  void set_origin(std::shared_ptr<GroupOrigin> origin) { origin_ = std::move(origin); }
  void set_recorder(std::shared_ptr<flight::FlightRecorder> recorder) { recorder_ = std::move(recorder); }
  /// What remembers its operations (flight/flight_recorder.hpp); null: nothing does.
  const std::shared_ptr<flight::FlightRecorder>& recorder() const { return recorder_; }

 protected:
  /// Throws BadConfig, by refuse(), for what the backend lacks: before anything of a batch is launched.
  virtual void check_has(const Op&) const {}
  /// Starts operations, which have been completed, checked and numbered. A batch that throws in its middle
  /// aborts the group.
  virtual std::shared_ptr<Work> launch(std::span<const Op> operations) = 0;
  /// Aborts the group for every rank, unless it is aborted.
  virtual void stop(const std::string& reason) = 0;
  /// One array of `count` elements for every partial of this rank where `tree`, else one. See allocate.
  /// Without it: BadConfig.
  virtual std::vector<std::byte*> reserve(std::size_t count, DType dtype, bool tree);
  enum class Released { kYes, kNotReserved, kInFlight };
  /// Gives back what reserve() gave, not for a tree, unless an operation is at it. Without reserve():
  /// BadConfig.
  virtual Released release(std::byte* at);

  /// What allocate_tree gave, of a tree that was checked.
  const TreeBuffer& tree_of(const Op& op) const { return trees_[static_cast<std::size_t>(op.peer)]; }
  /// Throws BadConfig: the backend does not have this.
  [[noreturn]] void refuse(std::string_view operation) const;

 private:
  std::shared_ptr<Work> start(Op op) { return start(std::span(&op, 1)); }
  std::shared_ptr<Work> start(std::span<Op> ops);
  template <class Range>
  static Buffer of(Range& range) {
    return buffer_of(std::span(range));
  }
  void check_tree(const Op& op) const;
  void check_allocation(std::string_view call, std::size_t count, DType dtype) const;

  const GroupFacts facts_;
  const ForkGuard fork_guard_;
  std::shared_ptr<GroupOrigin> origin_;
  std::shared_ptr<flight::FlightRecorder> recorder_;
  std::vector<TreeBuffer> trees_;           ///< of allocate_tree
  std::map<void*, std::size_t> allocated_;  ///< of allocate: their bytes, until they are given back
  std::uint64_t collectives_ = 0;           ///< launched
};

}  // namespace troupe::collectives
