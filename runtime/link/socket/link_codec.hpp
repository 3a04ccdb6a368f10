/// Messages over a LocalLink: cut into packets, and put together again.
#pragma once

#include <span>

#include "runtime/link/socket/local_link.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe::wire {

/// Sends a message of any length; descriptors go with its first packet. False when the link is closed or stuck.
bool send_message(transport::LocalLink& link, const FrameHeader& header, ByteView body, std::span<const int> fds = {});
/// The same for a control message from `from` to the node (or, from a node, to its process).
bool send_control(transport::LocalLink& link, ProcessAddress from, const Control& message, std::span<const int> fds = {});

/// Receives one control message, for the first exchange on a link. Waits until `timeout`.
struct ReceivedControl {
  Control message;
  std::vector<UniqueFd> fds;
};
Result<ReceivedControl> receive_control(transport::LocalLink& link, Duration timeout);

}  // namespace troupe::wire
