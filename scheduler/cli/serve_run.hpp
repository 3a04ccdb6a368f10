/// troupe serve run FILE.toml: a program that serves, as a job of a cluster, with what the file says of its
/// deployments; and the changes of the file, when it is applied again.
#pragma once

#include <string>

#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

struct ServeRunWords {
  JobClientOptions where;
  std::string file;
  bool restart = false;  ///< the program may start again for what it cannot change while it runs
  bool detach = false;
  int timeout_s = 600;
};

int serve_run(const ServeRunWords& words);

}  // namespace troupe::cli
