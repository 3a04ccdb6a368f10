#include "runtime/link/ring/ring_hub.hpp"

#include <sched.h>

#include <algorithm>

#include "runtime/core/log.hpp"

namespace troupe {
namespace {

using transport::RingReader;
using transport::RingWriter;
using transport::Sleeper;

constexpr Duration kLongestSpin = std::chrono::microseconds(50);
constexpr Duration kShortestSpin = std::chrono::microseconds(2);
constexpr Duration kQuickGap = std::chrono::microseconds(150);
constexpr Duration kSleep = std::chrono::milliseconds(200);
constexpr Duration kSendDeadline = std::chrono::seconds(30);
constexpr Duration kRoomSlice = std::chrono::microseconds(50);
constexpr int kMessagesATurn = 256;
constexpr unsigned kLeadTries = 50;

Instant now() {
  return MonotonicClock().now();
}

thread_local bool receiving = false;  ///< this thread delivers messages now

struct ReceivingScope {
  ReceivingScope() { receiving = true; }
  ~ReceivingScope() { receiving = false; }
};

}  // namespace

struct RingHub::Channel {
  ProcessId peer;
  SharedMemory memory;
  transport::Doorbell bell;
  RingReader in;
  std::mutex send_mutex;  ///< guards out and kept; a whole message is sent under it
  RingWriter out;
  std::deque<wire::Bytes> kept;  ///< fragments of the receiving thread that found no room
  std::atomic<bool> dead{false};
};

RingHub::RingHub(transport::Doorbell bell, OnMessage on_message, OnIdle on_idle)
    : bell_(std::move(bell)),
      on_message_(std::move(on_message)),
      on_idle_(std::move(on_idle)),
      thread_([this] { run(); }) {}

RingHub::~RingHub() {
  stopping_ = true;
  bell_.wake_all();
  thread_.join();
}

Result<void> RingHub::add(ProcessId peer, SharedMemory memory, transport::Doorbell peer_bell, bool first) {
  if (memory.size() < 2 * transport::kRingBytes) {
    return ErrorInfo{ErrorCode::kRefused, "refused a ring", "its memory is too small",
                     "both sides must run the same build"};
  }
  auto channel = std::make_shared<Channel>();
  channel->peer = peer;
  channel->out = RingWriter(memory.data() + (first ? 0 : transport::kRingBytes));
  channel->in = RingReader(memory.data() + (first ? transport::kRingBytes : 0));
  channel->memory = std::move(memory);
  channel->bell = std::move(peer_bell);
  {
    const std::lock_guard lock(mutex_);
    channels_.emplace(peer, std::move(channel));
    ++version_;
  }
  bell_.wake_all();  // messages may have come before anybody looked
  return {};
}

bool RingHub::has(ProcessId peer) const {
  return find(peer) != nullptr;
}

void RingHub::remove(ProcessId peer) {
  const std::lock_guard lock(mutex_);
  const auto at = channels_.find(peer);
  if (at == channels_.end()) return;
  at->second->dead = true;
  channels_.erase(at);
  ++version_;
}

std::shared_ptr<RingHub::Channel> RingHub::find(ProcessId peer) const {
  const std::lock_guard lock(mutex_);
  const auto at = channels_.find(peer);
  return at == channels_.end() ? nullptr : at->second;
}

bool RingHub::send(ProcessId peer, const wire::FrameHeader& header, wire::ByteView body) {
  const auto channel = find(peer);
  if (channel == nullptr) return false;
  const std::lock_guard lock(channel->send_mutex);
  return wire::fragment(
      header, body, transport::kRingMessageMax,
      [&](wire::ByteView head, wire::ByteView part) { return write_fragment(*channel, head, part); });
}

bool RingHub::write_fragment(Channel& channel, wire::ByteView head, wire::ByteView part) {
  if (channel.kept.empty() && channel.out.write(head, part)) {
    channel.bell.ring();
    return true;
  }
  if (receiving) {
    if (channel.kept.empty()) overflowing_.fetch_add(1);
    wire::Bytes fragment(head.begin(), head.end());
    fragment.insert(fragment.end(), part.begin(), part.end());
    channel.kept.push_back(std::move(fragment));
    return !channel.dead;
  }
  const Instant deadline = now() + kSendDeadline;
  for (unsigned turn = 0; !channel.dead; ++turn) {
    if (flush(channel) && channel.out.write(head, part)) {
      channel.bell.ring();
      return true;
    }
    channel.bell.ring();
    if (turn < 64) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(kRoomSlice);
      if (now() > deadline) return false;
    }
  }
  return false;
}

bool RingHub::flush(Channel& channel) {
  if (channel.kept.empty()) return true;
  while (!channel.kept.empty() && channel.out.write(channel.kept.front(), {})) channel.kept.pop_front();
  if (!channel.kept.empty()) return false;
  overflowing_.fetch_sub(1);
  return true;
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
  return overflowing_.load() != 0 || std::any_of(polled_.begin(), polled_.end(), [](const auto& channel) {
           return !channel->in.poisoned() && !channel->in.empty();
         });
}

bool RingHub::receive_some() {
  const ReceivingScope scope;
  if (polled_version_ != version_.load(std::memory_order_acquire)) {
    Channels next;
    {
      const std::lock_guard lock(mutex_);
      polled_version_ = version_;
      for (const auto& [peer, channel] : channels_) next.push_back(channel);
    }
    for (const auto& channel : polled_) {  // what a dead peer had written whole still counts
      if (channel->dead) {
        receive_from(*channel);
        const std::lock_guard lock(channel->send_mutex);
        if (!channel->kept.empty()) overflowing_.fetch_sub(1);
        channel->kept.clear();
      }
    }
    polled_ = std::move(next);
  }
  bool any = false;
  for (const auto& channel : polled_) {
    any |= receive_from(*channel);
    if (overflowing_.load(std::memory_order_relaxed) != 0) {
      const std::unique_lock lock(channel->send_mutex, std::try_to_lock);
      if (lock && !channel->kept.empty() && !flush(*channel)) any = true;
      if (lock) channel->bell.ring();
    }
  }
  if (any) on_idle_();
  return any;
}

bool RingHub::receive_from(Channel& channel) {
  int count = 0;
  for (; count < kMessagesATurn; ++count) {
    const auto message = channel.in.front();
    if (message.empty()) break;
    const auto header = wire::decode_header(message);
    if (header) {
      if (const auto body = assembler_.feed(*header, message.subspan(wire::kHeaderBytes))) {
        on_message_(channel.peer, *header, *body);
      }
    } else {
      log(LogLevel::kWarning, header.error().message());
    }
    channel.in.pop();
  }
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
  if (receiving) {
    throw BadConfig("a callback waits for an answer", "it runs in the thread that receives answers",
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
