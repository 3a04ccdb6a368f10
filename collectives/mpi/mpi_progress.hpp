/// Operations of one communicator, each a few non-blocking calls of MPI one after another.
///
/// MPI wants collectives begun in the same order on every rank, so the steps of an operation are begun only
/// when all steps of those before it are: whichever rank polls when, the order is that of the launches.
/// Messages are begun at once.
#pragma once

#include <mpi.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/library_group.hpp"

namespace troupe::collectives {

/// Begins a call of MPI; its request, or throws.
using MpiStep = std::function<MPI_Request()>;

class MpiProgress : public std::enable_shared_from_this<MpiProgress> {
 public:
  MpiProgress(int rank, int size, Duration timeout, std::shared_ptr<AbortFlag> flag);

  /// `finish` runs when the last step is complete. `ordered`: a collective.
  std::shared_ptr<Work> launch(const Op& op, bool ordered, std::vector<MpiStep> steps,
                               std::function<void()> finish);
  /// Whether nothing is in flight.
  bool idle() const;
  /// Of a group that was aborted: returns when MPI is at nobody's memory any more. Receives are cancelled; a
  /// send and a collective end when the other ranks come to them. Throws Timeout when nothing ends for as
  /// long as the group's timeout: what is left stays MPI's until the process ends.
  void await_quiet();

 private:
  class Operation;

  /// Does what can be done; whether anything completed.
  bool advance();
  bool begin_steps();
  /// The operations that MPI is still at; those that it has left since are forgotten.
  std::size_t leave_ended();
  /// Moves everything until `operation` is settled, the group is aborted or out of time, or `limit` is over;
  /// whether it is settled.
  bool drive(Operation& operation, Duration limit);

  const int rank_;
  const bool crowded_;
  const Duration timeout_;
  const std::shared_ptr<AbortFlag> flag_;
  mutable std::mutex mutex_;                         ///< of the two lists and the operations in them
  std::deque<std::shared_ptr<Operation>> to_begin_;  ///< collectives with a step that is not begun
  std::vector<std::shared_ptr<Operation>> in_flight_;
};

}  // namespace troupe::collectives
