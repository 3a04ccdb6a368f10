/// Threads that say why they cannot be started, and that leave the process's signals to the threads that
/// expect them.
#pragma once

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/core/error.hpp"
#include "runtime/core/thread_limit.hpp"

namespace troupe {

/// As std::thread, but throws cannot_start_thread().
template <class Body>
std::thread start_thread(Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw_error(cannot_start_thread(error.code()));
  }
}

/// Starts `body` on a thread with every signal blocked, so that Ctrl-C and SIGCHLD reach the main thread and
/// no wait of a helper thread is cut short. Throws as start_thread().
template <class Body>
std::thread start_quiet_thread(Body body) {
  struct Blocked {  // also where no thread can be started
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const Blocked blocked;
  return start_thread(std::move(body));
}

}  // namespace troupe
