#include "scheduler/launch/start_process.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace troupe::launch {
namespace {

enum class Step : int { kFolder, kExecute };
struct Failed {
  Step step;
  int error;
};

/// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(const ProcessOptions& options, char** argv, char** env, pid_t parent, int told) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before we asked to be told
  ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  if (options.output >= 0) ::dup2(options.output, STDOUT_FILENO);
  if (options.errors >= 0) ::dup2(options.errors, STDERR_FILENO);
  // The program is to find what a shell gives it: no signal ignored, no descriptor of ours beside the
  // standard ones.
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  Failed failed{Step::kFolder, 0};
  if (options.folder.empty() || ::chdir(options.folder.c_str()) == 0) {
    failed.step = Step::kExecute;
    ::execvpe(argv[0], argv, env);
  }
  failed.error = errno;
  [[maybe_unused]] const auto written = ::write(told, &failed, sizeof failed);
  ::_exit(127);
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

}  // namespace

Result<StartedProcess> start_process(const ProcessOptions& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error("cannot make a pipe", errno, "raise ulimit -n");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  auto argv = pointers(options.command), env = pointers(options.environment);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0)
    return io_error("cannot start " + options.command.front(), errno,
                    "raise the limit on processes (ulimit -u)");
  if (pid == 0) become(options, argv.data(), env.data(), parent, writing.get());
  ::setpgid(pid, pid);  // whoever of the two comes first: a signal to the group finds it
  writing.reset();
  StartedProcess started{pid, UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))};
  const int pidfd_error = started.pidfd ? 0 : errno;
  Failed failed{};
  ssize_t got = 0;
  while ((got = ::read(reading.get(), &failed, sizeof failed)) < 0 && errno == EINTR) {
  }
  if (got == 0 && started.pidfd) return started;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  if (!started.pidfd) return io_error("cannot watch a process", pidfd_error, "raise ulimit -n");
  if (failed.step == Step::kFolder)
    return io_error("cannot start in the folder " + options.folder, failed.error, "make it on every node");
  return io_error("cannot execute " + options.command.front(), failed.error,
                  failed.error == ENOEXEC ? "give the script a first line such as #!/bin/sh"
                                          : "see that it is there and executable");
}

}  // namespace troupe::launch
