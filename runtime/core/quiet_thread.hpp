/// A thread that leaves the process's signals to the threads that expect them.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace troupe {

/// Starts `body` on a thread with every signal blocked, so that Ctrl-C and SIGCHLD reach the main thread and
/// no wait of a helper thread is cut short.
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
  return std::thread(std::move(body));
}

}  // namespace troupe
