// What the HTTP server costs: an echo handler, and a client over keep-alive connections in the same process.
//   bench_http [--seconds S] [--threads N] [--bytes B] [--json FILE]
// Closed loop: each connection asks again when it is answered; it finds the most requests a second. Open
// loop: requests are due at times of a Poisson process, drawn before, and wait for a free connection; latency
// counts from when one was due, so that a server that stalls is not asked less.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/core/random.hpp"
#include "runtime/http/server.hpp"

namespace troupe::http {
namespace {

using std::chrono::milliseconds;

struct Options {
  double seconds = 3;
  int threads = 1;  ///< of the server; the client has one more
  std::size_t bytes = 100;
  std::string json;  ///< a file; empty: none
};

struct Connection {
  UniqueFd fd;
  std::string received;
  Instant due{};  ///< of the request under way
};

struct Figures {
  std::string name;
  double per_s = 0;
  double p50_us = 0, p99_us = 0;
  double lag_p99_us = 0;  ///< how late the client sent what a free connection waited for
};

double percentile_us(std::vector<Duration>& values, double share) {
  if (values.empty()) return 0;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return to_seconds(*at) * 1e6;
}

class Client {
 public:
  Client(int port, std::size_t connections, const std::string& request) : request_(request) {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    for (std::size_t i = 0; i < connections; ++i) free_.push_back(connect(port));
  }

  /// Each connection asks again as soon as it is answered.
  Figures closed_loop(double seconds) {
    begin(seconds);
    for (std::size_t i = 0; i < connections_.size(); ++i) send(i, clock_.now());
    while (clock_.now() < end_) {
      for (const std::size_t i : answered(milliseconds(100))) send(i, clock_.now());
    }
    while (under_way_ > 0 && !answered(milliseconds(5000)).empty()) {
    }
    return figures("closed, " + std::to_string(connections_.size()) + " connections");
  }

  /// The same, and each request on a connection of its own.
  static Figures new_connections(int port, std::size_t at_a_time, std::string request, double seconds) {
    request.insert(request.find("\r\n") + 2, "Connection: close\r\n");
    Client all(port, 0, request);
    all.begin(seconds);
    for (std::size_t i = 0; i < at_a_time; ++i) all.send(all.connect(port), all.clock_.now());
    while (all.under_way_ > 0) {
      const std::vector<std::size_t> done = all.answered(milliseconds(5000));
      if (done.empty()) fail("no answer for 5 s");
      for (const std::size_t i : done) {
        all.connections_[i].fd = {};
        all.free_.push_back(i);
        if (all.clock_.now() < all.end_) all.send(all.connect(port), all.clock_.now());
      }
    }
    return all.figures("a connection a request, " + std::to_string(at_a_time) + " at a time");
  }

  /// `rate` a second, as they are due.
  Figures open_loop(double seconds, double rate) {
    begin(seconds);
    SeededRandom random(1);
    Instant due = clock_.now();
    std::deque<Instant> waiting;
    for (;;) {
      const Instant now = clock_.now();
      for (; due <= now && due < end_; due += next_gap(random, rate)) waiting.push_back(due);
      while (!waiting.empty() && !free_.empty()) {
        const std::size_t i = free_.back();
        free_.pop_back();
        send(i, waiting.front());
        lags_.push_back(clock_.now() - std::max(waiting.front(), freed_));
        waiting.pop_front();
      }
      if (waiting.empty() && under_way_ == 0 && due >= end_) break;
      // Awake for the next one that is due: epoll's milliseconds are too coarse.
      for (const std::size_t i : answered(milliseconds(0))) {
        free_.push_back(i);
        freed_ = clock_.now();
      }
    }
    return figures("open, " + std::to_string(static_cast<int>(rate)) + "/s");
  }

 private:
  static Duration next_gap(Random& random, double rate) {
    return Duration(static_cast<std::int64_t>(-std::log1p(-random.uniform()) / rate * 1e9));
  }
  [[noreturn]] static void fail(const char* what) {
    std::perror(what);
    std::exit(1);
  }

  void begin(double seconds) {
    latencies_.clear();
    lags_.clear();
    began_ = freed_ = clock_.now();
    end_ = began_ + Duration(static_cast<std::int64_t>(seconds * 1e9));
  }

