#include "runtime/link/socket/first_exchange.hpp"

#include <poll.h>

#include <algorithm>

namespace troupe {
namespace {

constexpr Duration kSendTimeout = std::chrono::seconds(10);

/// Waits until `events` of the link, at most until `deadline`. False at the deadline. A signal wakes it
/// early: the caller looks again.
bool wait_for(const SocketLink& link, short events, Instant deadline) {
  const Duration left = deadline - MonotonicClock().now();
  if (left <= Duration::zero()) return false;
  pollfd wait{link.fd(), events, 0};
  ::poll(&wait, 1,
         static_cast<int>(
             std::chrono::ceil<std::chrono::milliseconds>(std::min(left, Duration(std::chrono::hours(1))))
                 .count()));
  return true;
}

}  // namespace

bool send_control(SocketLink& link, ProcessAddress from, const wire::Control& message,
                  std::vector<UniqueFd> fds) {
  wire::FrameHeader header;
  header.from = from;
  const wire::Bytes body = wire::encode_control(message, header);
  if (link.send(header, body, std::move(fds)) != Sent::kQueued) return false;
  const Instant deadline = MonotonicClock().now() + kSendTimeout;
  while (link.wants_write()) {
    if (!wait_for(link, POLLOUT, deadline)) return false;
    link.flush();
  }
  return link.why_closed().empty();
}

Result<ReceivedControl> receive_control(SocketLink& link, Duration timeout) {
  const std::string what = "the other end of a link did not answer";
  const Instant deadline = MonotonicClock().now() + timeout;
  Message message;
  for (;;) {
    const auto got = link.receive(message);
    if (got == SocketLink::Got::kMessage) break;
    if (got == SocketLink::Got::kClosed)
      return ErrorInfo{ErrorCode::kUnavailable, what, link.why_closed(), ""};
    if (!wait_for(link, POLLIN, deadline)) {
      return ErrorInfo{ErrorCode::kTimeout, what,
                       "nothing came within " + std::to_string(to_seconds(timeout)) + " s", ""};
    }
  }
  auto control = wire::decode_control(message.header, message.body);
  if (!control) return control.error();
  return ReceivedControl{*std::move(control), std::move(message.fds)};
}

}  // namespace troupe
