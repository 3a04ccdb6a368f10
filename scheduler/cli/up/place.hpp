/// Which of the hosts of a run this is, as the launcher says it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/core/result.hpp"

namespace troupe::cli {

struct Place {
  int rank = 0;          ///< 0: the first host, which has the head and starts the program
  int hosts = 1;         ///< that the launcher starts
  std::string run;       ///< the same on all of them, another one in the next run: a name of a folder
  std::string launcher;  ///< for people: "Slurm"
  /// What the launcher gives this host, where it says so: of Slurm. Control groups may say less.
  std::optional<double> cpus{};
  std::optional<std::int64_t> memory_bytes{};
};

/// `variable(name)` is the environment's. Slurm (srun), Open MPI (mpirun), PMI (MPICH, Intel MPI), an indexed
/// Job or a StatefulSet of Kubernetes. None: it is started by none of them. Errors: kBadInput where what it
/// says is no number.
Result<std::optional<Place>> place_from(
    const std::function<std::optional<std::string>(const char*)>& variable);

}  // namespace troupe::cli
