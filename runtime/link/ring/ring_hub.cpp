#include "runtime/link/ring/ring_hub.hpp"

#include <sched.h>

#include <algorithm>
#include <deque>

#include "runtime/core/assert.hpp"
#include "runtime/core/short_slice.hpp"
#include "runtime/host/may_wait.hpp"

namespace troupe {
namespace {

constexpr Duration kLongestSpin = std::chrono::microseconds(50);
constexpr Duration kShortestSpin = std::chrono::microseconds(2);
constexpr Duration kQuickGap = std::chrono::microseconds(150);
constexpr Duration kSleep = std::chrono::milliseconds(200);
constexpr Duration kSendDeadline = std::chrono::seconds(60);
constexpr Duration kRoomSlice = std::chrono::microseconds(50);
constexpr int kPacketsATurn = 256;
constexpr unsigned kLeadTries = 50;

Instant now() {
  return MonotonicClock().now();
}

}  // namespace

struct RingHub::Channel final : RingChannel {
  /// A message that found no room, or not enough.
  struct Queued {
    wire::HeaderBytes head;
    wire::Bytes body;
    Cutter cutter;  ///< points into head and body
  };

  explicit Channel(ProcessId to) : peer(to) {}

  const ProcessId peer;
  std::atomic<bool> attached{false};  ///< set once, after all that it says is there
  std::atomic<bool> closed{false};
  JobId job;
  SharedMemory memory;
  Doorbell bell;
  // The leader's:
  RingReader in;
  Joiner joiner;
  // The senders':
  std::mutex mutex;  ///< guards what follows; never held by a thread that waits
  RingWriter out;
  std::uint32_t number = 0;  ///< of the last message that was begun or queued
  std::deque<std::unique_ptr<Queued>> queue;
  std::atomic<std::size_t> queued_bytes{0};

  /// Writes packets of `cutter` while there is room; true when all are written.
  bool write(Cutter& cutter) {
    for (; !cutter.done(); cutter.advance()) {
      if (!out.write(cutter.next())) return false;
    }
    return true;
  }
};

RingHub::RingHub(NodeId node, Doorbell bell, Handlers handlers)
    : node_(node), bell_(std::move(bell)), handlers_(std::move(handlers)), thread_([this] { run(); }) {}

RingHub::~RingHub() {
  stop();
}

void RingHub::stop() {
  begin_stop();
  if (thread_.joinable()) thread_.join();
}

void RingHub::begin_stop() {
  if (!stopping_.exchange(true)) bell_.wake_all();
}

RingHub::ChannelPtr RingHub::channel_to(ProcessId peer) {
  const std::lock_guard lock(mutex_);
  auto& at = channels_[peer];
  if (at == nullptr) at = std::make_shared<Channel>(peer);
  return at;
}

RingChannelPtr RingHub::open(ProcessId peer) {
  return channel_to(peer);
}

Result<void> RingHub::attach(const wire::RingOffer& offer, std::vector<UniqueFd> fds) {
  if (fds.size() != 2)
    return ErrorInfo{ErrorCode::kIo, "a ring came without its descriptors", "", "raise ulimit -n"};
  auto memory = SharedMemory::map(std::move(fds[0]), false);
  if (!memory) return memory.error();
  auto bell = Doorbell::map(std::move(fds[1]));
  if (!bell) return bell.error();
  return attach(offer.peer, offer.job, *std::move(memory), *std::move(bell), offer.first);
}

Result<void> RingHub::attach(ProcessId peer, JobId job, SharedMemory memory, Doorbell peer_bell, bool first) {
  if (memory.size() < 2 * kRingBytes) {
    return ErrorInfo{ErrorCode::kRefused, "refused a ring", "its memory is too small",
                     "both sides must run the same build"};
  }
  const auto channel = channel_to(peer);
  {
    const std::lock_guard lock(channel->mutex);
    if (channel->attached) return {};
    channel->out = RingWriter(memory.data() + (first ? 0 : kRingBytes));
    channel->in = RingReader(memory.data() + (first ? kRingBytes : 0));
    channel->memory = std::move(memory);
    channel->bell = std::move(peer_bell);
    channel->job = job;
    channel->attached = true;
  }
  flush_queued(*channel);
  ++version_;
  bell_.wake_all();  // messages may have come before anybody looked
  return {};
}

bool RingHub::is_attached(ProcessId peer) const {
  const std::lock_guard lock(mutex_);
  const auto at = channels_.find(peer);
  return at != channels_.end() && at->second->attached;
}

void RingHub::close(ProcessId peer) {
  const std::lock_guard lock(mutex_);
  const auto at = channels_.find(peer);
  if (at == channels_.end()) return;
  at->second->closed = true;
  channels_.erase(at);
  ++version_;
  bell_.ring();
}

std::size_t RingHub::queued_bytes(const RingChannel& channel) const {
  return static_cast<const Channel&>(channel).queued_bytes.load(std::memory_order_acquire);
}

Sent RingHub::send(RingChannel& opaque, const wire::FrameHeader& header, wire::ByteView body, SendMode mode) {
  auto& channel = static_cast<Channel&>(opaque);
  const wire::HeaderBytes head = wire::encode_header(header);
  Instant deadline{};
  for (unsigned turn = 0;; ++turn) {
    if (channel.closed) return Sent::kClosed;
    {
      const std::lock_guard lock(channel.mutex);
      const bool free = channel.attached && channel.queue.empty();
      Cutter cutter(channel.number + 1, head, body, kRingPacketMax);
      if (free && channel.write(cutter)) {
        ++channel.number;
        channel.bell.ring();
        return Sent::kQueued;
      }
      // What was begun must be ended, and what must not wait is left here.
      if (cutter.sent_bytes() > 0 || mode == SendMode::kMust || !channel.attached) {
        auto rest = std::make_unique<Channel::Queued>(Channel::Queued{head, {body.begin(), body.end()}, {}});
        const std::size_t packets = cutter.sent_bytes();
        rest->cutter = Cutter(++channel.number, rest->head, rest->body, kRingPacketMax);
        while (rest->cutter.sent_bytes() < packets) rest->cutter.advance();
        if (channel.queue.empty()) queues_.fetch_add(1);
        channel.queue.push_back(std::move(rest));
        channel.queued_bytes += wire::kHeaderBytes + body.size();
        if (channel.attached) {
          channel.out.starve();
          channel.bell.ring();
        }
        bell_.ring();  // the leader looks after the queue
        return Sent::kQueued;
      }
      channel.bell.ring();
    }
    if (turn == 0) deadline = now() + kSendDeadline;
    if (turn < 64) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(kRoomSlice);
      if (now() > deadline) return Sent::kFull;
    }
  }
}

