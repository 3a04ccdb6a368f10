#include "runtime/core/standard_output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

namespace troupe {
namespace {

std::atomic<bool> output_has_failed{false};

bool has_lost_reader(int stream) {
  pollfd at{stream, 0, 0};
  return ::poll(&at, 1, 0) == 1 && (at.revents & POLLERR) != 0;
}

void on_sigpipe(int /*signal*/) {
  const int error = errno;
  if (has_lost_reader(STDOUT_FILENO) || has_lost_reader(STDERR_FILENO)) {
    ::signal(SIGPIPE, SIG_DFL);
    ::raise(SIGPIPE);  // comes when this handler returns
  }
  errno = error;
}

}  // namespace

void hold_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest number that is free is this one. Against its direction: it fails with EBADF.
    [[maybe_unused]] const int held =
        ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // children keep it
  }
}

void end_without_reader() {
  struct sigaction now {};
  ::sigaction(SIGPIPE, nullptr, &now);
  if (now.sa_handler != SIG_DFL) return;
  now.sa_handler = on_sigpipe;
  now.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &now, nullptr);
}

void output_failed(int error) {
  output_has_failed = true;
  if (error == EPIPE) ::kill(::getpid(), SIGPIPE);
}

bool has_output_failed() {
  return std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || output_has_failed;
}

}  // namespace troupe
