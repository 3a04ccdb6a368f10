/// MPI as a process has it: initialised once, finalised once, its errors as ours.
#pragma once

#include <mpi.h>

#include "collectives/types.hpp"

namespace troupe::collectives {

/// Initialises MPI, unless it is; then MPI_Finalize is called at exit, by the process that initialised it.
/// Throws BadConfig if somebody has finalised it, or if it has no MPI_THREAD_MULTIPLE: groups are waited for,
/// and aborted, on several threads. Thread-safe.
void ensure_mpi();

/// From now on the process does not finalise MPI: an operation is in flight for good.
void keep_mpi_from_finalizing();

/// Throws CollectiveAborted with MPI's text unless `code` is MPI_SUCCESS. `call` names the function.
void check_mpi(int code, const char* call);

/// A type of the dtype's size, for moving it.
MPI_Datatype carrier_type(DType dtype);

/// MPI's own reduction; `op` is MPI_OP_NULL where MPI has none of the dtype by the op.
struct MpiReduction {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
};
/// kAvg is a sum, to be divided afterwards.
MpiReduction mpi_reduction(DType dtype, ReduceOp op);

}  // namespace troupe::collectives
