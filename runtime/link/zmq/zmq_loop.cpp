#include "runtime/link/zmq/zmq_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/core/quiet_thread.hpp"
#include "runtime/core/thread_limit.hpp"

namespace troupe::zmq_link {
namespace {

constexpr int kEventsATurn = 64;
// A process has three ZeroMQ sockets for each host that it is connected to; the default of 1,023 is soon
// full.
constexpr int kMaxSockets = 32768;
constexpr std::size_t kThreadsOfZmq = 4;  ///< without which it aborts

int descriptor_of(zmq::socket_t& socket) {
  return socket.get(zmq::sockopt::fd);
}

void add_to(int epoll, int fd, void* data) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = data;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) throw zmq::error_t();
}

}  // namespace

Result<std::unique_ptr<ZmqLoop>> ZmqLoop::start(const Clock& clock) {
  if (auto enough = check_descriptor_limit(); !enough) return enough.error();
  if (auto enough = check_thread_limit(kThreadsOfZmq); !enough) return enough.error();
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll || !wake)
    return io_error("cannot create a descriptor for links between hosts", errno, "raise ulimit -n");
  try {
    std::unique_ptr<ZmqLoop> loop(new ZmqLoop(clock, std::move(epoll), std::move(wake)));
    // ZAP fails open: its handler is there before anything can be bound.
    auto zap = ZapHandler::start(loop->context_);
    if (!zap) return zap.error();
    loop->zap_ = std::move(*zap);
    loop->zap_fd_ = loop->zap_->fd();
    add_to(loop->epoll_.get(), loop->zap_fd_, &loop->zap_fd_);
    add_to(loop->epoll_.get(), loop->wake_.get(), &loop->wake_);
    loop->thread_ = start_quiet_thread([l = loop.get()] { l->run(); });
    return loop;
  } catch (const zmq::error_t& error) {
    return ErrorInfo{ErrorCode::kIo, "cannot start ZeroMQ", error.what(), "raise ulimit -n"};
  } catch (const Error& error) {
    return error.info();
  }
}

ZmqLoop::ZmqLoop(const Clock& clock, UniqueFd epoll, UniqueFd wake)
    : clock_(clock), epoll_(std::move(epoll)), wake_(std::move(wake)) {
  context_.set(zmq::ctxopt::max_sockets, kMaxSockets);
}

ZmqLoop::~ZmqLoop() {
  {
    const std::lock_guard lock(mutex_);
    TROUPE_ASSERT(members_.empty(), "a transport outlives its links");
    stop_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void ZmqLoop::add(LoopMember& member) {
  {
    const std::lock_guard lock(mutex_);
    members_.insert(&member);
  }
  ready(member);
}

void ZmqLoop::leave(LoopMember& member) {
  TROUPE_ASSERT(!is_this_thread(), "a handler must not destroy a link");
  std::unique_lock lock(mutex_);
  if (!members_.contains(&member))
    return;  // it ended in a turn of its own: the loop must not hear of it again
  if (note(member)) wake();
  // No deadline of its own: the member's last words have one.
  left_.wait(lock, [&] { return !members_.contains(&member); });
}

void ZmqLoop::ready(LoopMember& member) {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    wakes = note(member);
  }
  if (wakes) wake();
}

bool ZmqLoop::note(LoopMember& member) {
  if (std::exchange(member.is_ready_, true)) return false;
  ready_.push_back(&member);
  return std::exchange(sleeping_, false);
}

void ZmqLoop::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void ZmqLoop::watch(zmq::socket_t& socket, LoopMember& member) {
  add_to(epoll_.get(), descriptor_of(socket), &member);
}

void ZmqLoop::forget(zmq::socket_t& socket) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor_of(socket), nullptr);
}

void ZmqLoop::run() {
  for (;;) {
    const Instant now = clock_.now();
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      for (LoopMember* member : ready_) member->is_ready_ = false;
      turns_.insert(turns_.end(), ready_.begin(), ready_.end());
      ready_.clear();
    }
    while (!timers_.empty() && timers_.begin()->first <= now) {
      turns_.push_back(timers_.begin()->second);
      timers_.begin()->second->due_ = kNever;
      timers_.erase(timers_.begin());
    }
    give_turns(now);
    wait(clock_.now());
  }
}

/// Each member one turn, however often it was named.
void ZmqLoop::give_turns(Instant now) {
  if (std::exchange(zap_ready_, false)) zap_->serve();
  std::sort(turns_.begin(), turns_.end());
  turns_.erase(std::unique(turns_.begin(), turns_.end()), turns_.end());
  for (LoopMember* member : turns_) {
    const Instant next = member->turn(now);
    if (member->due_ != kNever) timers_.erase({member->due_, member});
    member->due_ = kNever;
    if (member->is_over()) {
      const std::lock_guard lock(mutex_);
      if (std::exchange(member->is_ready_, false)) std::erase(ready_, member);
      members_.erase(member);
      left_.notify_all();  // under the lock: the member is gone as soon as its owner sees it
    } else if (next != kNever) {
      member->due_ = next;
      timers_.insert({next, member});
    }
  }
  turns_.clear();
}

void ZmqLoop::wait(Instant now) {
  Duration timeout = std::chrono::hours(1);
  if (!timers_.empty()) timeout = std::max(timers_.begin()->first - now, Duration::zero());
  {
    const std::lock_guard lock(mutex_);
    if (!ready_.empty() || stop_) timeout = Duration::zero();
    sleeping_ = timeout > Duration::zero();
  }
  const auto millis =
      std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(timeout, std::chrono::hours(1)));
  std::array<epoll_event, kEventsATurn> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsATurn, static_cast<int>(millis.count()));
  {
    const std::lock_guard lock(mutex_);
    sleeping_ = false;
  }
  for (int i = 0; i < count; ++i) {
    void* const source = events[static_cast<std::size_t>(i)].data.ptr;
    if (source == &wake_) {
      std::uint64_t counted = 0;
      [[maybe_unused]] const ssize_t read = ::read(wake_.get(), &counted, sizeof counted);
    } else if (source == &zap_fd_) {
      zap_ready_ = true;
    } else {
      turns_.push_back(static_cast<LoopMember*>(source));
    }
  }
}

}  // namespace troupe::zmq_link