  /// Where a closed one was, if there is one. Returns its index.
  std::size_t connect(int port) {
    if (free_.empty() || connections_[free_.back()].fd) {
      connections_.emplace_back();
      free_.push_back(connections_.size() - 1);
    }
    const std::size_t i = free_.back();
    free_.pop_back();
    Connection& made = connections_[i];
    made.fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(made.fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fail("connect");
    const int on = 1;
    ::setsockopt(made.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, made.fd.get(), &event);
    return i;
  }

  void send(std::size_t i, Instant due) {
    Connection& connection = connections_[i];
    connection.due = due;
    ++under_way_;
    if (::send(connection.fd.get(), request_.data(), request_.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request_.size()))
      fail("send");
  }

  /// The connections whose answer is complete.
  const std::vector<std::size_t>& answered(milliseconds timeout) {
    done_.clear();
    epoll_event events[64];
    const int count = ::epoll_wait(epoll_.get(), events, 64, static_cast<int>(timeout.count()));
    for (int n = 0; n < count; ++n) {
      Connection& connection = connections_[events[n].data.u64];
      char bytes[65536];
      const ssize_t got = ::recv(connection.fd.get(), bytes, sizeof bytes, 0);
      if (got <= 0) fail("recv");
      connection.received.append(bytes, static_cast<std::size_t>(got));
      if (!is_complete(connection.received)) continue;
      connection.received.clear();
      --under_way_;
      latencies_.push_back(clock_.now() - connection.due);
      done_.push_back(events[n].data.u64);
    }
    return done_;
  }

  static bool is_complete(const std::string& text) {
    const std::size_t head = text.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    if (text.compare(9, 3, "200") != 0) fail("an answer that is no 200");
    const std::size_t length = text.find("Content-Length: ");
    return text.size() >= head + 4 + std::strtoul(text.c_str() + length + 16, nullptr, 10);
  }

  Figures figures(std::string name) {
    const double per_s = static_cast<double>(latencies_.size()) / to_seconds(clock_.now() - began_);
    return {std::move(name), per_s, percentile_us(latencies_, 0.5), percentile_us(latencies_, 0.99),
            percentile_us(lags_, 0.99)};
  }

  const std::string request_;
  MonotonicClock clock_;
  UniqueFd epoll_;
  std::vector<Connection> connections_;
  std::vector<std::size_t> free_, done_;
  std::size_t under_way_ = 0;
  std::vector<Duration> latencies_, lags_;
  Instant began_{}, end_{}, freed_{};
};

void print(const Figures& figures, std::FILE* json) {
  std::printf("%-24s %9.0f requests/s   p50 %8.1f us   p99 %8.1f us   lag p99 %8.1f us\n",
              figures.name.c_str(), figures.per_s, figures.p50_us, figures.p99_us, figures.lag_p99_us);
  if (json == nullptr) return;
  const auto line = [&](const char* what, double ours, const char* unit) {
    std::fprintf(
        json,
        "{\"bench\": \"http\", \"case\": \"%s: %s\", \"ours\": %.1f, \"peer\": null, \"peer_name\": null, "
        "\"ratio\": null, \"unit\": \"%s\"}\n",
        figures.name.c_str(), what, ours, unit);
  };
  line("throughput", figures.per_s, "requests/s");
  line("p50", figures.p50_us, "us");
  line("p99", figures.p99_us, "us");
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (++i == argc) return false;
    if (word == "--seconds")
      options.seconds = std::atof(argv[i]);
    else if (word == "--json")
      options.json = argv[i];
    else if (word == "--threads")
      options.threads = std::atoi(argv[i]);
    else if (word == "--bytes")
      options.bytes = std::strtoul(argv[i], nullptr, 10);
    else
      return false;
  }
  return options.seconds > 0 && options.threads > 0;
}

void run(const Options& options) {
  std::FILE* json = options.json.empty() ? nullptr : std::fopen(options.json.c_str(), "w");
  if (json == nullptr && !options.json.empty()) {
    std::perror(options.json.c_str());
    std::exit(1);
  }
  Server server({.port = 0, .threads = options.threads}, [](Request request, Answer answer) {
    answer({.content_type = "application/octet-stream", .body = std::move(request.body)});
  });
  const int port = server.address().port;
  const std::string request =
      "POST /v1/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
      "Content-Length: " +
      std::to_string(options.bytes) + "\r\n\r\n" + std::string(options.bytes, 'x');
  double most = 0;
  for (const std::size_t connections : {1, 8, 64}) {
    Client client(port, connections, request);
    (void)client.closed_loop(std::min(0.5, options.seconds));  // warm
    Client measured(port, connections, request);
    const Figures figures = measured.closed_loop(options.seconds);
    print(figures, json);
    most = std::max(most, figures.per_s);
  }
  print(Client::new_connections(port, 64, request, options.seconds), json);
  for (const double share : {0.5, 0.7, 0.9}) {
    Client client(port, 64, request);
    print(client.open_loop(options.seconds, share * most), json);
  }
  server.drain(milliseconds(2000));
  if (json != nullptr) std::fclose(json);
}

}  // namespace
}  // namespace troupe::http

int main(int argc, char** argv) {
  troupe::http::Options options;
  if (!troupe::http::parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: bench_http [--seconds S] [--threads N] [--bytes B] [--json FILE]\n");
    return 2;
  }
  troupe::http::run(options);
}
