#include "runtime/node/event_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/core/error.hpp"

namespace troupe {
namespace {

Instant now() {
  return MonotonicClock().now();
}
constexpr int kIdleMs = 1000;
constexpr int kPostedATurn = 256;

/// What epoll keeps for us: the descriptor, and which watch of it this is.
std::uint64_t tag(int fd, std::uint32_t generation) {
  return (std::uint64_t{generation} << 32) | static_cast<std::uint32_t>(fd);
}

}  // namespace

EventLoop::EventLoop()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) throw_error(io_error("cannot make an event loop", errno, "raise ulimit -n"));
  watch(wake_.get(), [this](bool, bool, bool) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
    run_posted();
  });
}

void EventLoop::watch(int fd, OnEvents callback) {
  watched_[fd] = {++generation_, std::make_shared<OnEvents>(std::move(callback))};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag(fd, generation_);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw_error(io_error("cannot watch a descriptor", errno));
}

void EventLoop::watch_writable(int fd, bool on) {
  const auto at = watched_.find(fd);
  if (at == watched_.end()) return;
  epoll_event event{};
  event.events = EPOLLIN | (on ? EPOLLOUT : 0U);
  event.data.u64 = tag(fd, at->second.generation);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::forget(int fd) {
  if (watched_.erase(fd) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::every(Duration period, Callback callback) {
  timers_.push_back(std::make_shared<Timer>(Timer{now() + period, period, std::move(callback)}));
}

void EventLoop::after(Duration delay, Callback callback) {
  timers_.push_back(std::make_shared<Timer>(Timer{now() + delay, Duration::zero(), std::move(callback)}));
}

void EventLoop::post(Callback work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  wake();
}

void EventLoop::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void EventLoop::run_posted() {
  for (int i = 0; i < kPostedATurn && !stopping_; ++i) {
    Callback work;
    {
      const std::lock_guard lock(mutex_);
      if (posted_.empty()) return;
      work = std::move(posted_.front());
      posted_.pop_front();
    }
    work();
  }
  wake();  // there may be more
}

int EventLoop::run_timers() {
  const auto timers = timers_;  // a callback may add more
  for (const auto& timer : timers) {
    if (timer->due > now()) continue;
    timer->due = timer->period > Duration::zero() ? now() + timer->period : Duration::max();
    timer->callback();
  }
  std::erase_if(timers_, [](const auto& timer) { return timer->due == Duration::max(); });
  Duration wait = std::chrono::milliseconds(kIdleMs);
  for (const auto& timer : timers_) wait = std::min(wait, timer->due - now());
  return static_cast<int>(std::max(Duration::zero(), wait) / std::chrono::milliseconds(1)) + 1;
}

bool EventLoop::run() {
  paused_ = false;
  std::vector<epoll_event> events(64);
  while (!stopping_ && !paused_) {
    const int timeout_ms = run_timers();
    if (stopping_ || paused_) break;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    for (int i = 0; i < count && !stopping_; ++i) {
      const auto at = watched_.find(static_cast<int>(events[i].data.u64 & 0xffffffffU));
      const auto generation = static_cast<std::uint32_t>(events[i].data.u64 >> 32);
      // Forgotten by an earlier callback; or its number belongs to another descriptor by now.
      if (at == watched_.end() || at->second.generation != generation) continue;
      const auto callback = at->second.callback;
      const auto bits = events[i].events;
      (*callback)((bits & EPOLLIN) != 0, (bits & EPOLLOUT) != 0, (bits & (EPOLLHUP | EPOLLERR)) != 0);
    }
  }
  return stopping_;
}

}  // namespace troupe
