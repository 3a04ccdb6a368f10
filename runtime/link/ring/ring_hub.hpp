/// All rings of a process: a Link over shared memory to every process on this node that it talks to.
///
/// One thread at a time receives (the leader). Usually that is the hub's own thread; a thread that waits for
/// an answer takes the lead instead, so that a synchronous call needs no second wake-up. The leader spins a
/// little while messages come quickly and sleeps on the process's doorbell otherwise. It never waits for a
/// sender: no lock is held while somebody waits for room.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/core/fork_guard.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/host/call_state.hpp"
#include "runtime/link/link.hpp"
#include "runtime/link/ring/doorbell.hpp"
#include "runtime/link/ring/ring.hpp"

namespace troupe {

/// What a sender does when there is no room.
enum class SendMode {
  kWait,  ///< waits for it, for a minute at most
  kMust,  ///< leaves a copy, which is sent when there is room; for threads that must not wait
};

/// One ring pair, from one end. Opaque: RingHub's own.
struct RingChannel;
using RingChannelPtr = std::shared_ptr<RingChannel>;

/// Thread-safe.
class RingHub final : public Waiter {
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

  RingHub(NodeId node, Doorbell bell, Handlers handlers);
  ~RingHub() override;

  /// The hub's thread ends: nothing is received any more but by threads that wait.
  void stop();

  int doorbell_fd() const { return bell_.fd(); }

  /// The channel to `peer`. What is sent before its memory is attached waits in it.
  RingChannelPtr open(ProcessId peer);
  /// Attaches the ring pair shared with `peer`, a process of `job`. `first` says which direction is ours to
  /// write.
  Result<void> attach(ProcessId peer, JobId job, SharedMemory memory, Doorbell peer_bell, bool first);
  bool is_attached(ProcessId peer) const;
  /// The peer is dead: senders stop waiting for it, and what it had written whole is still delivered.
  void close(ProcessId peer);

  /// Sends one message of any size. kFull: no room in a minute (kWait alone).
  Sent send(RingChannel& channel, const wire::FrameHeader& header, wire::ByteView body, SendMode mode);
  /// What waits to be sent there.
  std::size_t queued_bytes(const RingChannel& channel) const;

  void wait(const std::function<bool()>& done, std::atomic<std::uint32_t>& word,
            std::atomic<std::uint32_t>& sleepers, Instant deadline) override;
  void nudge() override { bell_.ring(); }

  /// Sleeps of waiting threads that ran out while there was something to do. Each is a wake-up that got lost.
  std::uint64_t late_wakeups() const { return late_wakeups_; }

 private:
  using Channels = std::vector<RingChannelPtr>;

  void run();
  bool try_lead();
  void stop_leading();
  /// Delivers what is there; true when there was something.
  bool receive_some();
  bool receive_from(RingChannel& channel);
  void refresh_polled();
  bool anything_waiting();
  bool flush_queued(RingChannel& channel);
  /// Polls until `done` or until nothing came for the spin time; true when done.
  bool spin(const std::function<bool()>& done);

  const ForkGuard fork_guard_;
  const NodeId node_;
  Doorbell bell_;
  const Handlers handlers_;
  mutable std::mutex mutex_;  ///< guards channels_
  std::unordered_map<ProcessId, RingChannelPtr> channels_;
  std::atomic<std::uint64_t> version_{0};  ///< changes with channels_ and with what is attached
  std::atomic<bool> leading_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int> waiters_{0};  ///< threads in wait
  std::atomic<int> queues_{0};   ///< channels with queued messages
  std::atomic<std::uint64_t> late_wakeups_{0};

  // The leader's own.
  Channels polled_;
  std::uint64_t polled_version_ = ~std::uint64_t{0};
  Duration spin_time_{};
  Instant last_message_{};

  std::thread thread_;
};

}  // namespace troupe
