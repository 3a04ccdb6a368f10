#include "collectives/native/mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::collectives {
namespace {

FrameHeader control(FrameKind kind, std::uint32_t sequence) {
  return {.kind = kind, .sequence = sequence};
}

[[noreturn]] void refuse(const Op& call, std::string why) {
  throw_error(
      {ErrorCode::kLimit, "cannot " + to_string(call), std::move(why), "wait for some of them first"});
}

std::shared_ptr<Transfer> start(const Op& call, std::size_t in_flight) {
  if (in_flight >= kMaxMessages)
    refuse(call, std::to_string(kMaxMessages) +
                     (call.peer == kAnyRank
                          ? " receives from any rank are in flight"
                          : " sends and receives are in flight with rank " + std::to_string(call.peer)));
  auto made = std::make_shared<Transfer>();
  made->call = call;
  made->data = static_cast<std::byte*>(call.kind == OpKind::kSend ? call.input.data : call.output.data);
  made->bytes = call.bytes();
  return made;
}

}  // namespace

std::string to_string(const Transfer& transfer) {
  const bool counted = transfer.number != 0 && !of_collective(transfer.call);
  return to_string(transfer.call) + (counted ? " #" + std::to_string(transfer.number) : "");
}

std::shared_ptr<Transfer> start_any(const Op& call, const AnyReceives& open) {
  return start(call, open.size());
}

Mailbox::Mailbox(int self, int peer, std::span<const std::byte> shared, AnyReceives* any)
    : self_(self), peer_(peer), shared_(shared), any_(any) {}

void Mailbox::fail(std::string reason) {
  if (failure_.empty()) failure_ = std::move(reason);
}

void Mailbox::finish(Transfer& transfer) {
  transfer.done = true;
  --in_flight_;
}

std::shared_ptr<const Transfer> Mailbox::oldest() const {
  if (sending_) return sending_;
  if (!streaming_.empty()) return streaming_.front();
  if (!awaiting_clear_.empty()) return awaiting_clear_.begin()->second;
  if (!unannounced_.empty()) return unannounced_.front();
  if (!clear_to_send_.empty()) return clear_to_send_.begin()->second;
  if (!receives_waiting_.empty()) return receives_waiting_.front();
  return nullptr;
}

std::shared_ptr<Transfer> Mailbox::post(const Op& call, std::uint64_t place) {
  const bool sends = call.kind == OpKind::kSend;
  auto made = start(call, in_flight_);
  if (sends && peer_ == self_ && call.bytes() > kMaxSelfBytes - self_bytes_)
    refuse(call, "a rank keeps at most 64 MiB that it sent itself");
  made->number = sends ? ++sends_ : ++receives_;
  made->place = place;
  ++in_flight_;
  if (sends && peer_ == self_) {
    send_to_self(made);
  } else if (sends) {
    unannounced_.push_back(made);
  } else {
    const auto at = arrival_for(made->call);
    if (at == arrivals_.end()) {
      receives_waiting_.push_back(made);
    } else {
      match(made, *at);
      arrivals_.erase(at);
    }
  }
  return made;
}

std::list<Mailbox::Arrival>::iterator Mailbox::arrival_for(const Op& receive) {
  return std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& a) {
    return a.header.round == receive.tag && of_collective(decode_op(a.header.call)) == of_collective(receive);
  });
}

bool Mailbox::take(const Ref& receive) {
  const auto at = arrival_for(receive->call);
  if (at == arrivals_.end()) return false;
  claim(*receive);
  match(receive, *at);
  arrivals_.erase(at);
  return true;
}

/// A receive from any rank is one from this rank.
void Mailbox::claim(Transfer& any) {
  any.call.peer = peer_;
  any.number = ++receives_;
  ++in_flight_;
}

