/// The ZAP handler (ZeroMQ RFC 27): the doorkeeper of one ZeroMQ context.
///
/// ZAP fails open: without a handler libzmq lets every CURVE client in. So a handler is up before the first
/// bind of its context, and every server socket sets ZMQ_ZAP_DOMAIN and ZMQ_ZAP_ENFORCE_DOMAIN, which turn a
/// missing handler into a refusal.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "runtime/core/log_limiter.hpp"
#include "runtime/core/result.hpp"
#include "runtime/security/authorizer.hpp"

namespace troupe {

inline constexpr std::string_view kZapDomain = "troupe";  ///< the start of each server's own domain

/// What the handler says of one handshake.
struct ZapVerdict {
  bool accepted = false;
  std::string request_id;
  std::string user_id;  ///< the proven public key in Z85; libzmq attaches it to every message of the peer
  std::string why;      ///< of a refusal
};

/// The decision: CURVE alone, `domain` alone, and a key that `authorizer` knows. Total over any frames.
ZapVerdict judge_zap_request(const std::vector<std::string>& frames, const Authorizer& authorizer,
                             std::string_view domain = kZapDomain);

/// Answers the handshakes of `context`. One a context. The thread that owns it calls serve() when fd() is
/// readable.
class ZapHandler {
 public:
  /// From then on no handshake of the context succeeds but by serve(). Errors: kInternal when the context
  /// already has a handler.
  static Result<std::unique_ptr<ZapHandler>> start(zmq::context_t& context);

  /// A new domain, for one server: it asks `authorizer`, and logs whom it refuses at the level `refusals`.
  /// Thread-safe.
  std::string add_domain(std::shared_ptr<const Authorizer> authorizer,
                         LogLevel refusals = LogLevel::kWarning);
  /// Refuses the domain's handshakes from now on. Thread-safe.
  void remove_domain(const std::string& domain);

  /// A ZeroMQ descriptor: readable when there may be something to serve.
  int fd();
  /// Answers every request that is there.
  void serve();

 private:
  struct Domain {
    std::shared_ptr<const Authorizer> authorizer;
    LimitedLog refusals;
  };
  explicit ZapHandler(zmq::socket_t socket) : socket_(std::move(socket)) {}

  zmq::socket_t socket_;
  std::mutex mutex_;  ///< guards all below
  std::map<std::string, Domain, std::less<>> domains_;
  std::uint64_t last_domain_ = 0;
};

}  // namespace troupe
