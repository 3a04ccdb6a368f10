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
#include "runtime/link/ring/doorbell.hpp"
#include "runtime/link/ring/ring.hpp"
#include "runtime/link/ring/rings.hpp"

namespace troupe {

/// Thread-safe.
class RingHub final : public Rings {
 public:
  RingHub(NodeId node, Doorbell bell, Handlers handlers);
  ~RingHub() override;

  /// The hub's thread ends.
  void stop() override;
  void begin_stop() override;
  UniqueFd take_doorbell() override { return bell_.take_fd(); }

  RingChannelPtr open(ProcessId peer) override;
  Result<void> attach(const wire::RingOffer& offer, std::vector<UniqueFd> fds) override;
  /// Attaches the ring pair shared with `peer`, a process of `job`. `first` says which direction is ours to
  /// write.
  Result<void> attach(ProcessId peer, JobId job, SharedMemory memory, Doorbell peer_bell, bool first);
  bool is_attached(ProcessId peer) const override;
  void close(ProcessId peer) override;
  Sent send(RingChannel& channel, const wire::FrameHeader& header, wire::ByteView body,
            SendMode mode) override;
  std::size_t queued_bytes(const RingChannel& channel) const override;

  void wait(const std::function<bool()>& done, std::atomic<std::uint32_t>& word,
            std::atomic<std::uint32_t>& sleepers, Instant deadline) override;
  void nudge() override { bell_.ring(); }

  /// Sleeps of waiting threads that ran out while there was something to do. Each is a wake-up that got lost.
  std::uint64_t late_wakeups() const { return late_wakeups_; }

 private:
  struct Channel;
  using ChannelPtr = std::shared_ptr<Channel>;
  using Channels = std::vector<ChannelPtr>;

  ChannelPtr channel_to(ProcessId peer);
  void run();
  bool try_lead();
  void stop_leading();
  /// Delivers what is there; true when there was something.
  bool receive_some();
  bool receive_from(Channel& channel);
  bool refresh_polled();
  bool anything_waiting();
  bool flush_queued(Channel& channel);
  /// Polls until `done` or until nothing came for the spin time; true when done.
  bool spin(const std::function<bool()>& done);

  const ForkGuard fork_guard_;
  const NodeId node_;
  Doorbell bell_;
  const Handlers handlers_;
  mutable std::mutex mutex_;  ///< guards channels_
  std::unordered_map<ProcessId, ChannelPtr> channels_;
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
