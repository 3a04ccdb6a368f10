#include "runtime/link/zmq/zmq_queue.hpp"

#include <cerrno>
#include <utility>

namespace troupe::zmq_link {
namespace {

// A peer that takes all it is sent must not keep the loop from the others.
constexpr std::size_t kBytesATurn = std::size_t{8} << 20;

}  // namespace

Sent SendQueue::push(wire::Bytes&& frame, bool& wake) {
  TROUPE_ASSERT(wire::decode_header(frame).ok(), "a message is a whole frame");
  if (frame.size() > kMaxFrameBytes) return Sent::kTooLarge;
  const std::lock_guard lock(mutex_);
  if (closed_) return Sent::kClosed;
  if (bytes_ >= limit_bytes_) {
    refused_ = true;
    return Sent::kFull;
  }
  bytes_ += frame.size();
  waiting_.push_back(std::move(frame));
  wake = !std::exchange(woken_, true);
  return Sent::kQueued;
}

void SendQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  waiting_.clear();
  bytes_ = 0;
}

bool SendQueue::take_room() {
  const std::lock_guard lock(mutex_);
  return !closed_ && bytes_ <= limit_bytes_ / 2 && std::exchange(refused_, false);
}

void SendQueue::let_go(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!closed_) bytes_ -= bytes;
}

/// Fills frame_ with what is next. False when nothing waits.
bool SendQueue::build_frame() {
  if (sending_.empty()) {
    const std::lock_guard lock(mutex_);
    woken_ = false;
    sending_.swap(waiting_);
  }
  std::size_t whole_bytes = 0;
  while (!sending_.empty() && frame_.size() < kBatchBytes) {
    const wire::Bytes& message = sending_.front();
    if (cutter_.done()) {
      const bool fits = frame_.size() + kLengthBytes + kPacketHeaderBytes + message.size() <= kBatchBytes;
      if (!frame_.empty() && !fits) break;
      cutter_ = Cutter(++number_, message, {}, kMaxPacketBytes);
    }
    const Packet packet = cutter_.next();
    if (frame_.empty()) frame_.reserve(sending_.size() > 1 ? std::max(kBatchBytes, kLengthBytes + packet.size()) : kLengthBytes + packet.size());
    append_packet(frame_, packet);
    cutter_.advance();
    if (!cutter_.done()) continue;
    whole_bytes += message.size();
    sending_.pop_front();
  }
  if (whole_bytes > 0) let_go(whole_bytes);
  return !frame_.empty();
}

SendQueue::Pumped SendQueue::pump(zmq::socket_t& socket, const std::string* routing_id) {
  for (std::size_t sent = 0; sent < kBytesATurn;) {
    if (frame_.empty() && !build_frame()) return Pumped::kAll;
    const std::size_t size = frame_.size();
    const int error = send_frame(socket, routing_id, frame_);
    if (error == EAGAIN) return Pumped::kBlocked;
    if (error != 0) return Pumped::kBroken;
    frame_.clear();
    sent += size;
    sent_number_ = number_;
  }
  return Pumped::kMore;
}

}  // namespace troupe::zmq_link
