/// All rings of a process: one pair for every process on this node that it talks to.
///
/// One thread at a time receives (the leader). Usually that is the hub's own thread; a thread that waits for
/// an answer takes the lead instead, so that a synchronous call needs no second wake-up. The receiver spins a
/// little while messages come quickly and sleeps on the process's doorbell otherwise.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/host/call_state.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/link/ring/doorbell.hpp"
#include "runtime/link/ring/ring.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe {

class RingHub final : public Waiter {
 public:
  /// What came over a ring: called by the leader, one message at a time.
  using OnMessage = std::function<void(ProcessId from, const wire::FrameHeader&, wire::ByteView body)>;
  /// Called by the leader after a run of messages.
  using OnIdle = std::function<void()>;

  RingHub(transport::Doorbell bell, OnMessage on_message, OnIdle on_idle);
  ~RingHub() override;

  int doorbell_fd() const { return bell_.fd(); }

  /// Adds the ring pair shared with `peer`. `first` says which direction is ours to write.
  Result<void> add(ProcessId peer, SharedMemory memory, transport::Doorbell peer_bell, bool first);
  bool has(ProcessId peer) const;
  /// The peer is dead: senders stop waiting for it, and what it had written whole is still delivered.
  void remove(ProcessId peer);

  /// Sends one message of any size. A thread that receives never waits (what does not fit is kept and sent
  /// later); others wait for room, for 30 s at most. False when there is no such peer, or it died or stopped
  /// reading.
  bool send(ProcessId peer, const wire::FrameHeader& header, wire::ByteView body);

  void wait(const std::function<bool()>& done, std::atomic<std::uint32_t>& word,
            std::atomic<std::uint32_t>& sleepers, Instant deadline) override;
  void nudge() override { bell_.ring(); }

  /// Sleeps of waiting threads that ran out while there was something to do. Each is a wake-up that got lost.
  std::uint64_t late_wakeups() const { return late_wakeups_; }

 private:
  struct Channel;
  using Channels = std::vector<std::shared_ptr<Channel>>;

  void run();
  bool try_lead();
  void stop_leading();
  /// Delivers what is there; true when there was something.
  bool receive_some();
  bool receive_from(Channel& channel);
  bool anything_waiting();
  bool flush(Channel& channel);
  bool write_fragment(Channel& channel, wire::ByteView head, wire::ByteView part);
  /// Polls until `done` or until nothing came for the spin time; true when done.
  bool spin(const std::function<bool()>& done);
  std::shared_ptr<Channel> find(ProcessId peer) const;

  transport::Doorbell bell_;
  const OnMessage on_message_;
  const OnIdle on_idle_;
  mutable std::mutex mutex_;  ///< guards channels_
  std::unordered_map<ProcessId, std::shared_ptr<Channel>> channels_;
  std::atomic<std::uint64_t> version_{0};  ///< changes with channels_
  std::atomic<bool> leading_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int> waiters_{0};      ///< threads in wait
  std::atomic<int> overflowing_{0};  ///< channels with kept fragments
  std::atomic<std::uint64_t> late_wakeups_{0};

  // The leader's own.
  Channels polled_;
  std::uint64_t polled_version_ = ~std::uint64_t{0};
  Duration spin_time_{};
  Instant last_message_{};
  wire::Assembler assembler_;

  std::thread thread_;
};

}  // namespace troupe