/// Writes what is queued as far as there is room. True when something was written.
bool RingHub::flush_queued(Channel& channel) {
  bool any = false;
  {
    const std::lock_guard lock(channel.mutex);
    if (!channel.attached) return false;
    for (bool again = true; again && !channel.queue.empty();) {
      auto& next = *channel.queue.front();
      const std::size_t before = next.cutter.sent_bytes();
      const bool whole = channel.write(next.cutter);
      any |= whole || next.cutter.sent_bytes() > before;
      if (whole) {
        channel.queued_bytes -= wire::kHeaderBytes + next.body.size();
        channel.queue.pop_front();
        if (channel.queue.empty()) queues_.fetch_sub(1);
        continue;
      }
      channel.out.starve();  // and once more, since the reader may have been done before it could see that
      again = channel.out.has_room();
    }
    if (any) channel.bell.ring();
  }
  if (any && handlers_.on_drained) handlers_.on_drained(channel.peer);
  return any;
}

bool RingHub::try_lead() {
  if (leading_.exchange(true, std::memory_order_acquire)) return false;
  bell_.disarm();  // the leader looks at the rings: nobody needs to be woken
  return true;
}

void RingHub::stop_leading() {
  bell_.arm(Sleeper::kReceiver);
  // A message that came before the bell was armed rang nobody: the hub's thread must look.
  const bool waiting = anything_waiting();
  leading_.store(false, std::memory_order_release);
  if (waiting) bell_.ring();
}

bool RingHub::anything_waiting() {
  if (polled_version_ != version_.load(std::memory_order_acquire)) return true;
  return std::any_of(polled_.begin(), polled_.end(), [](const auto& channel) {
    if (!channel->in.poisoned() && !channel->in.empty()) return true;
    if (channel->queued_bytes.load(std::memory_order_acquire) == 0) return false;
    channel->out.starve();
    return channel->out.has_room();
  });
}

/// Looks at the rings that there are now. True when something was received.
bool RingHub::refresh_polled() {
  if (polled_version_ == version_.load(std::memory_order_acquire)) return false;
  bool any = false;
  Channels next;
  {
    const std::lock_guard lock(mutex_);
    polled_version_ = version_;
    for (const auto& [peer, channel] : channels_) {
      if (channel->attached) next.push_back(channel);
    }
  }
  for (const auto& channel : polled_) {  // what a dead peer had written whole still counts
    if (!channel->closed) continue;
    while (receive_from(*channel)) any = true;
    const std::lock_guard lock(channel->mutex);
    if (!channel->queue.empty()) queues_.fetch_sub(1);
    channel->queue.clear();
    channel->queued_bytes = 0;
  }
  polled_ = std::move(next);
  return any;
}

