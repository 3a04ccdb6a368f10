/// Any program as a child: what submitted jobs run, and the ranks of a launch. It knows nothing of troupe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/node/stuck_processes.hpp"

namespace troupe::node {

struct ProgramOptions {
  std::vector<std::string> program;      ///< with its arguments; one without '/' is looked for in its PATH
  std::vector<std::string> environment;  ///< all of it: NAME=VALUE each
  std::string folder;                    ///< where it runs; empty: where this process does
  int output = -1;                       ///< its standard output; -1: this process's
  int errors = -1;                       ///< its standard error
  bool has_session = false;              ///< it leads a session of its own: without a terminal
  const char* oom_score = nullptr;       ///< for /proc/self/oom_score_adj; null: this process's
};

/// Leader of a process group of its own, with nothing to read, no signal blocked or ignored, and no
/// descriptor but the standard ones. It dies with the thread that started it.
struct Program {
  pid_t pid = -1;
  UniqueFd pidfd;  ///< readable once it is gone
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
/// programs left behind in other groups and sessions. Not to this process. Repeats until there is none, a
/// bounded number of times. Waits for a process that holds the lock of its memory, but for one of `stuck`.
void kill_marked(const std::set<std::string>& entries, StuckProcesses& stuck);
void kill_marked(const std::set<std::string>& entries);

}  // namespace troupe::node
