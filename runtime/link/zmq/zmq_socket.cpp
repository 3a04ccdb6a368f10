#include "runtime/link/zmq/zmq_socket.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>

namespace troupe::zmq_link {
namespace {

constexpr int kBacklog = 128;

zmq::const_buffer buffer(std::span<const std::byte> bytes) {
  return {bytes.data(), bytes.size()};
}

void append_length(wire::Bytes& frame, std::size_t size) {
  for (std::size_t i = 0; i < kLengthBytes; ++i) frame.push_back(static_cast<std::byte>(size >> (8 * i)));
}

}  // namespace

void set_common_options(zmq::socket_t& socket, const CurveKeyPair& keys) {
  using namespace zmq;
  socket.set(sockopt::maxmsgsize, static_cast<std::int64_t>(kMaxZmqFrameBytes));
  socket.set(sockopt::sndhwm, kZmqQueuedFrames);
  socket.set(sockopt::rcvhwm, kZmqQueuedFrames);
  socket.set(sockopt::backlog, kBacklog);
  socket.set(sockopt::linger, millis(kLinger));
  socket.set(sockopt::handshake_ivl, millis(kHandshakeTimeout));
  // By the kernel: ZeroMQ's own heartbeats may find a peer's answer and its end at once, and abort the
  // process (after it was stopped for a while). They would hear no more: that a process lives is its node's
  // business.
  socket.set(sockopt::tcp_keepalive, 1);
  socket.set(sockopt::tcp_keepalive_idle, kKeepaliveSeconds);
  socket.set(sockopt::tcp_keepalive_intvl, kKeepaliveSeconds);
  socket.set(sockopt::tcp_keepalive_cnt, kKeepaliveProbes);
  socket.set(sockopt::tcp_maxrt, millis(kSilence));
  socket.set(sockopt::curve_publickey, buffer(keys.public_key().bytes));
  socket.set(sockopt::curve_secretkey, buffer(keys.secret_key().reveal()));
}

std::string to_zmq_address(const Endpoint& endpoint) {
  return "tcp://" + to_string(endpoint);
}

void append_packet(wire::Bytes& frame, const Packet& packet) {
  append_length(frame, packet.size());
  for (const wire::ByteView part : {wire::ByteView(packet.header), packet.head, packet.body}) {
    frame.insert(frame.end(), part.begin(), part.end());
  }
}

void append_packet(wire::Bytes& frame, wire::ByteView packet) {
  append_length(frame, packet.size());
  frame.insert(frame.end(), packet.begin(), packet.end());
}

wire::Bytes frame_of(wire::ByteView packet) {
  wire::Bytes frame;
  append_packet(frame, packet);
  return frame;
}

bool next_packet(wire::ByteView& frame, wire::ByteView& packet) {
  if (frame.size() < kLengthBytes) return false;
  std::size_t size = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) size |= std::to_integer<std::size_t>(frame[i]) << (8 * i);
  if (size > frame.size() - kLengthBytes) return false;
  packet = frame.subspan(kLengthBytes, size);
  frame = frame.subspan(kLengthBytes + size);
  return true;
}

int send_frame(zmq::socket_t& socket, const std::string* routing_id, wire::Bytes& frame) {
  if (routing_id == nullptr) {
    if ((socket.get(zmq::sockopt::events) & ZMQ_POLLOUT) == 0) return EAGAIN;
  } else if (zmq_send(socket.handle(), routing_id->data(), routing_id->size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) <
             0) {
    return zmq_errno();
  }
  // libzmq takes the bytes over, and frees them on its own thread when they are encrypted.
  auto* const owned = new wire::Bytes(std::move(frame));
  zmq::message_t message(
      owned->data(), owned->size(), [](void*, void* hint) { delete static_cast<wire::Bytes*>(hint); }, owned);
  if (zmq_msg_send(message.handle(), socket.handle(), ZMQ_DONTWAIT) >= 0) return 0;
  const int error = zmq_errno();
  const auto* const data = static_cast<const std::byte*>(message.data());
  frame.assign(data, data + message.size());
  return error;
}

Monitor::Monitor(zmq::context_t& context, zmq::socket_t& socket, int events)
    : watched_(socket), pair_(context, zmq::socket_type::pair) {
  static std::atomic<std::uint64_t> counter{0};
  const std::string address = "inproc://troupe-monitor-" + std::to_string(++counter);
  pair_.set(zmq::sockopt::rcvhwm, 0);
  pair_.set(zmq::sockopt::linger, 0);
  if (zmq_socket_monitor(socket.handle(), address.c_str(), events) != 0) throw zmq::error_t();
  pair_.connect(address);
}

Monitor::~Monitor() {
  zmq_socket_monitor(watched_.handle(), nullptr, 0);
}

bool Monitor::next(Event& event) {
  zmq::message_t head;
  if (zmq_msg_recv(head.handle(), pair_.handle(), ZMQ_DONTWAIT) < 0) return false;
  zmq::message_t address;
  if (head.more() && zmq_msg_recv(address.handle(), pair_.handle(), ZMQ_DONTWAIT) < 0) return false;
  std::uint16_t kind = 0;
  std::uint32_t value = 0;
  if (head.size() < sizeof kind + sizeof value) return false;
  std::memcpy(&kind, head.data(), sizeof kind);
  std::memcpy(&value, static_cast<const char*>(head.data()) + sizeof kind, sizeof value);
  event = {kind, static_cast<int>(value)};
  return true;
}

}  // namespace troupe::zmq_link
