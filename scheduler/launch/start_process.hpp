/// Starting a program as the leader of a process group of its own.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/core/fd.hpp"

namespace troupe::launch {

struct ProcessOptions {
  std::vector<std::string> command;      ///< the first word is looked for in PATH if it has no slash
  std::vector<std::string> environment;  ///< all of it, NAME=VALUE
  std::string folder;                    ///< to start in; empty: this process's
  int output = -1;                       ///< its standard output; -1: this process's
  int errors = -1;                       ///< its standard error
};
struct StartedProcess {
  pid_t pid = -1;
  UniqueFd pidfd;
};

/// Returns once the program runs. It reads from /dev/null, has no blocked signals, and is killed when the
/// calling thread ends. Errors: kIo: it could not be executed, and why.
Result<StartedProcess> start_process(const ProcessOptions& options);

}  // namespace troupe::launch
