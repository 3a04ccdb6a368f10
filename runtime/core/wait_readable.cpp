#include "runtime/core/wait_readable.hpp"

#include <poll.h>

#include <cerrno>

namespace troupe {

bool wait_readable(int fd, Duration timeout) {
  const MonotonicClock clock;
  const Instant until = clock.now() + timeout;
  for (;;) {
    const Duration left = until - clock.now();
    pollfd wait{fd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, poll_millis(left));
    if (ready > 0) return (wait.revents & POLLNVAL) == 0;
    if (ready < 0 && errno != EINTR) return false;
    if (left <= Duration(0)) return false;
  }
}

}  // namespace troupe