bool RingHub::receive_some() {
  const NoWaitScope receives;
  bool any = refresh_polled();
  for (const auto& channel : polled_) {
    any |= receive_from(*channel);
    if (queues_.load(std::memory_order_relaxed) != 0 &&
        channel->queued_bytes.load(std::memory_order_relaxed) != 0) {
      any |= flush_queued(*channel);
    }
  }
  if (any) handlers_.on_idle();
  return any;
}

bool RingHub::receive_from(Channel& channel) {
  int count = 0;
  for (; count < kPacketsATurn; ++count) {
    const auto packet = channel.in.front();
    if (packet.empty()) break;
    const auto fed = channel.joiner.feed(packet);
    std::string broken = fed ? "" : fed.error().message();
    if (fed && *fed == Joiner::Fed::kMessage) {
      const auto& header = channel.joiner.header();
      if (header.from != ProcessAddress{node_, channel.peer} || header.job != channel.job) {
        broken = "it speaks in another's name";
      } else {
        Message message{header, channel.joiner.take(), {}};
        channel.in.pop();
        handlers_.on_message(std::move(message));
        continue;
      }
    }
    channel.in.pop();
    if (!broken.empty()) {
      channel.in.poison();
      handlers_.on_broken(channel.peer, broken);
      return true;
    }
  }
  if (count > 0 && channel.in.take_starved()) channel.bell.ring();
  return count > 0;
}

bool RingHub::spin(const std::function<bool()>& done) {
  // Spinning pays when messages follow each other faster than a thread is woken: the last gap foretells the
  // next.
  Instant idle_since = now();
  for (unsigned turn = 0;; ++turn) {
    if (done()) return true;
    if (receive_some()) {
      idle_since = now();
      spin_time_ = idle_since - last_message_ < kQuickGap ? kLongestSpin : kShortestSpin;
      last_message_ = idle_since;
      continue;
    }
    spin_pause(turn);
    if (turn % 16 == 15 && now() - idle_since > spin_time_) return false;
  }
}

void RingHub::run() {
  ask_for_short_slices();
  const auto wanted = [this] { return waiters_.load(std::memory_order_relaxed) != 0; };
  while (!stopping_) {
    const std::uint32_t count = bell_.count();  // before the lead is tried: its holder rings when it lets go
    if (!try_lead()) {
      bell_.sleep(Sleeper::kReceiver, count, kSleep);
      continue;
    }
    receive_some();  // also when a thread waits: it may sleep until what is here wakes it
    spin(wanted);
    stop_leading();
    if (!stopping_) bell_.sleep(Sleeper::kReceiver, count, kSleep);
  }
}

void RingHub::wait(const std::function<bool()>& done, std::atomic<std::uint32_t>& word,
                   std::atomic<std::uint32_t>& sleepers, Instant deadline) {
  fork_guard_.check();
  if (NoWaitScope::marked()) {
    throw BadConfig("a callback waits for an answer", "it runs in a thread that receives answers",
                    "use then(callback) instead of get()");
  }
  waiters_.fetch_add(1, std::memory_order_relaxed);  // the hub's thread stops spinning and lets us lead
  for (unsigned turn = 0; !done() && now() < deadline; ++turn) {
    if (!try_lead()) {
      if (turn < kLeadTries) {
        ::sched_yield();
      } else {  // another thread receives, and wakes us through the call's own word
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        futex_wait(word, 0, std::min(deadline - now(), kSleep));
        sleepers.fetch_sub(1, std::memory_order_relaxed);
      }
      continue;
    }
    bool finished = false;
    while (!finished && now() < deadline) {
      finished = spin(done);
      if (finished) break;
      const std::uint32_t count = bell_.count();
      bell_.arm(Sleeper::kWaiter);
      if (done() || anything_waiting()) {
        bell_.disarm();
        continue;
      }
      const Instant slept_at = now();
      bell_.sleep(Sleeper::kWaiter, count, std::min(deadline - slept_at, kSleep));
      bell_.disarm();
      if (now() - slept_at >= kSleep && (done() || anything_waiting())) ++late_wakeups_;
    }
    stop_leading();
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace troupe
