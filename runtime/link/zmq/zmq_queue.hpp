/// What waits to be sent in one session: filled by any thread, emptied by the loop. Internal to zmq/.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <zmq.hpp>

#include "runtime/link/link.hpp"
#include "runtime/link/zmq/zmq_socket.hpp"

namespace troupe::zmq_link {

class SendQueue {
 public:
  /// A message is taken while less than `limit_bytes` wait.
  explicit SendQueue(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Thread-safe. Takes `frame` with kQueued alone; `wake`: the loop has to be told.
  Sent push(wire::Bytes&& frame, bool& wake);
  /// Refuses everything from now on, and forgets what waits. Thread-safe, but for pump().
  void close();

  // By the loop's thread alone:
  enum class Pumped {
    kAll,
    kBlocked,  ///< the pipe is full
    kMore,     ///< others have their turn first
    kBroken,   ///< the peer is gone; its event comes
  };
  Pumped pump(zmq::socket_t& socket, const std::string* routing_id);
  /// Whether somebody was told kFull and half of the queue is free again. True once.
  bool take_room();
  /// The number of the last message of which something was given to ZeroMQ.
  std::uint32_t sent_number() const { return sent_number_; }

 private:
  bool build_frame();
  void let_go(std::size_t bytes);

  const std::size_t limit_bytes_;

  // The loop's thread alone:
  std::deque<wire::Bytes> sending_;
  Cutter cutter_;             ///< of sending_.front(), once it is begun
  wire::Bytes frame_;         ///< built and not taken by ZeroMQ yet
  std::uint32_t number_ = 0;  ///< of the last message begun in frame_ or before
  std::uint32_t sent_number_ = 0;

  std::mutex mutex_;  ///< guards all below
  std::deque<wire::Bytes> waiting_;
  std::size_t bytes_ = 0;  ///< of waiting_ and sending_
  bool woken_ = false;
  bool refused_ = false;
  bool closed_ = false;
};

}  // namespace troupe::zmq_link
