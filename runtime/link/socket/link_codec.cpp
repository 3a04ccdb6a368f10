#include "runtime/link/socket/link_codec.hpp"

#include <poll.h>

namespace troupe::wire {

bool send_message(transport::LocalLink& link, const FrameHeader& header, ByteView body, std::span<const int> fds) {
  return fragment(header, body, transport::kPacketMax, [&](ByteView head, ByteView part) {
    const auto status = link.send(head, part, fds, true);
    fds = {};
    return status == transport::LinkStatus::kOk;
  });
}

bool send_control(transport::LocalLink& link, ProcessAddress from, const Control& message, std::span<const int> fds) {
  FrameHeader header;
  header.from = from;
  const Bytes body = encode_control(message, header);
  return send_message(link, header, body, fds);
}

Result<ReceivedControl> receive_control(transport::LocalLink& link, Duration timeout) {
  ErrorInfo closed{ErrorCode::kUnavailable, "the other end of a link did not answer", "it ended or sent something else", ""};
  pollfd wait{link.fd(), POLLIN, 0};
  if (::poll(&wait, 1, static_cast<int>(timeout / std::chrono::milliseconds(1))) <= 0) {
    closed.code = ErrorCode::kTimeout;
    closed.why = "nothing came within " + std::to_string(to_seconds(timeout)) + " s";
    return closed;
  }
  transport::Packet packet;
  if (link.receive(packet, false) != transport::LinkStatus::kOk) return closed;
  const auto header = decode_header(packet.bytes);
  if (!header) return header.error();
  if (header->kind != FrameKind::kControl || (header->flags & kFlagMore) != 0) return closed;
  auto message = decode_control(*header, ByteView(packet.bytes).subspan(kHeaderBytes));
  if (!message) return message.error();
  return ReceivedControl{*std::move(message), std::move(packet.fds)};
}

}  // namespace troupe::wire
