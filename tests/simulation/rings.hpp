/// Rings of one simulated process: what a sender writes lies in memory at once; its reader sees it when it is
/// rung, and what finds no room waits at the sender.
#pragma once

#include <array>
#include <deque>
#include <map>

#include "runtime/link/ring/rings.hpp"
#include "tests/simulation/world.hpp"

namespace troupe::sim {

class SimRings;

/// The memory of a ring pair. Both ends map it; it outlives either.
struct RingMemory {
  std::size_t capacity = 0;
  struct End {
    Process* process = nullptr;
    ProcessId id;
    SimRings* rings = nullptr;     ///< once it has attached
    std::deque<Message> incoming;  ///< written for it, not read yet
    std::size_t bytes = 0;
  };
  std::array<End, 2> ends;
};

class SimRings final : public Rings {
 public:
  /// The memory behind an offer: what its descriptors are in production.
  using Find = std::function<std::shared_ptr<RingMemory>(ProcessId peer)>;
  SimRings(World& world, Process& self, Find find, Handlers handlers)
      : world_(world), self_(self), find_(std::move(find)), handlers_(std::move(handlers)) {}

  void stop() override { stopped_ = true; }
  void begin_stop() override { stop(); }
  UniqueFd take_doorbell() override { return {}; }
  RingChannelPtr open(ProcessId peer) override;
  Result<void> attach(const wire::RingOffer& offer, std::vector<UniqueFd> fds) override;
  bool is_attached(ProcessId peer) const override;
  void close(ProcessId peer) override;
  Sent send(RingChannel& channel, const wire::FrameHeader& header, wire::ByteView body,
            SendMode mode) override;
  std::size_t queued_bytes(const RingChannel& channel) const override;
  void wait(const std::function<bool()>& done, std::atomic<std::uint32_t>& word,
            std::atomic<std::uint32_t>& sleepers, Instant deadline) override;
  void nudge() override {}

 private:
  struct Channel;
  using ChannelPtr = std::shared_ptr<Channel>;
  ChannelPtr channel_to(ProcessId peer);
  bool write(Channel& channel, const Message& message);
  void flush(Channel& channel);
  void read(Channel& channel);
  void ring(Channel& channel, const char* label);

  World& world_;
  Process& self_;
  const Find find_;
  const Handlers handlers_;
  std::map<ProcessId, ChannelPtr> channels_;
  bool stopped_ = false;
};

}  // namespace troupe::sim
