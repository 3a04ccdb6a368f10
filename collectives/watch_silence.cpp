#include "collectives/watch_silence.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace troupe::collectives {

void watch_silence(int fd, Duration patience) {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 6);  // seconds
  set(IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  const auto ms = patience / std::chrono::milliseconds(1);
  const auto longest = std::chrono::hours(24) / std::chrono::milliseconds(1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::clamp<std::int64_t>(ms, 1000, longest)));
}

}  // namespace troupe::collectives
