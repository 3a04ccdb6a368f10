#include "bench/serve/http_load.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/fd.hpp"

namespace {

using namespace troupe;

struct Connection {
  UniqueFd fd;
  std::string in;
  Instant sent{};
};

[[noreturn]] void failed(const char* what) {
  throw IoError(io_error(what, errno, "is the server there?"));
}

UniqueFd connect_to(std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) failed("cannot connect");
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

void send_all(int fd, const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const auto n = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n <= 0) failed("cannot send");
    at += static_cast<std::size_t>(n);
  }
}

/// Bytes of the whole response at the front of `in`; 0: it is not all there.
std::size_t response_bytes(const std::string& in) {
  const auto head = in.find("\r\n\r\n");
  if (head == std::string::npos) return 0;
  auto length = in.find("Content-Length: ");
  if (length == std::string::npos) length = in.find("content-length: ");  // uvicorn's
  const std::size_t body = length < head ? std::strtoul(in.c_str() + length + 16, nullptr, 10) : 0;
  return in.size() >= head + 4 + body ? head + 4 + body : 0;
}

}  // namespace

double LoadResult::percentile(double p) const {
  if (latencies_s.empty()) return 0;
  return latencies_s[std::min(latencies_s.size() - 1,
                              static_cast<std::size_t>(p / 100 * static_cast<double>(latencies_s.size())))];
}

std::string http_request(const std::string& method, const std::string& path, const std::string& fields,
                         const std::string& body) {
  return method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

LoadResult load(std::uint16_t port, const std::string& request, int connections, double seconds) {
  const MonotonicClock clock;
  UniqueFd poll(::epoll_create1(EPOLL_CLOEXEC));
  std::vector<Connection> all(static_cast<std::size_t>(connections));
  const Instant begin = clock.now();
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].fd = connect_to(port);
    epoll_event event{EPOLLIN, {.u64 = i}};
    ::epoll_ctl(poll.get(), EPOLL_CTL_ADD, all[i].fd.get(), &event);
    all[i].sent = clock.now();
    send_all(all[i].fd.get(), request);
  }
  LoadResult result;
  std::vector<char> buffer(1 << 16);
  std::vector<epoll_event> events(all.size());
  for (std::size_t open = all.size(); open > 0;) {
    const int ready = ::epoll_wait(poll.get(), events.data(), static_cast<int>(events.size()), 10'000);
    if (ready == 0 || (ready < 0 && errno != EINTR)) failed("no answer for 10 s");
    for (int i = 0; i < ready; ++i) {
      Connection& one = all[events[static_cast<std::size_t>(i)].data.u64];
      const auto n = ::recv(one.fd.get(), buffer.data(), buffer.size(), 0);
      if (n <= 0) failed("a connection was closed");
      one.in.append(buffer.data(), static_cast<std::size_t>(n));
      const std::size_t bytes = response_bytes(one.in);
      if (bytes == 0) continue;
      const Instant now = clock.now();
      result.latencies_s.push_back(to_seconds(now - one.sent));
      if (!one.in.starts_with("HTTP/1.1 200")) ++result.failed;
      one.in.erase(0, bytes);
      if (to_seconds(now - begin) >= seconds) {
        one.fd = {};
        --open;
        continue;
      }
      one.sent = now;
      send_all(one.fd.get(), request);
    }
  }
  result.seconds = to_seconds(clock.now() - begin);
  std::sort(result.latencies_s.begin(), result.latencies_s.end());
  return result;
}
