/// The ZAP handler (ZeroMQ RFC 27): the doorkeeper of one ZeroMQ context.
///
/// ZAP fails open: without a handler libzmq lets every CURVE client in. So a handler is up before the first
/// bind of its context, and every server socket sets ZMQ_ZAP_DOMAIN and ZMQ_ZAP_ENFORCE_DOMAIN, which turn a
/// missing handler into a refusal.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "runtime/core/fd.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/result.hpp"
#include "runtime/security/authorizer.hpp"

namespace troupe {

inline constexpr std::string_view kZapDomain = "troupe";

/// What the handler says of one handshake.
struct ZapVerdict {
  bool accepted = false;
  std::string request_id;
  std::string user_id;  ///< the proven public key in Z85; libzmq attaches it to every message of the peer
  std::string why;      ///< of a refusal
};

/// The decision: CURVE alone, our domain alone, and a key that `authorizer` knows. Total over any frames.
ZapVerdict judge_zap_request(const std::vector<std::string>& frames, const Authorizer& authorizer);

/// Answers the handshakes of `context` on a thread of its own until destroyed. One a context.
class ZapHandler {
 public:
  /// Is answering when it returns; logs whom it refuses at the level `refusals`. Errors: kInternal when the context already has a handler.
  static Result<std::unique_ptr<ZapHandler>> start(zmq::context_t& context,
                                                   std::shared_ptr<const Authorizer> authorizer,
                                                   LogLevel refusals = LogLevel::kWarning);
  ~ZapHandler();

 private:
  ZapHandler(zmq::socket_t socket, UniqueFd stop, std::shared_ptr<const Authorizer> authorizer,
             LogLevel refusals);
  void serve();

  zmq::socket_t socket_;
  UniqueFd stop_;
  std::shared_ptr<const Authorizer> authorizer_;
  const LogLevel refusal_level_;
  std::thread thread_;
};

}  // namespace troupe