/// Buffered: the send is done at once, and what no receive waits for is copied.
void Mailbox::send_to_self(const Ref& send) {
  Arrival arrival{.header = {.kind = FrameKind::kMessage,
                             .sequence = send->number,
                             .round = send->call.tag,
                             .call = encode(send->call),
                             .payload_bytes = send->bytes}};
  arrival.data.assign(send->data, send->data + send->bytes);
  self_bytes_ += send->bytes;
  finish(*send);
  arrive(std::move(arrival));
}

bool Mailbox::agree(const Transfer& receive, const FrameHeader& header) {
  const Op& mine = receive.call;
  const Op wanted{
      .kind = OpKind::kSend, .dtype = mine.dtype, .how = mine.how, .peer = self_, .count = mine.count};
  if (header.call == encode(wanted)) return true;
  Op theirs = decode_op(header.call);  // the link takes nothing else
  theirs.tag = header.round;
  fail("rank " + std::to_string(self_) + " called " + to_string(mine) + " and rank " + std::to_string(peer_) +
       " " + to_string(theirs));
  return false;
}

Mailbox::Ref Mailbox::waiting_for(const FrameHeader& header) {
  const bool part = of_collective(decode_op(header.call));
  const auto first_of = [&](std::list<Ref>& open) {
    const auto at = std::find_if(open.begin(), open.end(), [&](const Ref& r) {
      return r->call.tag == header.round && of_collective(r->call) == part;
    });
    Ref found = at == open.end() ? nullptr : *at;
    if (found) open.erase(at);
    return found;
  };
  if (Ref named = first_of(receives_waiting_)) return named;
  Ref found = any_ == nullptr ? nullptr : first_of(*any_);
  if (found) claim(*found);
  return found;
}

/// A message is whole, or offered.
void Mailbox::arrive(Arrival arrival) {
  if (const Ref receive = waiting_for(arrival.header)) {
    match(receive, arrival);
  } else {
    arrivals_.push_back(std::move(arrival));
  }
}

void Mailbox::match(const Ref& receive, Arrival& arrival) {
  if (!agree(*receive, arrival.header)) return;
  if (arrival.header.kind == FrameKind::kMessage) {
    if (!arrival.data.empty()) std::memcpy(receive->data, arrival.data.data(), receive->bytes);
    finish(*receive);
    if (peer_ == self_) {
      self_bytes_ -= receive->bytes;
    } else {
      taken_one();
    }
  } else if (arrival.place != 0) {
    if (arrival.place > shared_.size() || receive->bytes > shared_.size() - (arrival.place - 1)) {
      fail("rank " + std::to_string(peer_) + " offered a message outside its memory");
      return;
    }
    std::memcpy(receive->data, shared_.data() + (arrival.place - 1), receive->bytes);
    controls_.push_back({control(FrameKind::kCopied, arrival.header.sequence), receive});
  } else {
    clear_to_send_[arrival.header.sequence] = receive;
    controls_.push_back({control(FrameKind::kClearToSend, arrival.header.sequence), nullptr});
  }
}

/// Tells the sender now and then, so that its window stays open.
void Mailbox::taken_one() {
  ++eager_received_;
  if (eager_received_ - eager_told_ < kEagerWindow / 4) return;
  eager_told_ = eager_received_;
  controls_.push_back({control(FrameKind::kCredit, eager_told_), nullptr});
}

