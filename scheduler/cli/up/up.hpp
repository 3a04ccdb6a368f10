/// troupe up: one command that every host of a run runs alike, under Slurm, MPI or Kubernetes.
#pragma once

namespace troupe::cli {

/// `argv` begins with "up". Returns the exit code: on the first host the program's, on the others 0 once it
/// is over. Throws troupe::Error with the one line a person reads.
int up(int argc, char** argv);

}  // namespace troupe::cli
