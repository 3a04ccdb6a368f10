#include "tests/simulation/rings.hpp"

#include "runtime/core/futex.hpp"
#include "tests/simulation/hosted.hpp"
#include "tests/simulation/pipe.hpp"

namespace troupe::sim {

struct SimRings::Channel final : RingChannel {
  explicit Channel(ProcessId to) : peer(to) {}
  const ProcessId peer;
  JobId job;
  std::shared_ptr<RingMemory> memory;
  int other = 0;  ///< the peer's end
  bool closed = false;
  std::deque<Message> queue;
  std::size_t queued = 0;
};

SimRings::ChannelPtr SimRings::channel_to(ProcessId peer) {
  auto& at = channels_[peer];
  if (at == nullptr) at = std::make_shared<Channel>(peer);
  return at;
}

RingChannelPtr SimRings::open(ProcessId peer) {
  return channel_to(peer);
}

bool SimRings::is_attached(ProcessId peer) const {
  const auto at = channels_.find(peer);
  return at != channels_.end() && at->second->memory != nullptr;
}

Result<void> SimRings::attach(const wire::RingOffer& offer, std::vector<UniqueFd> /*fds*/) {
  const auto channel = channel_to(offer.peer);
  if (channel->memory != nullptr) return {};
  channel->memory = find_(offer.peer);
  channel->other = offer.first ? 1 : 0;
  channel->job = offer.job;
  channel->memory->ends[1 - channel->other].rings = this;
  flush(*channel);
  read(*channel);
  return {};
}

/// Ringing an end that has not attached yet wakes nobody: it reads when it attaches.
void SimRings::ring(Channel& channel, const char* label) {
  auto& end = channel.memory->ends[channel.other];
  const ProcessId me = channel.memory->ends[1 - channel.other].id;
  world_.send(self_, *end.process, label, [memory = channel.memory, other = channel.other, me] {
    SimRings* rings = memory->ends[other].rings;
    if (rings == nullptr) return;
    const auto at = rings->channels_.find(me);
    if (at == rings->channels_.end() || at->second->memory != memory) return;
    const auto there = at->second;
    rings->flush(*there);
    rings->read(*there);
  });
}

bool SimRings::write(Channel& channel, const Message& message) {
  auto& end = channel.memory->ends[channel.other];
  if (end.bytes >= channel.memory->capacity) return false;
  end.bytes += wire::kHeaderBytes + message.body.size();
  end.incoming.push_back({message.header, message.body, {}});
  ring(channel, label_of(message.header));
  return true;
}

Sent SimRings::send(RingChannel& opaque, const wire::FrameHeader& header, wire::ByteView body,
                    SendMode /*mode*/) {
  auto& channel = static_cast<Channel&>(opaque);
  if (channel.closed || stopped_ || !self_.alive) return Sent::kClosed;
  if (dynamic_cast<Hosted&>(self_).answers_itself(header)) return Sent::kQueued;
  Message message{header, {body.begin(), body.end()}, {}};
  if (channel.memory != nullptr && channel.queue.empty() && write(channel, message)) return Sent::kQueued;
  channel.queued += wire::kHeaderBytes + body.size();
  channel.queue.push_back(std::move(message));
  return Sent::kQueued;
}

std::size_t SimRings::queued_bytes(const RingChannel& channel) const {
  return static_cast<const Channel&>(channel).queued;
}

void SimRings::flush(Channel& channel) {
  bool any = false;
  while (!channel.queue.empty() && write(channel, channel.queue.front())) {
    channel.queued -= wire::kHeaderBytes + channel.queue.front().body.size();
    channel.queue.pop_front();
    any = true;
  }
  if (any) handlers_.on_drained(channel.peer);
}

void SimRings::read(Channel& channel) {
  auto& mine = channel.memory->ends[1 - channel.other];
  if (mine.incoming.empty() || stopped_) return;
  const bool was_full = mine.bytes >= channel.memory->capacity;
  while (!mine.incoming.empty()) {
    Message message = std::move(mine.incoming.front());
    mine.incoming.pop_front();
    mine.bytes -= wire::kHeaderBytes + message.body.size();
    if (message.header.from.process != channel.peer || message.header.job != channel.job)
      world_.violation(self_.name + " reads a frame in another's name from its ring");
    handlers_.on_message(std::move(message));
  }
  handlers_.on_idle();
  if (was_full && !channel.closed) ring(channel, "~room in the ring");
}

void SimRings::close(ProcessId peer) {
  const auto at = channels_.find(peer);
  if (at == channels_.end()) return;
  const ChannelPtr channel = at->second;
  channels_.erase(at);
  channel->closed = true;
  channel->queue.clear();
  channel->queued = 0;
  if (channel->memory == nullptr) return;
  // What the peer had written whole is still delivered.
  world_.after(self_, world_.between(Duration{0}, microseconds(50)), "~last words",
               [this, channel] { read(*channel); });
}

/// No thread that waits receives: in the simulation that is an event of its own.
void SimRings::wait(const std::function<bool()>& done, std::atomic<std::uint32_t>& word,
                    std::atomic<std::uint32_t>& sleepers, Instant deadline) {
  const MonotonicClock clock;
  sleepers.fetch_add(1);
  for (Instant now = clock.now(); !done() && now < deadline; now = clock.now())
    futex_wait(word, 0, deadline - now);
  sleepers.fetch_sub(1);
}

}  // namespace troupe::sim
