#include "scheduler/launch/process_guard.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "runtime/core/thread_limit.hpp"

namespace troupe::launch {
namespace {

constexpr std::size_t kMostGroups = 4096;

/// Only calls that are safe after a fork of a process with threads.
[[noreturn]] void guard(int pipe, const char* folder) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "troupe-guard");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::signal(signal, SIG_IGN);
  // It must hold nothing open that somebody reads to the end.
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) ::dup2(nothing, fd);
  ::dup2(pipe, 3);
  ::syscall(SYS_close_range, 4U, ~0U, 0U);
  static std::array<pid_t, kMostGroups> groups;  // zero: a free place
  for (pid_t told = 0;;) {
    const ssize_t got = ::read(3, &told, sizeof told);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof told)) break;
    const pid_t wanted = told > 0 ? 0 : -told;
    for (pid_t& group : groups) {
      if (group != wanted) continue;
      group = told > 0 ? told : 0;
      break;
    }
  }
  for (const pid_t group : groups) {
    if (group > 0) ::kill(-group, SIGKILL);
  }
  if (*folder != '\0') ::execl("/bin/rm", "rm", "-rf", folder, nullptr);
  ::_exit(0);
}

}  // namespace

Result<ProcessGuard> ProcessGuard::start(const std::string& folder) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return io_error("cannot make a pipe", errno, "raise ulimit -n");
  const UniqueFd reading(ends[0]);
  ProcessGuard made;
  made.pipe_ = UniqueFd(ends[1]);
  made.pid_ = ::fork();
  if (made.pid_ < 0) return io_error("cannot start a guard", errno, kRaiseProcesses);
  if (made.pid_ == 0) {
    ::close(ends[1]);
    guard(reading.get(), folder.c_str());
  }
  return made;
}

ProcessGuard::~ProcessGuard() {
  if (!pipe_) return;
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ProcessGuard::add(pid_t group) {
  tell(group, true);
}
void ProcessGuard::remove(pid_t group) {
  tell(group, false);
}
void ProcessGuard::tell(pid_t group, bool is_there) {
  const pid_t word = is_there ? group : -group;
  if (pipe_) [[maybe_unused]]
    const auto written = ::write(pipe_.get(), &word, sizeof word);
}

}  // namespace troupe::launch
