/// The link between a process and its node: whole messages, with descriptors, over a Unix socket with
/// packets.
///
/// The socket pair is made before the process is started, so it has no name that anybody else could connect
/// to. The peer's credentials are checked all the same (peer_is_us).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/link/link.hpp"

namespace troupe {

/// The most descriptors a message may carry.
inline constexpr std::size_t kMaxMessageFds = 4;

/// One end. Any thread may send and flush; one thread receives. Nothing blocks. Movable before it is used.
///
/// The owner's loop reads while fd() is readable, and flushes when it is writable and wants_write(). With
/// epoll, watch for EPOLLOUT | EPOLLET from the beginning: then nobody needs to tell the loop that something
/// waits.
class SocketLink {
 public:
  SocketLink();
  explicit SocketLink(UniqueFd socket, std::size_t queue_bytes = kLinkQueueBytes);
  SocketLink(SocketLink&&) noexcept;
  SocketLink& operator=(SocketLink&&) noexcept;
  ~SocketLink();

  /// Both ends of a new link, close-on-exec. Errors: kIo.
  static Result<std::pair<SocketLink, SocketLink>> pair();

  /// Writes the message if nothing waits and the socket takes it, queues it otherwise. `fds` go with it; they
  /// are taken with kQueued alone. REQUIRES: fds.size() <= kMaxMessageFds.
  Sent send(const wire::FrameHeader& header, wire::ByteView body, std::vector<UniqueFd>&& fds = {});
  /// Whether something waits until the socket takes it.
  bool wants_write() const;
  /// Whether send() would not say kFull.
  bool has_room() const;
  /// Writes what waits, as far as the socket takes it.
  void flush();

  enum class Got {
    kMessage,
    kNothing,  ///< nothing whole is there now
    kClosed,   ///< and all that had arrived whole was received: why_closed()
  };
  Got receive(Message& message);

  /// Why the link closed; empty while it has not. The first reason counts.
  std::string why_closed() const;
  /// True when the peer runs under our own user id.
  bool peer_is_us() const;
  /// The process that connected, or made the pair. 0: not known.
  int peer_pid() const;
  int fd() const;
  /// For passing this end to a child. REQUIRES: not used as a link any more.
  UniqueFd& socket();
  /// Closes the link: tells the peer why if there is room, and wakes whoever polls. What waits is not sent.
  void shutdown(std::string_view reason = "it was shut down");

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
