/// What the two ends of a machine link share: a socket with the limits of the design, its monitor and the
/// descriptor that wakes its thread. Internal to machine_link.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "runtime/core/clock.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/security/curve_keys.hpp"
#include "runtime/link/zmq/chunk.hpp"

namespace troupe::zmq_link {

inline constexpr Duration kHeartbeatInterval = std::chrono::seconds(1);
inline constexpr Duration kHeartbeatTimeout = std::chrono::seconds(6);
inline constexpr Duration kHandshakeTimeout = std::chrono::seconds(5);
/// What a link may take to say its last words when it is destroyed.
inline constexpr Duration kLinger = std::chrono::milliseconds(500);
/// A message of which nothing arrives for so long is dropped.
inline constexpr Duration kReassemblyTimeout = std::chrono::seconds(30);
/// How soon a peer whose pipe was full is tried again: a ROUTER does not tell when it has room.
inline constexpr Duration kBlockedRetry = std::chrono::milliseconds(2);

/// As libzmq takes durations: rounded up, so that a short wait is no busy one.
constexpr int millis(Duration duration) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

/// Limits, heartbeats and our own CURVE keys. The caller adds what makes it a server or a client.
void set_common_options(zmq::socket_t& socket, const CurveKeyPair& keys);
/// "tcp://host:port", or "tcp://[v6]:port".
std::string to_zmq_address(const Endpoint& endpoint);

/// Sends `chunk` as one frame, without blocking. 0, or the errno (EAGAIN: full; EHOSTUNREACH: peer gone).
/// `routing_id` names the peer of a ROUTER and is null otherwise.
int send_chunk(zmq::socket_t& socket, const std::string* routing_id, const Chunk& chunk);

/// The events of one socket. Used by the thread that owns the socket.
class Monitor {
 public:
  /// REQUIRES: `socket` is neither bound nor connected.
  Monitor(zmq::context_t& context, zmq::socket_t& socket, int events);
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  struct Event {
    int kind = 0;   ///< ZMQ_EVENT_...
    int value = 0;  ///< descriptor, errno or protocol error, by kind
  };
  /// Calls `handle` for every event that is there.
  template <class Handle>
  void drain(Handle handle) {
    Event event;
    while (next(event)) handle(event);
  }
  void* handle() noexcept { return pair_.handle(); }

 private:
  bool next(Event& event);

  zmq::socket_t pair_;
};

/// Wakes a thread that polls.
class WakeFd {
 public:
  static Result<WakeFd> create();
  /// Thread-safe.
  void ring() noexcept;
  void clear() noexcept;
  int fd() const noexcept { return fd_.get(); }

 private:
  explicit WakeFd(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace troupe::zmq_link
