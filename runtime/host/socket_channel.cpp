#include "runtime/host/socket_channel.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/core/quiet_thread.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/link/socket/first_exchange.hpp"

namespace troupe {
namespace {

constexpr Duration kPulse = std::chrono::seconds(1);
/// Senders hold themselves back by windows; this bounds what all of them together may queue.
constexpr int kMessagesATurn = 256;
constexpr Duration kNodeReads = std::chrono::seconds(2);  ///< what is left at the end

}  // namespace

SocketChannel::SocketChannel(SocketLink link)
    : link_(std::move(link)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

SocketChannel::~SocketChannel() {
  stop();
}

void SocketChannel::start(ProcessAddress self, UniqueFd doorbell, Handlers handlers) {
  handlers_ = std::move(handlers);
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(doorbell));
  if (!send_control(link_, self, wire::Hello{}, std::move(fds))) {
    throw Unavailable(
        {ErrorCode::kUnavailable, "cannot reach this host's node", "it closed the link", "see its output"});
  }
  thread_ = start_quiet_thread([this] { run(); });
}

void SocketChannel::stop() {
  if (stopping_.exchange(true)) return;
  wake();
  if (!thread_.joinable()) return;
  thread_.join();
  send_rest();
  if (link_.why_closed().empty()) return;
  // A link that is closed touches its socket no more, whoever still sends.
  link_.socket().reset();
  const std::lock_guard lock(wake_mutex_);
  wake_.reset();
}

void SocketChannel::wake() {
  const std::lock_guard lock(wake_mutex_);
  const std::uint64_t one = 1;
  if (wake_) [[maybe_unused]]
    const auto written = ::write(wake_.get(), &one, sizeof one);
}

void SocketChannel::send_rest() {
  const MonotonicClock clock;
  const Instant until = clock.now() + kNodeReads;
  while ((link_.wants_write() || refused_) && clock.now() < until) {
    pollfd writable{link_.fd(), POLLOUT, 0};
    ::poll(&writable, 1, 100);
    link_.flush();
    if (!link_.wants_write() && refused_.exchange(false)) handlers_.on_room();
  }
}

Sent SocketChannel::send(const wire::FrameHeader& header, wire::ByteView body) {
  const Sent sent = link_.send(header, body);
  if (sent == Sent::kFull) refused_ = true;
  if (link_.wants_write()) wake();
  return sent;
}

void SocketChannel::run() {
  const NoWaitScope receives;
  const MonotonicClock clock;
  Instant next_pulse = clock.now() + kPulse;
  do {
    const auto left = std::max(Duration::zero(), next_pulse - clock.now());
    pollfd waits[2] = {{link_.fd(), static_cast<short>(POLLIN | (link_.wants_write() ? POLLOUT : 0)), 0},
                       {wake_.get(), POLLIN, 0}};
    ::poll(waits, 2, static_cast<int>(left / std::chrono::milliseconds(1)) + 1);
    std::uint64_t count = 0;
    if (waits[1].revents != 0) [[maybe_unused]]
      const auto got = ::read(wake_.get(), &count, sizeof count);
    if (clock.now() >= next_pulse) {
      next_pulse = clock.now() + kPulse;
      if (!handlers_.on_pulse()) return link_.shutdown("it gave no sign of life");
    }
    link_.flush();
    if (!link_.wants_write() && refused_.exchange(false)) handlers_.on_room();
  } while (!stopping_ && receive_all());
}

bool SocketChannel::receive_all() {
  for (int i = 0; i < kMessagesATurn && !stopping_; ++i) {
    Message message;
    const auto got = link_.receive(message);
    if (got == SocketLink::Got::kNothing) return true;
    if (got == SocketLink::Got::kClosed) {
      handlers_.on_closed(link_.why_closed());
      return false;
    }
    if (!handlers_.on_message(std::move(message))) {
      link_.shutdown("what it says does not decode");
      return false;
    }
  }
  return true;
}

}  // namespace troupe
