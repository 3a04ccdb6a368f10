/// The Transport between machines on ZeroMQ with CURVE. See README.md for the protocol and its limits.
///
/// - Both ends prove their keys before a byte of payload is read (CURVE, the ZAP domain enforced).
/// - Each link has one thread that owns its sockets; other threads only queue.
/// - Refused: frames above 1 MiB, messages above 64 MiB, handshakes that take 5 s, and from a connection
/// whose
///   key was revoked everything.
#pragma once

#include <memory>

#include "runtime/core/clock.hpp"
#include "runtime/link/transport.hpp"

namespace troupe {

/// Thread-safe. `clock` must outlive every link.
std::unique_ptr<MachineTransport> make_zmq_transport(const Clock& clock);

}  // namespace troupe