std::optional<Mailbox::Frame> Mailbox::next() {
  sends_control_ = !controls_.empty();
  if (sends_control_) return Frame{controls_.front().header, {}};
  const bool announces = !unannounced_.empty();
  if (!announces && streaming_.empty()) return std::nullopt;
  sending_ = announces ? unannounced_.front() : streaming_.front();
  const Transfer& send = *sending_;
  Frame frame{.header = {.sequence = send.number, .round = send.call.tag, .call = encode(send.call)},
              .pieces = {}};
  if (!announces) {
    frame.header.kind = FrameKind::kPayload;
    sending_bytes_ = std::min(kPayloadBytes, send.bytes - send.moved);
    frame.pieces = {{send.data + send.moved, sending_bytes_}};
  } else if (send.bytes <= kEagerBytes && eager_sent_ - eager_taken_ < kEagerWindow) {
    frame.header.kind = FrameKind::kMessage;
    sending_bytes_ = send.bytes;
    if (send.bytes != 0) frame.pieces = {{send.data, send.bytes}};
  } else {
    frame.header.kind = FrameKind::kRequestToSend;
    place_ = send.place;
    sending_bytes_ = sizeof place_;
    frame.pieces = {std::as_bytes(std::span(&place_, 1))};
  }
  frame.header.payload_bytes = sending_bytes_;
  sent_kind_ = frame.header.kind;
  return frame;
}

void Mailbox::sent() {
  if (std::exchange(sends_control_, false)) {
    if (const Ref ends = controls_.front().ends) finish(*ends);
    controls_.pop_front();
    return;
  }
  const Ref send = std::exchange(sending_, nullptr);
  if (sent_kind_ == FrameKind::kPayload) {
    send->moved += sending_bytes_;
    if (send->moved == send->bytes) {
      finish(*send);
      streaming_.pop_front();
    }
    return;
  }
  unannounced_.pop_front();
  if (sent_kind_ == FrameKind::kRequestToSend) {
    awaiting_clear_[send->number] = send;
  } else {
    ++eager_sent_;
    finish(*send);
  }
}

std::span<std::byte> Mailbox::begin(const FrameHeader& header) {
  coming_ = {.header = header};
  target_ = nullptr;
  const std::uint64_t bytes = header.payload_bytes;
  switch (header.kind) {
    case FrameKind::kMessage:
    case FrameKind::kRequestToSend: {
      const bool small = header.kind == FrameKind::kMessage;
      if (header.sequence != announced_ + 1 || arrivals_.size() >= kMaxMessages + kEagerWindow) break;
      if (small ? bytes > kEagerBytes || ++eager_come_ - eager_told_ > kEagerWindow
                : bytes != sizeof place_) {
        break;
      }
      ++announced_;
      coming_.data.resize(bytes);
      return coming_.data;
    }
    case FrameKind::kPayload: {
      const auto at = clear_to_send_.find(header.sequence);
      if (at == clear_to_send_.end()) break;
      const std::uint64_t left = at->second->bytes - at->second->moved;  // none of an empty message
      if (bytes > left || (bytes == 0 && left != 0)) break;
      target_ = at->second;
      return {target_->data + target_->moved, bytes};
    }
    default:
      if (bytes != 0) break;
      return {};
  }
  out_of_turn();
  return {};
}

void Mailbox::end() {
  const FrameHeader& header = coming_.header;
  const auto offer = awaiting_clear_.find(header.sequence);
  switch (header.kind) {
    case FrameKind::kMessage:
      if (header.payload_bytes != decode_op(header.call).bytes()) return out_of_turn();
      return arrive(std::move(coming_));
    case FrameKind::kRequestToSend:
      std::memcpy(&coming_.place, coming_.data.data(), sizeof coming_.place);
      return arrive(std::move(coming_));
    case FrameKind::kPayload:
      target_->moved += header.payload_bytes;
      if (target_->moved == target_->bytes) {
        clear_to_send_.erase(header.sequence);
        finish(*target_);
      }
      return;
    case FrameKind::kCredit:
      if (is_before(eager_sent_, header.sequence) || is_before(header.sequence, eager_taken_)) {
        return out_of_turn();
      }
      eager_taken_ = header.sequence;
      return;
    default:
      if (offer == awaiting_clear_.end()) return out_of_turn();
      if (header.kind == FrameKind::kClearToSend) streaming_.push_back(offer->second);
      if (header.kind == FrameKind::kCopied) finish(*offer->second);
      awaiting_clear_.erase(offer);
  }
}

}  // namespace troupe::collectives
