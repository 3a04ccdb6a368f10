/// Starting and watching a process of ours.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/link/socket/socket_link.hpp"

namespace troupe {

/// The environment variable that tells an executable of ours to be something else than the user's program.
inline constexpr const char* kRoleVariable = "TROUPE_ROLE";
inline constexpr const char* kForkServerRole = "fork-server";
/// The descriptor on which a child finds its link to whoever started it.
inline constexpr int kLinkFd = 3;

/// A child process. It dies with the thread that started it (PR_SET_PDEATHSIG) and is reaped when it ends.
struct Child {
  pid_t pid = -1;
  UniqueFd pidfd;   ///< readable once the process is gone
  SocketLink link;  ///< our end
  UniqueFd output;  ///< its standard output, if captured
  UniqueFd errors;  ///< its standard error, if captured
};

struct ChildOptions {
  std::string role;     ///< "head", "node", "worker", "spawned", kForkServerRole
  int program_fd = -1;  ///< executable to run; -1: our own
  bool capture_output = false;
  int oom_score_adj = 0;  ///< offered to the kernel when memory runs out: higher goes first
  std::vector<std::string>
      environment{};  ///< NAME=VALUE each, in place of what this process has of that name
};

/// Starts our own executable again in the given role.
Result<Child> start_child(const ChildOptions& options);

/// The child's end of what it shares with us.
struct ChildEnds {
  UniqueFd link;
  UniqueFd output;  ///< if captured
  UniqueFd errors;
};
/// A child without its process: both ends of its link and pipes. Errors: kIo.
Result<std::pair<Child, ChildEnds>> make_ends(bool capture_output);
/// The child with its process, of which we are the parent. Errors (kIo): it was killed.
Result<Child> watch(Child child, pid_t pid);
/// Makes this new process, not yet anything, a child of `parent`: it dies with it, is shielded from a
/// terminal's signals, and writes to its pipes (-1: to the parent's). Calls only what is safe after fork().
/// Never returns if the parent is gone. `oom`: the text of the score; empty: the parent's.
void settle_child(pid_t parent, std::string_view role, int output, int errors, const char* oom);

/// Sends a signal through the pidfd: it cannot hit another process that got the same pid.
void signal_child(const Child& child, int signal);

/// How a child that is about to end does, as reap() will say it; empty: it goes on, or ends without an error,
/// or the kernel does not tell yet (Linux 5.17).
std::optional<std::string> how_it_ends(const Child& child);

/// Reaps a child that has ended (pidfd readable): as core/ending.hpp has it.
/// What it has forked ends with it (SIGKILL), unless it has left its process group. Never waits: empty when
/// it has not ended.
std::string reap(const Child& child);

/// Waits until the child has ended, `timeout` at most.
bool wait_ended(const Child& child, Duration timeout);

}  // namespace troupe
