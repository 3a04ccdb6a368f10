/// The Transport between hosts on ZeroMQ with CURVE. docs/links.md gives the protocol, README.md the limits.
///
/// - Both ends prove their keys before a byte of payload is read (CURVE, the ZAP domain enforced).
/// - One thread and one ZeroMQ context serve all links; other threads only queue.
/// - Refused: frames above 1 MiB, messages above 64 MiB, handshakes that take 5 s, and from a connection
/// whose key was
///   revoked everything.
#pragma once

#include <memory>

#include "runtime/core/clock.hpp"
#include "runtime/link/transport.hpp"

namespace troupe {

/// Make one a process. `clock` must outlive it. Throws IoError when the system has no descriptors left.
std::unique_ptr<Transport> make_zmq_transport(const Clock& clock);

}  // namespace troupe
