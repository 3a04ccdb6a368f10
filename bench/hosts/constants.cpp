#include "bench/hosts/constants.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"

namespace bench {
namespace {

using troupe::UniqueFd;

constexpr int kRepeats = 2000;
constexpr int kSenders = 32;
constexpr int kIncasts = 100;
using Frame = std::array<char, 64>;

std::pair<UniqueFd, UniqueFd> connected() {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* at = reinterpret_cast<sockaddr*>(&address);
  UniqueFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.get(), at, length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), at, &length) != 0 || ::connect(one.get(), at, length) != 0) {
    throw std::runtime_error("cannot connect two sockets over the loopback interface");
  }
  UniqueFd other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const int yes = 1;
  for (const int fd : {one.get(), other.get()}) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return {std::move(one), std::move(other)};
}

double median_of(const std::function<void(std::vector<double>&)>& measure) {
  std::vector<double> all;
  measure(all);
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

double micros(troupe::Duration span) {
  return troupe::to_seconds(span) * 1e6;
}

/// Receives a whole frame without sleeping.
void take(int fd, Frame& frame) {
  std::size_t got = 0;
  while (got < frame.size()) {
    const ssize_t n = ::recv(fd, frame.data() + got, frame.size() - got, MSG_DONTWAIT);
    if (n > 0) got += static_cast<std::size_t>(n);
    if (n == 0) throw std::runtime_error("a connection ended");
  }
}

}  // namespace

Constants measure_constants() {
  const troupe::MonotonicClock clock;
  Constants found;
  Frame frame{};
  {
    auto [one, other] = connected();
    std::vector<double> receives;
    found.send = median_of([&](auto& all) {
      for (int i = 0; i < kRepeats; ++i) {
        const auto begun = clock.now();
        (void)::send(one.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
        const auto sent = clock.now();
        take(other.get(), frame);
        all.push_back(micros(sent - begun));
        receives.push_back(micros(clock.now() - sent));
      }
    });
    found.receive = median_of([&](auto& all) { all = receives; });
    const UniqueFd watch(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
    ::epoll_ctl(watch.get(), EPOLL_CTL_ADD, one.get(), &event);
    found.poll = median_of([&](auto& all) {
      for (int i = 0; i < kRepeats; ++i) {
        const auto begun = clock.now();
        ::epoll_wait(watch.get(), &event, 1, 0);
        all.push_back(micros(clock.now() - begun));
      }
    });
    std::thread echo([&, fd = other.get()] {
      Frame mine{};
      for (int i = 0; i < kRepeats; ++i) {
        take(fd, mine);
        ::send(fd, mine.data(), mine.size(), MSG_NOSIGNAL);
      }
    });
    found.hop = median_of([&](auto& all) {
      for (int i = 0; i < kRepeats; ++i) {
        const auto begun = clock.now();
        ::send(one.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
        take(one.get(), frame);
        all.push_back(micros(clock.now() - begun) / 2);
      }
    });
    echo.join();
  }
  std::vector<std::pair<UniqueFd, UniqueFd>> pairs;
  for (int i = 0; i < kSenders; ++i) pairs.push_back(connected());
  std::atomic<int> turn{0};  // the sender's is each odd one
  std::thread sender([&] {
    for (int i = 0; i < kIncasts; ++i) {
      while (turn.load() != 2 * i + 1) std::this_thread::yield();
      for (auto& pair : pairs) (void)::send(pair.first.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
    }
  });
  found.incast = median_of([&](auto& all) {
    for (int i = 0; i < kIncasts; ++i) {
      Frame mine{};
      const auto begun = clock.now();
      ++turn;
      for (auto& pair : pairs) take(pair.second.get(), mine);
      all.push_back(micros(clock.now() - begun));
      ++turn;
    }
  });
  sender.join();
  return found;
}

}  // namespace bench
