/// Process groups on MPI, for sites that prescribe it and for comparisons.
///
/// Exact reductions take the path of exact_path.hpp and have the native backend's bits; with exact = false
/// they are MPI's own, where MPI has the dtype. Every operation is non-blocking: MPI moves it while some Work
/// of the group is waited for or polled, and an operation times out when nothing in its group completes for
/// as long as `timeout` of one wait.
///
/// What MPI cannot: abort(), and a Timeout, end this rank's waits alone; the other ranks run into their own
/// timeouts (MPI_Abort would end the whole job, and Debian's OpenMPI has no ULFM). Nor can it take back a
/// collective or a send in flight: after either, its buffers are MPI's until the other ranks come to it,
/// which await_quiet() waits for, else until the process ends, and the process should end: it leaves out
/// MPI_Finalize, which would wait for operations that nobody completes, and mpirun then ends the job.
#pragma once

#include <memory>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::collectives {

struct MpiGroupOptions {
  /// Points to an MPI_Comm, which says the rank and the size; the group works on a copy of it. Null:
  /// MPI_COMM_WORLD.
  const void* communicator = nullptr;
  /// Every rank's leaves: adjacent, none empty, in rank order from 0. Empty: one leaf a rank.
  std::vector<LeafInterval> leaves;
  Generation generation;
  std::string name;  ///< in errors; empty: it has none
  /// An operation fails once it was waited for so long and nothing of the group moved on this rank.
  Duration timeout = std::chrono::seconds(30);
};

/// Whether this build has MPI.
bool has_mpi() noexcept;

/// Collective over the communicator. The first call of a process initialises MPI (MPI_THREAD_MULTIPLE),
/// unless somebody did, who has to ask for that, too, and then finalises it at exit. Errors of MPI are
/// returned then; a program that initialised MPI itself sets MPI_ERRORS_RETURN on MPI_COMM_WORLD, or is ended
/// by them. Groups are made and used before main returns. Throws BadConfig for options that make no sense and
/// where this build has no MPI, Timeout when a rank does not come.
std::unique_ptr<ProcessGroup> make_mpi_group(MpiGroupOptions options = {});

}  // namespace troupe::collectives
