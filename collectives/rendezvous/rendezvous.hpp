/// Where the ranks of a job meet, as its launcher says: the URL, the environment and the options, read into
/// one Rendezvous. Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/core/endpoint.hpp"

namespace troupe::collectives {

/// Looks a variable up; null: it is not set.
using Environment = std::function<const char*(const char* name)>;

struct Rendezvous {
  int rank = 0;
  int size = 1;
  int local_rank = -1;  ///< -1: the launcher did not say
  Endpoint at;          ///< env and tcp: where rank 0 serves the store, a name or a number
  std::string path;     ///< file: where rank 0 leaves a note; else empty
  std::string url;      ///< as it is called in errors
};

///   env://                 MASTER_ADDR, MASTER_PORT (or TROUPE_MASTER_PORT, which wins)
///   tcp://HOST:PORT
///   file:///PATH           rank 0 serves at 127.0.0.1, or with ?host=ADDRESS at that address of its machine
///
/// Rank and size: `rank` and `size` if not -1, else ?rank= and ?world_size= in the URL, else (env:// alone)
/// RANK and WORLD_SIZE, or what mpirun (OMPI_COMM_WORLD_*, PMI_*) and srun (SLURM_PROCID, SLURM_NTASKS) set.
/// Errors: kBadConfig, which names every variable that is missing.
Result<Rendezvous> read_rendezvous(std::string_view url, int rank, int size, const Environment& environment);

}  // namespace troupe::collectives
