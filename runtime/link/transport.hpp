/// Links between hosts, as one of the four seams: a node or the head serves, nodes and remote sessions
/// connect. The real one is ZeroMQ with CURVE (zmq/zmq_transport.hpp); a simulated one implements the same
/// classes.
///
/// A session is a Link (link.hpp): messages arrive whole, once and in order, or it ends. What was queued when
/// it ended is never delivered on the next one: the owner hears of the end, and says again what its peer must
/// know. A message is a whole frame, header and body (wire::whole_frame).
///
/// Handlers run on the transport's one thread, which serves every link: they must not block, and must not
/// destroy a link; they may send. Destroying a link takes its last words to the peer (half a second at most),
/// after which none of its handlers runs. The transport must outlive its links.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/core/clock.hpp"
#include "runtime/core/endpoint.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/result.hpp"
#include "runtime/link/link.hpp"
#include "runtime/security/authorizer.hpp"
#include "runtime/security/curve_keys.hpp"

namespace troupe {

/// The name that the authorizer has for the key a peer proved to hold. Nothing a peer sends can change it.
using PeerName = std::string;

struct ServerHandlers {
  /// A new session of that peer began. The one it had before, if any, has ended: on_gone does not come for
  /// it.
  std::function<void(const PeerName&)> on_session;
  std::function<void(const PeerName&, wire::Bytes frame)> on_message;
  /// Whether another message may come. While not, none is received: peers are held back, as by a link that is
  /// full, and nothing is lost. Asked in the transport's thread, again and again. Empty: always.
  std::function<bool()> may_receive{};
  /// The session ended, and what was still queued for it is gone. What had arrived was delivered before.
  std::function<void(const PeerName&, const std::string& why)> on_gone;
  /// After a kFull: half of the queue is free.
  std::function<void(const PeerName&)> on_room;
};

struct ServeOptions {
  Endpoint address;  ///< default 127.0.0.1 and any free port
  CurveKeyPair keys;
  std::shared_ptr<Authorizer> authorizer;
  LogLevel refusals = LogLevel::kWarning;     ///< how loudly connections that are kept out are logged
  std::size_t queue_bytes = kLinkQueueBytes;  ///< that may wait for one peer
};

/// The listening side. Thread-safe.
class LinkServer {
 public:
  virtual ~LinkServer() = default;
  /// Where it listens, with the port the system chose if 0 was asked for.
  virtual Endpoint address() const = 0;
  /// Queues `frame` for the session of `to`, without blocking. Takes it with kQueued alone; otherwise the
  /// caller still has it. kClosed: `to` has no session.
  virtual Sent send(const PeerName& to, wire::Bytes&& frame) = 0;
};

enum class LinkState {
  kConnecting,  ///< nobody answers yet; tried again with back-off
  kConnected,   ///< both ends proved their keys: a session
  kRefused,     ///< the peer answers but not with a handshake that fits; tried again with back-off
  kLost,        ///< the session ended, and what was still queued for it is gone; tried again with back-off
};

struct ClientHandlers {
  std::function<void(LinkState, const std::string& why)> on_state;
  std::function<void(wire::Bytes frame)> on_message;
  /// After a kFull: half of the queue is free.
  std::function<void()> on_room;
};

struct ConnectOptions {
  Endpoint address;
  PublicKey server_key;
  CurveKeyPair keys;
  /// How long connect() waits for the first handshake. Zero: it returns at once and on_state tells.
  Duration wait = std::chrono::seconds(10);
  std::size_t queue_bytes = kLinkQueueBytes;
};

/// The connecting side. Thread-safe.
class LinkClient {
 public:
  virtual ~LinkClient() = default;
  virtual LinkState state() const = 0;
  /// As LinkServer::send. kClosed: there is no session now.
  virtual Sent send(wire::Bytes&& frame) = 0;
};

/// Makes links. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Errors: kBadConfig (the address), kIo (the port is in use, or may not be used).
  virtual Result<std::unique_ptr<LinkServer>> serve(ServeOptions options, ServerHandlers handlers) = 0;
  /// Errors: kBadConfig (the address), kRefused (wrong key, or no troupe server there), kTimeout (nobody
  /// answered within `wait`).
  virtual Result<std::unique_ptr<LinkClient>> connect(ConnectOptions options, ClientHandlers handlers) = 0;
};

}  // namespace troupe
