/// The way to this host's node, below NodeLink: ordered, whole messages (link.hpp), a thread that receives
/// them, and the time. SocketChannel is the real one; a simulation has its own.
#pragma once

#include <functional>
#include <string>

#include "runtime/link/link.hpp"

namespace troupe {

/// Thread-safe.
class NodeChannel {
 public:
  /// All run in one thread, which receives and must not wait.
  struct Handlers {
    /// False: it makes no sense, and nothing more is received.
    std::function<bool(Message)> on_message;
    std::function<void()> on_room;  ///< after a send was refused with kFull
    /// Every second, after all that has come: a sign of life is due. False: the node is given up, and the
    /// link closed.
    std::function<bool()> on_pulse;
    std::function<void(const std::string& why)> on_closed;  ///< once, after the last message
  };
  virtual ~NodeChannel() = default;

  /// Says hello, with the process's doorbell where there is one, and begins to receive. Throws Unavailable
  /// when the link is dead.
  virtual void start(ProcessAddress self, UniqueFd doorbell, Handlers handlers) = 0;
  /// No handler runs any more.
  virtual void stop() = 0;
  virtual Sent send(const wire::FrameHeader& header, wire::ByteView body) = 0;
};

}  // namespace troupe
