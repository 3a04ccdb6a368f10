/// The backend mpi for init_process_group.
#pragma once

namespace troupe::collectives {

/// Lets init_process_group make groups of the backend "mpi" from now on, of all ranks of MPI_COMM_WORLD. Call
/// it once, in main; a build without MPI refuses when a group is made. Start the program with mpirun.
void use_mpi();

}  // namespace troupe::collectives
