#include "collectives/watch_silence.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace troupe::collectives {

void watch_silence(int fd, bool takes_all) {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 6);  // seconds
  set(IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  // With this option the kernel counts no probes: it alone says when an idle connection ends, too.
  if (takes_all) set(IPPROTO_TCP, TCP_USER_TIMEOUT, 15'000);  // milliseconds
}

}  // namespace troupe::collectives
