/// What a process needs of its rings, whatever they are made of: RingHub's are shared memory, a simulation
/// has its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/ids.hpp"
#include "runtime/host/call_state.hpp"
#include "runtime/link/link.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// What a sender does when there is no room.
enum class SendMode {
  kWait,  ///< waits for it, for a minute at most
  kMust,  ///< leaves a copy, which is sent when there is room; for threads that must not wait
};

/// One ring pair, from one end. Opaque: its Rings' own.
struct RingChannel {
  RingChannel() = default;
  virtual ~RingChannel() = default;
  RingChannel(const RingChannel&) = delete;
  RingChannel& operator=(const RingChannel&) = delete;
};
using RingChannelPtr = std::shared_ptr<RingChannel>;

/// Thread-safe.
class Rings : public Waiter {
 public:
  struct Handlers {
    /// What came over a ring: called by the leader, a message at a time. The frame's sender and job are those
    /// of the ring's other end: a peer that says otherwise loses its ring.
    std::function<void(Message)> on_message;
    /// Called by the leader after a run of messages.
    std::function<void()> on_idle;
    /// Called by the leader: less than before waits to be sent to `peer`.
    std::function<void(ProcessId peer)> on_drained;
    /// The peer broke the ring's format, or spoke in another's name; nothing more is read from it.
    std::function<void(ProcessId peer, const std::string& why)> on_broken;
  };

  /// Nothing is received any more but by threads that wait.
  virtual void stop() = 0;
  /// The same without waiting for what receives now: a light actor may compute there for long.
  virtual void begin_stop() = 0;
  /// For the hello; once. Without a descriptor: there is none.
  virtual UniqueFd take_doorbell() = 0;

  /// The channel to `peer`. What is sent before its memory is attached waits in it.
  virtual RingChannelPtr open(ProcessId peer) = 0;
  /// Attaches the ring pair that the node offers; `fds` came with the offer.
  virtual Result<void> attach(const wire::RingOffer& offer, std::vector<UniqueFd> fds) = 0;
  virtual bool is_attached(ProcessId peer) const = 0;
  /// The peer is dead: senders stop waiting for it, and what it had written whole is still delivered.
  virtual void close(ProcessId peer) = 0;

  /// Sends one message of any size. kFull: no room in a minute (kWait alone).
  virtual Sent send(RingChannel& channel, const wire::FrameHeader& header, wire::ByteView body,
                    SendMode mode) = 0;
  /// What waits to be sent there.
  virtual std::size_t queued_bytes(const RingChannel& channel) const = 0;
};

}  // namespace troupe
