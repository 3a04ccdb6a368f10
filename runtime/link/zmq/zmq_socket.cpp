#include "runtime/link/zmq/zmq_socket.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/core/endpoint.hpp"

namespace troupe::zmq_link {

namespace {

constexpr int kQueuedFrames = 128;  // of at most 1 MiB, each way and peer
constexpr int kBacklog = 128;

zmq::const_buffer buffer(std::span<const std::byte> bytes) {
  return {bytes.data(), bytes.size()};
}

}  // namespace

void set_common_options(zmq::socket_t& socket, const CurveKeyPair& keys) {
  using namespace zmq;
  socket.set(sockopt::maxmsgsize, static_cast<std::int64_t>(kMaxFrameBytes));
  socket.set(sockopt::sndhwm, kQueuedFrames);
  socket.set(sockopt::rcvhwm, kQueuedFrames);
  socket.set(sockopt::backlog, kBacklog);
  socket.set(sockopt::linger, millis(kLinger));
  socket.set(sockopt::handshake_ivl, millis(kHandshakeTimeout));
  socket.set(sockopt::heartbeat_ivl, millis(kHeartbeatInterval));
  socket.set(sockopt::heartbeat_timeout, millis(kHeartbeatTimeout));
  socket.set(sockopt::heartbeat_ttl, millis(kHeartbeatTimeout));
  socket.set(sockopt::curve_publickey, buffer(keys.public_key().bytes));
  socket.set(sockopt::curve_secretkey, buffer(keys.secret_key().reveal()));
}

std::string to_zmq_address(const Endpoint& endpoint) {
  return "tcp://" + to_string(endpoint);
}

int send_chunk(zmq::socket_t& socket, const std::string* routing_id, const Chunk& chunk) {
  if (routing_id != nullptr &&
      zmq_send(socket.handle(), routing_id->data(), routing_id->size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
    return zmq_errno();
  }
  zmq::message_t frame(kChunkHeaderBytes + chunk.payload.size());
  auto* data = static_cast<std::byte*>(frame.data());
  encode_chunk_header(chunk, std::span<std::byte, kChunkHeaderBytes>(data, kChunkHeaderBytes));
  if (!chunk.payload.empty()) {
    std::memcpy(data + kChunkHeaderBytes, chunk.payload.data(), chunk.payload.size());
  }
  return zmq_msg_send(frame.handle(), socket.handle(), ZMQ_DONTWAIT) < 0 ? zmq_errno() : 0;
}

Monitor::Monitor(zmq::context_t& context, zmq::socket_t& socket, int events)
    : pair_(context, zmq::socket_type::pair) {
  static std::atomic<std::uint64_t> counter{0};
  const std::string address = "inproc://troupe-monitor-" + std::to_string(++counter);
  // libzmq's I/O thread would block on a full monitor, and with it every connection.
  pair_.set(zmq::sockopt::rcvhwm, 0);
  pair_.set(zmq::sockopt::linger, 0);
  const int rc = zmq_socket_monitor(socket.handle(), address.c_str(), events);
  TROUPE_ASSERT(rc == 0, "the monitor's address is unique");
  pair_.connect(address);
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

Result<WakeFd> WakeFd::create() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return io_error("cannot create an eventfd", errno, "raise ulimit -n");
  return WakeFd(std::move(fd));
}

void WakeFd::ring() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
}

void WakeFd::clear() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(fd_.get(), &count, sizeof count);
}

}  // namespace troupe::zmq_link
