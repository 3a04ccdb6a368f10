/// The engine's half that moves messages between ranks of one machine, and starts those to other machines.

#include <thread>

#include "collectives/native/engine.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::collectives {

Ticket Engine::post(const Op& call) {
  const std::lock_guard lock(mutex_);
  throw_if_aborted();
  const int peer = call.peer;
  const bool seen = call.kind == OpKind::kSend && is_local(peer) && peer != rank_ && call.bytes() != 0 &&
                    region_.holds(local(rank_), call.in(), call.bytes());
  Mailbox& mailbox = mailbox_of(peer);
  const auto made =
      mailbox.post(call, seen ? static_cast<std::uint64_t>(call.in() - region_.data(local(rank_))) + 1 : 0);
  check(mailbox);
  moved_ = true;
  if (is_local(peer)) {
    exchange_mail();
  } else {
    exchange();
  }
  return {0, made};
}

Mailbox& Engine::mailbox_of(int peer) {
  if (!is_local(peer)) return remotes_.at(peer).mailbox;
  const auto known = neighbours_.find(peer);
  if (known != neighbours_.end()) return known->second.mailbox;
  const std::size_t me = local(rank_), they = local(peer);
  std::unique_ptr<Link> link;
  if (peer != rank_) {
    region_.populate_rings(me, they).value();
    link = std::make_unique<Link>(
        peer, std::make_unique<RingStream>(region_.ring(me, they), region_.ring(they, me)));
  }
  Neighbour made{Mailbox(rank_, peer, {region_.data(they), region_.data_bytes()}), std::move(link)};
  return neighbours_.emplace(peer, std::move(made)).first->second.mailbox;
}

void Engine::check(const Mailbox& mailbox) {
  if (!mailbox.failure().empty()) fail(AbortKind::kMismatch, mailbox.failure());
}

/// A mailbox in which nothing waits is left alone: what others sent stays in the ring until it is asked for.
bool Engine::exchange_mail() {
  bool moved = false;
  for (auto& [peer, neighbour] : neighbours_) {
    Mailbox& mailbox = neighbour.mailbox;
    if (!mailbox.busy() || neighbour.link == nullptr) continue;
    Link& link = *neighbour.link;
    moved = link.pump() || moved;
    while (link.header()) {
      if (!link.has_target()) {
        if (!Mailbox::handles(link.header()->kind)) {
          fail(AbortKind::kMismatch, "rank " + std::to_string(peer) + " sent a frame out of turn");
        }
        const auto target = mailbox.begin(*link.header());
        check(mailbox);
        link.receive_into(target);
        link.pump();
      }
      if (!link.received()) break;
      mailbox.end();
      check(mailbox);
      link.next_frame();
      link.pump();
      moved = true;
    }
    while (!link.sending()) {
      if (std::exchange(neighbour.sending, false)) {
        mailbox.sent();
        moved = true;
      }
      auto frame = mailbox.next();
      if (!frame) break;
      link.send(frame->header, std::move(frame->pieces));
      neighbour.sending = true;
      moved = link.pump() || moved;
    }
    if (!link.broken().empty()) {
      fail(AbortKind::kMismatch, "rank " + std::to_string(peer) + ": " + link.broken());
    }
  }
  return moved;
}

bool Engine::left(int peer) const {
  return region_.cell(local(peer)).left.load(std::memory_order_acquire) != 0;
}

void Engine::sleep_on_mail(int peer) {
  const Neighbour& neighbour = neighbours_.at(peer);
  if (neighbour.link == nullptr) {
    std::this_thread::sleep_for(kSleepSlice);  // a receive from itself, which only this thread can end
    return;
  }
  const std::size_t me = local(rank_), they = local(peer);
  if (neighbour.link->sending()) {
    RingHead& full = region_.ring_head(me, they);
    const auto written = full.written.rounds.load(std::memory_order_relaxed);
    sleep_on(full.read, written - static_cast<std::uint32_t>(ring_bytes(locals_.size())), kSleepSlice);
  } else {
    RingHead& empty = region_.ring_head(they, me);
    sleep_on(empty.written, empty.read.rounds.load(std::memory_order_relaxed), kSleepSlice);
  }
}

std::shared_ptr<const Transfer> Engine::oldest_transfer() const {
  for (const auto& [peer, neighbour] : neighbours_) {
    if (auto found = neighbour.mailbox.oldest()) return found;
  }
  for (const auto& [peer, remote] : remotes_) {
    if (auto found = remote.mailbox.oldest()) return found;
  }
  return nullptr;
}

}  // namespace troupe::collectives
