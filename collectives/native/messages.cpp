#include "collectives/native/messages.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "collectives/native/backoff.hpp"

namespace troupe::collectives {

std::shared_ptr<Transfer> Messages::post(const Op& call) {
  const int peer = call.peer;
  if (peer == kAnyRank) return post_any(call);
  const bool seen = call.kind == OpKind::kSend && view_.is_local(peer) && peer != view_.rank &&
                    call.bytes() != 0 && view_.region.holds(view_.local(view_.rank), call.in(), call.bytes());
  const std::byte* data = view_.region.data(view_.local(view_.rank));
  Mailbox& mailbox = mailbox_of(peer);
  auto made = mailbox.post(call, seen ? static_cast<std::uint64_t>(call.in() - data) + 1 : 0);
  check(mailbox);
  return made;
}

std::shared_ptr<Transfer> Messages::post_any(const Op& call) {
  auto made = start_any(call, any_receives_);
  for (const int r : view_.locals) (void)mailbox_of(r);  // from here on every local rank's ring is looked at
  const bool has_come = std::any_of(neighbours_.begin(), neighbours_.end(), [&](auto& other) {
    const bool took = other.second.mailbox.take(made);
    check(other.second.mailbox);
    return took;
  });
  if (!has_come && !gateways_.take(made)) any_receives_.push_back(made);
  return made;
}

std::vector<Op> Messages::parts_of(const Op& call) const {
  const auto part = [&](OpKind kind, const Buffer& all, std::size_t begin, std::size_t count, int peer) {
    Op op{.kind = kind, .dtype = call.dtype, .peer = peer, .tag = static_cast<std::uint32_t>(call.sequence)};
    op.how.exact = false;  // of_collective()
    op.count = count;
    op.timeout = call.timeout;
    Buffer buffer = all;
    buffer.data = static_cast<std::byte*>(all.data) + begin * element_size(call.dtype);
    buffer.count = count;
    (kind == OpKind::kSend ? op.input : op.output) = buffer;
    return op;
  };
  std::vector<Op> parts;
  std::size_t out = 0, in = 0;
  for (int peer = 0; peer < view_.size; ++peer) {
    const std::size_t gives = call.counts[RankView::index_of(peer)];
    const std::size_t gets = call.from_counts[RankView::index_of(peer)];
    // Nothing is sent, too: so that a rank that expects more is told.
    if (peer != view_.rank) {
      parts.push_back(part(OpKind::kRecv, call.output, in, gets, peer));
      parts.push_back(part(OpKind::kSend, call.input, out, gives, peer));
    } else if (gives != 0) {
      const std::size_t element = element_size(call.dtype);
      std::memcpy(call.out() + in * element, call.in() + out * element, gives * element);
    }
    out += gives;
    in += gets;
  }
  return parts;
}

Mailbox& Messages::mailbox_of(int peer) {
  if (!view_.is_local(peer)) return gateways_.mailbox_of(peer);
  const auto known = neighbours_.find(peer);
  if (known != neighbours_.end()) return known->second.mailbox;
  const std::size_t me = view_.local(view_.rank), they = view_.local(peer);
  const Region& region = view_.region;
  if (peer != view_.rank) region.populate_rings(me, they).value();
  const std::span<const std::byte> shared(region.data(they), region.data_bytes());
  Neighbour& made = neighbours_.try_emplace(peer, view_.rank, peer, shared, &any_receives_).first->second;
  if (peer != view_.rank) {
    made.link.connect(std::make_unique<RingStream>(region.ring(me, they), region.ring(they, me)));
    std::atomic<std::uint64_t>& talks_to = view_.mine.talks_to[they / 64 % view_.mine.talks_to.size()];
    talks_to.store(talks_to.load(std::memory_order_relaxed) | std::uint64_t{1} << they % 64,
                   std::memory_order_release);
  }
  return made.mailbox;
}

void Messages::check(const Mailbox& mailbox) const {
  if (!mailbox.failure().empty()) view_.fail(AbortKind::kMismatch, mailbox.failure());
}

bool Messages::exchange(Neighbour& neighbour) const {
  Link& link = neighbour.link;
  Mailbox& mailbox = neighbour.mailbox;
  const auto target = [&]() -> std::vector<std::span<std::byte>> {
    const FrameHeader& header = *link.header();
    if (header.kind < FrameKind::kMessage || header.kind > FrameKind::kCopied)
      view_.fail(AbortKind::kMismatch, "rank " + std::to_string(link.rank()) + " sent a frame out of turn");
    const std::span<std::byte> into = mailbox.begin(header);
    check(mailbox);
    return {into};
  };
  const auto take = [&] {
    mailbox.end();
    check(mailbox);
  };
  const auto out = [&] {
    const bool was_out = std::exchange(neighbour.sends, false);
    if (was_out) mailbox.sent();
    return was_out;
  };
  const auto start = [&] {
    auto frame = mailbox.next();
    if (frame) link.send(frame->header, std::move(frame->pieces));
    return neighbour.sends = frame.has_value();
  };
  const bool moved = link.receive(target, take);
  return link.transmit(out, start) || moved;
}

bool Messages::exchange(bool all) {
  bool moved = false;
  for (auto& [rank, neighbour] : neighbours_) {
    if (!all && !neighbour.mailbox.busy() && any_receives_.empty()) continue;
    moved = exchange(neighbour) || moved;
    if (const std::string& broken = neighbour.link.broken(); !broken.empty())
      view_.fail(AbortKind::kMismatch, "rank " + std::to_string(rank) + ": " + broken);
  }
  return moved;
}

bool Messages::take_unasked() {
  const std::size_t me = view_.local(view_.rank);
  for (const int peer : view_.locals) {
    const auto& talks_to = view_.cell(peer).talks_to[me / 64 % view_.mine.talks_to.size()];
    if ((talks_to.load(std::memory_order_acquire) >> me % 64 & 1) != 0) (void)mailbox_of(peer);
  }
  return !neighbours_.empty() && exchange(true);
}

bool Messages::is_gone(int peer) const {
  if (view_.is_local(peer)) return view_.left(peer);
  return gateways_.knows(peer) && gateways_.is_gone(peer);
}

std::shared_ptr<const Transfer> Messages::oldest() const {
  if (!any_receives_.empty()) return any_receives_.front();
  for (const auto& [peer, neighbour] : neighbours_) {
    if (auto found = neighbour.mailbox.oldest()) return found;
  }
  return gateways_.oldest_message();
}

void Messages::sleep_on(int peer) const {
  if (peer == view_.rank) {
    std::this_thread::sleep_for(kSleepSlice);  // a receive from itself, which only this thread can end
    return;
  }
  const std::size_t me = view_.local(view_.rank), they = view_.local(peer);
  if (neighbours_.at(peer).link.sending()) {
    RingHead& full = view_.region.ring_head(me, they);
    const auto written = full.written.rounds.load(std::memory_order_relaxed);
    collectives::sleep_on(full.read, written - static_cast<std::uint32_t>(ring_bytes(view_.locals.size())),
                          kSleepSlice);
  } else {
    RingHead& empty = view_.region.ring_head(they, me);
    collectives::sleep_on(empty.written, empty.read.rounds.load(std::memory_order_relaxed), kSleepSlice);
  }
}

}  // namespace troupe::collectives
