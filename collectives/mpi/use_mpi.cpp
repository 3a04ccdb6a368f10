#include "collectives/mpi/use_mpi.hpp"

#include "collectives/mpi/mpi_group.hpp"
#include "collectives/rendezvous/backends.hpp"

namespace troupe::collectives {

void use_mpi() {
  register_backend("mpi", [](const BackendContext& context) -> std::shared_ptr<ProcessGroup> {
    std::shared_ptr<ProcessGroup> group = make_mpi_group({.generation = context.generation,
                                                          .name = context.group,
                                                          .timeout = context.options.operation_timeout});
    if (group->rank() == context.rank && group->size() == context.size) return group;
    throw BadConfig(
        "cannot form a group on MPI of rank " + std::to_string(context.rank) + " of " +
            std::to_string(context.size),
        "MPI_COMM_WORLD says rank " + std::to_string(group->rank()) + " of " + std::to_string(group->size()),
        "start the program with mpirun, and take the native backend for a part of the ranks");
  });
}

}  // namespace troupe::collectives
