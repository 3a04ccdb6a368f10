#include "collectives/mpi/mpi_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {

bool has_mpi() noexcept {
  return false;
}

std::unique_ptr<ProcessGroup> make_mpi_group(MpiGroupOptions /*options*/) {
  throw BadConfig("cannot make a process group of the backend mpi", "this build has no MPI",
                  "install it (apt-get install openmpi-bin libopenmpi-dev) and configure again, or use the "
                  "backend native");
}

}  // namespace troupe::collectives
