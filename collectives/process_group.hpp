/// A process group: ranks that agree on numbers.
///
/// Thread-safety: one thread a rank issues operations, in the same order on every rank; `abort` may be called
/// from any thread and any process. Every wait has a deadline and watches the group's abort word: after an
/// abort, on any rank, every operation throws CollectiveAborted within milliseconds, with the first reason. A
/// group that was aborted stays so: the next generation is a new group.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/leaf_tree.hpp"
#include "collectives/types.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::collectives {

/// One operation in flight.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the result is in place. Throws CollectiveAborted or Timeout. Calling it again returns at
  /// once.
  virtual void wait() = 0;
  /// Whether wait() would return or throw at once. Does what can be done without waiting, so polling it gets
  /// there.
  virtual bool is_completed() = 0;
};

/// Gradients of a bucket while they are reduced: per partial sum of this rank (see leaf_tree.hpp) one array
/// of `count` elements in memory that the group reaches without a copy. After the operation slot 0 holds the
/// result. The memory belongs to the group and lives as long as it.
struct TreeBuffer {
  std::vector<std::byte*> partials;  ///< one a canonical node of this rank's interval, left to right
  std::size_t count = 0;             ///< elements in each
  DType dtype = DType::kFloat32;
  int index = 0;  ///< which allocation of the group this is
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Generation generation() const = 0;

  /// This rank's leaves. A group without logical ranks has one leaf a rank.
  virtual LeafInterval leaves() const = 0;

  /// Memory for a reduction on the leaf tree. Collective: every rank allocates the same counts in the same
  /// order, and the group's segment must have room (GroupOptions). 64-byte aligned.
  virtual TreeBuffer allocate_tree(std::size_t count, DType dtype) = 0;

  /// Sums (or the like) every rank's partials on the fixed tree; the result is in slot 0 on every rank, the
  /// same bits whatever the interval layout and the number of ranks. Returns at once; `launch` order is the
  /// same on every rank.
  virtual std::shared_ptr<Work> all_reduce_tree(const TreeBuffer& buffer, ReduceOp op) = 0;

  /// In place over one buffer a rank, on the tree of ranks.
  virtual std::shared_ptr<Work> all_reduce(const Buffer& buffer, ReduceOp op) = 0;
  virtual std::shared_ptr<Work> broadcast(const Buffer& buffer, int root) = 0;
  virtual std::shared_ptr<Work> barrier() = 0;

  /// Aborts the group for every rank; the first reason wins.
  virtual void abort(const std::string& reason) = 0;
  /// The first reason, or empty while the group is good.
  virtual std::string abort_reason() const = 0;
};

}  // namespace troupe::collectives
