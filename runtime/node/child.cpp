#include "runtime/node/child.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "runtime/core/ending.hpp"
#include "runtime/core/thread_limit.hpp"
#include "runtime/core/wait_readable.hpp"

extern char** environ;

namespace troupe {
namespace {

constexpr std::size_t kTitleRoom = 18;

struct Pipe {
  UniqueFd reading;
  UniqueFd writing;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error("cannot make a pipe", errno, "raise ulimit -n");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// What the child does between fork and exec: only calls that are safe there. Never returns.
[[noreturn]] void become(const ChildOptions& options, const ChildEnds& ends, pid_t parent, char** argv,
                         char** env, const char* oom) {
  const int program = options.program_fd >= 0 ? ::fcntl(options.program_fd, F_DUPFD_CLOEXEC, 10) : -1;
  settle_child(parent, options.role, ends.output.get(), ends.errors.get(), oom);
  if (ends.link.get() == kLinkFd) {
    ::fcntl(kLinkFd, F_SETFD, 0);
  } else {
    ::dup2(ends.link.get(), kLinkFd);
  }
  if (program >= 0) {
    ::fexecve(program, argv, env);
  } else {
    ::execve("/proc/self/exe", argv, env);
  }
  ::_exit(127);
}

}  // namespace

Result<std::pair<Child, ChildEnds>> make_ends(bool capture_output) {
  auto link = SocketLink::pair();
  if (!link) return link.error();
  Child child;
  ChildEnds ends;
  child.link = std::move(link->first);
  ends.link = std::move(link->second.socket());
  if (capture_output) {
    auto first = make_pipe();
    auto second = make_pipe();
    if (!first || !second) return first ? second.error() : first.error();
    child.output = std::move(first->reading);
    ends.output = std::move(first->writing);
    child.errors = std::move(second->reading);
    ends.errors = std::move(second->writing);
  }
  return std::make_pair(std::move(child), std::move(ends));
}

void settle_child(pid_t parent, std::string_view role, int output, int errors, const char* oom) {
  ::prctl(PR_SET_PDEATHSIG, role == "head" || role == "node" ? SIGTERM : SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before we asked to be told
  if (output >= 0) ::dup2(output, STDOUT_FILENO);
  if (errors >= 0) ::dup2(errors, STDERR_FILENO);
  const int adj = *oom != '\0' ? ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC) : -1;
  if (adj >= 0) {
    [[maybe_unused]] const auto written = ::write(adj, oom, std::strlen(oom));
    ::close(adj);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Ctrl-C, and a SIGTERM to the program's whole group, are for the driver, which ends us.
  ::setpgid(0, 0);
  ::signal(SIGINT, SIG_IGN);
}

Result<Child> start_child(const ChildOptions& options) {
  auto made = make_ends(options.capture_output);
  if (!made) return made.error();
  auto& [child, ends] = *made;
  const std::string role = std::string(kRoleVariable) + "=" + options.role;
  std::string name = "troupe-" + options.role;
  name.resize(std::max(name.size(), kTitleRoom), ' ');  // copies of it write their own there
  const std::string oom = std::to_string(options.oom_score_adj);
  std::vector<std::string> own = options.environment;
  own.push_back(role);
  std::vector<char*> env;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const bool replaced = std::any_of(own.begin(), own.end(), [&](const std::string& ours) {
      return entry.starts_with(std::string_view(ours).substr(0, ours.find('=') + 1));
    });
    if (!replaced) env.push_back(*at);
  }
  for (const std::string& entry : own) env.push_back(const_cast<char*>(entry.c_str()));
  env.push_back(nullptr);
  char* argv[] = {const_cast<char*>(name.c_str()), nullptr};
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return io_error("cannot start a " + options.role, errno, kRaiseProcesses);
  if (pid == 0) become(options, ends, parent, argv, env.data(), oom.c_str());
  return watch(std::move(child), pid);
}

Result<Child> watch(Child child, pid_t pid) {
  child.pid = pid;
  child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (child.pidfd) return child;
  const int error = errno;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return io_error("cannot watch a child process", error,
                  error == ENOSYS ? "Linux 5.3 or later is needed" : "raise ulimit -n");
}

void signal_child(const Child& child, int signal) {
  ::syscall(SYS_pidfd_send_signal, child.pidfd.get(), signal, nullptr, 0);
}

std::optional<std::string> how_it_ends(const Child& child) {
  // The last field of stat is the status that wait() will return, from when the whole process is ending.
  std::ifstream file("/proc/" + std::to_string(child.pid) + "/stat");
  std::string stat;
  if (!std::getline(file, stat)) return std::nullopt;
  const std::size_t last = stat.rfind(' ') + 1;
  int status = 0;
  const char* end = stat.data() + stat.size();
  if (std::from_chars(stat.data() + last, end, status).ptr != end || status == 0) return std::nullopt;
  return WIFEXITED(status) ? ended_with_code(WEXITSTATUS(status)) : ended_by_signal(WTERMSIG(status));
}

std::string reap(const Child& child) {
  siginfo_t info{};
  const auto pid = static_cast<id_t>(child.pid);
  if (::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return "it was reaped elsewhere";
  if (info.si_pid == 0) return {};
  ::kill(-child.pid, SIGKILL);  // the group is its own for as long as it is not reaped
  ::waitid(P_PID, pid, &info, WEXITED);
  return info.si_code == CLD_EXITED ? ended_with_code(info.si_status) : ended_by_signal(info.si_status);
}

bool wait_ended(const Child& child, Duration timeout) {
  return wait_readable(child.pidfd.get(), timeout);
}

}  // namespace troupe
