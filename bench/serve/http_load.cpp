#include "bench/serve/http_load.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/random.hpp"

namespace {

using namespace troupe;

constexpr Duration kNoAnswer = std::chrono::seconds(10);

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

namespace {

/// Connections that are open, and what comes on them.
class Connections {
 public:
  Connections(std::uint16_t port, int count)
      : poll_(::epoll_create1(EPOLL_CLOEXEC)),
        all_(static_cast<std::size_t>(count)),
        events_(all_.size()),
        buffer_(1 << 16) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      all_[i].fd = connect_to(port);
      epoll_event event{EPOLLIN, {.u64 = i}};
      ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, all_[i].fd.get(), &event);
    }
  }
  std::size_t size() const { return all_.size(); }
  void send(std::size_t i, const std::string& request, Instant since) {
    all_[i].sent = since;
    send_all(all_[i].fd.get(), request);
  }
  void close(std::size_t i) { all_[i].fd = {}; }

  /// Those that are answered within `timeout`, which are counted.
  std::vector<std::size_t> answered(Duration timeout, LoadResult& result) {
    std::vector<std::size_t> done;
    pollfd wait{poll_.get(), POLLIN, 0};  // epoll's milliseconds are too coarse
    const timespec limit{timeout / std::chrono::seconds(1), (timeout % std::chrono::seconds(1)).count()};
    if (::ppoll(&wait, 1, &limit, nullptr) <= 0) return done;
    const int ready = ::epoll_wait(poll_.get(), events_.data(), static_cast<int>(events_.size()), 0);
    for (int n = 0; n < ready; ++n) {
      const std::size_t i = events_[static_cast<std::size_t>(n)].data.u64;
      Connection& one = all_[i];
      const auto got = ::recv(one.fd.get(), buffer_.data(), buffer_.size(), 0);
      if (got <= 0) failed("a connection was closed");
      one.in.append(buffer_.data(), static_cast<std::size_t>(got));
      const std::size_t bytes = response_bytes(one.in);
      if (bytes == 0) continue;
      result.latencies_s.push_back(to_seconds(clock_.now() - one.sent));
      if (!one.in.starts_with("HTTP/1.1 200")) ++result.failed;
      one.in.erase(0, bytes);
      done.push_back(i);
    }
    return done;
  }

 private:
  const MonotonicClock clock_;
  UniqueFd poll_;
  std::vector<Connection> all_;
  std::vector<epoll_event> events_;
  std::vector<char> buffer_;
};

LoadResult finished(LoadResult result, Duration took) {
  result.seconds = to_seconds(took);
  std::sort(result.latencies_s.begin(), result.latencies_s.end());
  return result;
}

}  // namespace

LoadResult load(std::uint16_t port, const std::string& request, int connections, double seconds) {
  const MonotonicClock clock;
  Connections all(port, connections);
  LoadResult result;
  const Instant begin = clock.now();
  for (std::size_t i = 0; i < all.size(); ++i) all.send(i, request, clock.now());
  for (std::size_t open = all.size(); open > 0;) {
    const auto done = all.answered(kNoAnswer, result);
    if (done.empty() && to_seconds(clock.now() - begin) >= seconds + to_seconds(kNoAnswer))
      failed("no answer for 10 s");
    for (const std::size_t i : done) {
      if (to_seconds(clock.now() - begin) >= seconds) {
        all.close(i);
        --open;
      } else {
        all.send(i, request, clock.now());
      }
    }
  }
  return finished(std::move(result), clock.now() - begin);
}

LoadResult load_open(std::uint16_t port, const std::string& request, int connections, double rate,
                     double seconds) {
  const MonotonicClock clock;
  Connections all(port, connections);
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < all.size(); ++i) free.push_back(i);
  LoadResult result;
  SeededRandom random(1);
  std::vector<double> lags_s;
  std::deque<Instant> waiting;
  const Instant begin = clock.now();
  const Instant end = begin + Duration(static_cast<std::int64_t>(seconds * 1e9));
  Instant due = begin, freed = begin;
  for (;;) {
    const Instant now = clock.now();
    for (; due <= now && due < end;
         due += Duration(static_cast<std::int64_t>(-std::log1p(-random.uniform()) / rate * 1e9)))
      waiting.push_back(due);
    while (!waiting.empty() && !free.empty()) {
      lags_s.push_back(to_seconds(clock.now() - std::max(waiting.front(), freed)));
      all.send(free.back(), request, waiting.front());
      free.pop_back();
      waiting.pop_front();
    }
    if (due >= end && free.size() == all.size()) break;
    const Duration pause = due < end ? std::max<Duration>(due - clock.now(), Duration{0}) : kNoAnswer;
    const auto done = all.answered(pause, result);
    if (!done.empty()) freed = clock.now();
    free.insert(free.end(), done.begin(), done.end());
    if (done.empty() && clock.now() > end + kNoAnswer) failed("no answer for 10 s");
  }
  std::sort(lags_s.begin(), lags_s.end());
  if (!lags_s.empty()) result.lag_p99_s = lags_s[lags_s.size() * 99 / 100];
  return finished(std::move(result), clock.now() - begin);
}
