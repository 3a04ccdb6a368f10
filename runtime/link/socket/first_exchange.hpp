/// The first words on a SocketLink, before its owner has a loop: these wait.
#pragma once

#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/link/socket/socket_link.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// Sends a control message from `from` to the node (or, from a node, to its process) and waits until the
/// socket took it. False when the link closed or took nothing for 10 s.
bool send_control(SocketLink& link, ProcessAddress from, const wire::Control& message,
                  std::vector<UniqueFd> fds = {});

struct ReceivedControl {
  wire::Control message;
  std::vector<UniqueFd> fds;
};
/// Receives one control message. Errors: kTimeout, kUnavailable (the link closed, with the reason), kBadInput
/// (something else came).
Result<ReceivedControl> receive_control(SocketLink& link, Duration timeout);

}  // namespace troupe
