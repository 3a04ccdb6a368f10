/// What the cost model between hosts (collectives/native/cost_model.cpp) is made of, measured with plain
/// sockets.
#pragma once

namespace bench {

/// Microseconds. A frame is 64 bytes over TCP.
struct Constants {
  double send = 0;     ///< of a core, to send a frame
  double receive = 0;  ///< of a core, to receive one that is there
  double poll = 0;     ///< of a core, to find by epoll that there is nothing
  double hop = 0;      ///< from a send until the other has it, both polling
  double incast = 0;   ///< until one has a frame of each of 32 that send at once
};

/// Over the loopback interface, medians. Throws std::runtime_error.
Constants measure_constants();

}  // namespace bench
