/// Signs of life of a head or a node, for whoever started it.
#pragma once

#include "runtime/link/socket/socket_link.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

inline constexpr Duration kPulse = std::chrono::seconds(1);

/// Never waits: a launcher that reads nothing is stopped itself.
inline void send_pulse(SocketLink& launcher) {
  wire::FrameHeader header;
  const auto body = wire::encode_control(wire::Pulse{}, header);
  launcher.flush();
  if (!launcher.wants_write()) launcher.send(header, body);
}

}  // namespace troupe
