/// Any program as a child of the node: what submitted jobs run. It knows nothing of troupe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"

namespace troupe::node {

struct ProgramOptions {
  std::vector<std::string> program;      ///< with its arguments; one without '/' is looked for in its PATH
  std::vector<std::string> environment;  ///< all of it: NAME=VALUE each
  std::string folder;                    ///< where it runs
};

/// Leader of a session of its own, without a terminal and with nothing to read. It dies with the thread that
/// started it.
struct Program {
  pid_t pid = -1;
  UniqueFd pidfd;   ///< readable once it is gone
  UniqueFd output;  ///< its standard output: a pipe of 1 MiB where the system allows
  UniqueFd errors;
};

/// Returns when the program runs, as exec says. Errors: kIo and kBadInput with what to do: it is not there,
/// is not executable, is of another architecture, its folder is not there.
Result<Program> start_program(const ProgramOptions& options);

struct ProgramExit {
  int code = 0;
  int signal = 0;  ///< that killed it; 0: none
};
/// Reaps it and ends its process group. None: it has not ended.
std::optional<ProgramExit> reap_program(const Program& program);

void signal_group(const Program& program, int signal);
/// SIGKILL to every process of this user whose environment holds one of `entries` ("NAME=VALUE"): what
/// programs left behind in other groups and sessions. Repeats until there is none, a bounded number of times.
void kill_marked(const std::set<std::string>& entries);

}  // namespace troupe::node
