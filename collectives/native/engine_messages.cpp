/// The engine's half that moves messages between ranks of one machine, and starts those to other machines.

#include <algorithm>
#include <cstring>
#include <thread>

#include "collectives/native/engine.hpp"
#include "collectives/texts.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives {

Token Engine::post(const Op& call) {
  const std::lock_guard lock(mutex_);
  throw_if_aborted();
  const int peer = call.peer;
  if (peer == kAnyRank) return post_any(call);
  const bool seen = call.kind == OpKind::kSend && is_local(peer) && peer != rank_ && call.bytes() != 0 &&
                    region_.holds(local(rank_), call.in(), call.bytes());
  Mailbox& mailbox = mailbox_of(peer);
  const auto made =
      mailbox.post(call, seen ? static_cast<std::uint64_t>(call.in() - region_.data(local(rank_))) + 1 : 0);
  check(mailbox);
  note_launch();
  if (is_local(peer)) {
    exchange_messages();
  } else {
    exchange();
  }
  return {0, made, call.timeout, made->done};
}

Token Engine::post_any(const Op& call) {
  const auto made = start_any(call, any_receives_);
  for (const int r : locals_) (void)mailbox_of(r);  // from here on every local rank's ring is looked at
  const auto takes = [&](auto& other) {
    const bool took = other.second.mailbox.take(made);
    check(other.second.mailbox);
    return took;
  };
  const bool has_come = std::any_of(neighbours_.begin(), neighbours_.end(), takes) ||
                        std::any_of(remotes_.begin(), remotes_.end(), takes);
  if (!has_come) any_receives_.push_back(made);
  note_launch();
  advance();
  return {0, made, call.timeout};
}

std::vector<Token> Engine::post_parts(const Op& call) {
  std::vector<Token> tokens;
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
  try {
    std::size_t out = 0, in = 0;
    for (int peer = 0; peer < size_; ++peer) {
      const std::size_t gives = call.counts[index_of(peer)], gets = call.from_counts[index_of(peer)];
      // Nothing is sent, too: so that a rank that expects more is told.
      if (peer == rank_) {
        const std::size_t element = element_size(call.dtype);
        if (gives != 0) std::memcpy(call.out() + in * element, call.in() + out * element, gives * element);
      } else {
        tokens.push_back(post(part(OpKind::kRecv, call.output, in, gets, peer)));
        tokens.push_back(post(part(OpKind::kSend, call.input, out, gives, peer)));
      }
      out += gives;
      in += gets;
    }
  } catch (const Error& e) {
    abort(AbortKind::kRequested, "an all_to_all was launched in part: " + std::string(e.what()));
    throw;
  }
  return tokens;
}

Mailbox& Engine::mailbox_of(int peer) {
  if (!is_local(peer)) return remote_of(peer).mailbox;
  const auto known = neighbours_.find(peer);
  if (known != neighbours_.end()) return known->second.mailbox;
  const std::size_t me = local(rank_), they = local(peer);
  if (peer != rank_) region_.populate_rings(me, they).value();
  const std::span<const std::byte> shared(region_.data(they), region_.data_bytes());
  Peer& made = neighbours_.try_emplace(peer, rank_, peer, host_, shared, &any_receives_).first->second;
  if (peer != rank_) {
    made.link.connect(std::make_unique<RingStream>(region_.ring(me, they), region_.ring(they, me)));
    std::atomic<std::uint64_t>& talks_to = mine_.talks_to[they / 64 % mine_.talks_to.size()];
    talks_to.store(talks_to.load(std::memory_order_relaxed) | std::uint64_t{1} << they % 64,
                   std::memory_order_release);
  }
  return made.mailbox;
}

void Engine::check(const Mailbox& mailbox) {
  if (!mailbox.failure().empty()) fail(AbortKind::kMismatch, mailbox.failure());
}

/// Moves the mailboxes in which something waits, or all.
bool Engine::exchange_messages(bool all) {
  bool moved = false;
  for (auto& [rank, peer] : neighbours_) {
    if (!all && !peer.mailbox.busy() && any_receives_.empty()) continue;
    moved = receive_from(peer) || moved;
    moved = send_to(peer) || moved;
    if (!peer.link.broken().empty()) {
      fail(AbortKind::kMismatch, "rank " + std::to_string(rank) + ": " + peer.link.broken());
    }
  }
  return moved;
}

/// Takes what others of this host sent and this rank has not asked for, from those too with which it had
/// nothing to do: a ring is small, and a small send is done once it is out.
bool Engine::take_unasked() {
  const std::size_t me = local(rank_);
  for (const int peer : locals_) {
    const auto& talks_to = region_.cell(local(peer)).talks_to[me / 64 % mine_.talks_to.size()];
    if ((talks_to.load(std::memory_order_acquire) >> me % 64 & 1) != 0) (void)mailbox_of(peer);
  }
  return !neighbours_.empty() && exchange_messages(true);
}

bool Engine::left(int peer) const {
  return region_.cell(local(peer)).left.load(std::memory_order_acquire) != 0;
}

/// Whether a rank sends nothing any more. Of one on another host only its connection tells.
bool Engine::is_gone(int peer) const {
  if (is_local(peer)) return left(peer);
  const auto known = remotes_.find(peer);
  return known != remotes_.end() && (known->second.left || !known->second.link.broken().empty());
}

/// A receive from any rank needs one that can still send. Where no such rank is known, this one connects to
/// one of another host after the other: it lives, and tells when it leaves, or is gone.
void Engine::check_senders(const Token& token) {
  int unknown = -1;
  bool died = false;
  std::vector<int> gone;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (is_gone(peer)) {
      died = died || (!is_local(peer) && !remotes_.at(peer).left);
      gone.push_back(peer);
    } else if (is_local(peer) || remotes_.contains(peer)) {
      return;
    } else if (unknown < 0) {
      unknown = peer;
    }
  }
  if (unknown >= 0) return void(remote_of(unknown));
  exchange_messages();  // they may have sent right before they left
  if (gone.empty() || done(token)) return;
  fail(AbortKind::kPeerLost,
       name_ranks(gone) + " left the group " + (died ? "or died " : "") + "before " + name_of(token));
}

void Engine::sleep_on_messages(int peer) {
  if (peer == rank_) {
    std::this_thread::sleep_for(kSleepSlice);  // a receive from itself, which only this thread can end
    return;
  }
  const std::size_t me = local(rank_), they = local(peer);
  if (neighbours_.at(peer).link.sending()) {
    RingHead& full = region_.ring_head(me, they);
    const auto written = full.written.rounds.load(std::memory_order_relaxed);
    sleep_on(full.read, written - static_cast<std::uint32_t>(ring_bytes(locals_.size())), kSleepSlice);
  } else {
    RingHead& empty = region_.ring_head(they, me);
    sleep_on(empty.written, empty.read.rounds.load(std::memory_order_relaxed), kSleepSlice);
  }
}

std::shared_ptr<const Transfer> Engine::oldest_transfer() const {
  if (!any_receives_.empty()) return any_receives_.front();
  for (const auto& [peer, neighbour] : neighbours_) {
    if (auto found = neighbour.mailbox.oldest()) return found;
  }
  for (const auto& [peer, remote] : remotes_) {
    if (auto found = remote.mailbox.oldest()) return found;
  }
  return nullptr;
}

}  // namespace troupe::collectives
