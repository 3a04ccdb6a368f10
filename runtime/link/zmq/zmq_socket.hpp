/// What both ends of a link between hosts share: a socket with the limits of the design, its monitor, and
/// ZeroMQ frames. Internal to zmq/.
///
/// A ZeroMQ frame holds one or more packets (fragment.hpp), each with its length, u32 little-endian, before
/// it. Small messages that wait together go in one frame of about 64 KiB: ZeroMQ's and CURVE's costs are by
/// the frame.
#pragma once

#include <cstddef>
#include <string>
#include <zmq.hpp>

#include "runtime/core/clock.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/link/fragment.hpp"
#include "runtime/security/curve_keys.hpp"

namespace troupe::zmq_link {

/// A connection ends on which the other host's kernel is silent for so long, asked every second.
inline constexpr Duration kSilence = std::chrono::seconds(6);
inline constexpr int kKeepaliveSeconds = 1;
inline constexpr int kKeepaliveProbes = 5;
inline constexpr Duration kHandshakeTimeout = std::chrono::seconds(5);
/// What a link may take to say its last words when it is destroyed.
inline constexpr Duration kLinger = std::chrono::milliseconds(500);
/// A session in which a message has begun and nothing more of it comes for so long ends.
inline constexpr Duration kJoinTimeout = std::chrono::seconds(30);
/// How soon a peer whose pipe was full is tried again, should ZeroMQ not tell that it has room.
inline constexpr Duration kBlockedRetry = std::chrono::milliseconds(10);
/// How many frames a member reads before others have their turn.
inline constexpr int kFramesATurn = 256;

/// The longest ZeroMQ frame, in its handshake too; CURVE's own header is within.
inline constexpr std::size_t kMaxZmqFrameBytes = std::size_t{1} << 20;
inline constexpr std::size_t kLengthBytes = 4;
inline constexpr std::size_t kMaxPacketBytes = kMaxZmqFrameBytes - 1024;
inline constexpr std::size_t kBatchBytes = 64 * 1024;
/// Frames that ZeroMQ queues, a direction and peer.
inline constexpr int kZmqQueuedFrames = 32;

/// As libzmq takes durations: rounded up, so that a short wait is no busy one.
constexpr int millis(Duration duration) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

/// Limits, keepalive and our own CURVE keys. The caller adds what makes it a server or a client.
void set_common_options(zmq::socket_t& socket, const CurveKeyPair& keys);
/// "tcp://host:port", or "tcp://[v6]:port".
std::string to_zmq_address(const Endpoint& endpoint);

/// Appends a packet and its length to what is to be a frame.
void append_packet(wire::Bytes& frame, const Packet& packet);
void append_packet(wire::Bytes& frame, wire::ByteView packet);
/// A frame with that packet alone.
wire::Bytes frame_of(wire::ByteView packet);
/// Takes the first packet off `frame`. False when there is no whole one.
bool next_packet(wire::ByteView& frame, wire::ByteView& packet);

/// Sends one frame, without blocking. 0, or the errno (EAGAIN: full; EHOSTUNREACH: peer gone), and the frame
/// is as it was. `routing_id` names the peer of a ROUTER and is null otherwise.
int send_frame(zmq::socket_t& socket, const std::string* routing_id, wire::Bytes& frame);

/// The events of one socket. Used by the thread that owns the socket.
///
/// Invariant: whoever writes an event has a reader. libzmq's one I/O thread waits without a deadline to write
/// an event, and every connection of the process with it. So the reader takes any number, and its end stops
/// the events first.
class Monitor {
 public:
  /// REQUIRES: `socket` is neither bound nor connected, and is closed after the monitor.
  Monitor(zmq::context_t& context, zmq::socket_t& socket, int events);
  ~Monitor();
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
  zmq::socket_t& socket() noexcept { return pair_; }

 private:
  bool next(Event& event);

  zmq::socket_t& watched_;
  zmq::socket_t pair_;
};

}  // namespace troupe::zmq_link
