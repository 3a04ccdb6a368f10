/// Transport between machines, as one of the four seams: the head serves, nodes and remote sessions connect.
/// The real one is ZeroMQ with CURVE (machine_link.hpp); a simulated one implements the same four classes.
///
/// A connection is a session. Messages arrive whole, in order and at most once; what was queued when a
/// connection broke is dropped on both sides, never delivered on the next connection. After a reconnect the
/// owner says again what its peer must know.
///
/// Handlers run on the link's own thread. They must not block and must not destroy the link; they may call
/// send(). Destroying a link joins that thread, after which no handler runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/core/clock.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/result.hpp"
#include "runtime/security/authorizer.hpp"
#include "runtime/security/curve_keys.hpp"

namespace troupe {

/// The name that the authorizer has for the key a peer proved to hold. Nothing a peer sends can change it.
using PeerName = std::string;
using FrameHandler = std::function<void(const PeerName& from, std::span<const std::byte> message)>;

/// The longest message; longer ones are refused by send(). On the wire it goes in frames of at most 1 MiB.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;
/// Bytes and messages that may wait for one peer; beyond it send() returns false.
inline constexpr std::size_t kMaxQueuedBytes = std::size_t{128} << 20;
inline constexpr std::size_t kMaxQueuedMessages = 8192;

struct ServerHandlers {
  FrameHandler on_frame;
  std::function<void(const PeerName&)> on_peer_connected;  ///< also when a newer connection replaces one
  /// The connection ended, as far as TCP or the link's heartbeat (6 s) can tell.
  std::function<void(const PeerName&)> on_peer_gone;
};

struct ServeOptions {
  Endpoint address;  ///< default 127.0.0.1 and any free port
  CurveKeyPair keys;
  std::shared_ptr<Authorizer> authorizer;
  LogLevel refusals = LogLevel::kWarning;  ///< how loudly connections that are kept out are logged
};

/// The listening side. Thread-safe.
class MachineServer {
 public:
  virtual ~MachineServer() = default;
  /// Where it listens, with the port the system chose if 0 was asked for.
  virtual Endpoint address() const = 0;
  /// Queues `message` for `to`, without blocking. False when the peer has no connection, its queue is full or
  /// the message is longer than kMaxMessageBytes.
  virtual bool send(const PeerName& to, std::span<const std::byte> message) = 0;
};

enum class LinkState {
  kConnecting,  ///< nobody answers yet; tried again with back-off
  kConnected,   ///< both ends proved their keys
  kRefused,     ///< the peer answers but not with a handshake that fits; tried again with back-off
  kLost,        ///< the connection broke; tried again with back-off
};

struct ClientHandlers {
  std::function<void(std::span<const std::byte> message)> on_frame;
  std::function<void(LinkState, const std::string& why)> on_state;
};

struct ConnectOptions {
  Endpoint address;
  PublicKey server_key;
  CurveKeyPair keys;
  /// How long connect() waits for the first handshake. Zero: it returns at once and on_state tells.
  Duration wait = std::chrono::seconds(10);
};

/// The connecting side. Thread-safe.
class MachineClient {
 public:
  virtual ~MachineClient() = default;
  virtual LinkState state() const = 0;
  /// As MachineServer::send. False while not connected.
  virtual bool send(std::span<const std::byte> message) = 0;
};

/// Makes links. Thread-safe.
class MachineTransport {
 public:
  virtual ~MachineTransport() = default;
  /// Errors: kBadConfig (the address), kIo (the port is in use, or may not be used).
  virtual Result<std::unique_ptr<MachineServer>> serve(ServeOptions options, ServerHandlers handlers) = 0;
  /// Errors: kRefused (wrong key, or no troupe server there), kTimeout (nobody answered within `wait`).
  virtual Result<std::unique_ptr<MachineClient>> connect(ConnectOptions options, ClientHandlers handlers) = 0;
};

}  // namespace troupe
