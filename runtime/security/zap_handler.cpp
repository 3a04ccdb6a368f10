#include "runtime/security/zap_handler.hpp"

#include <algorithm>
#include <array>

namespace troupe {

namespace {

// Frames of a request, after the delimiter that a REP socket strips: version, request id, domain, address,
// routing id, mechanism, credentials.
constexpr std::size_t kCurveRequestFrames = 7;
constexpr std::size_t kMaxRequestFrames = 32;

ZapVerdict refuse(const std::vector<std::string>& frames, std::string why) {
  return {false, frames.size() > 1 ? frames[1] : std::string(), {}, std::move(why)};
}

std::vector<std::string> receive_request(zmq::socket_t& socket) {
  std::vector<std::string> frames;
  zmq::message_t part;
  do {
    if (zmq_msg_recv(part.handle(), socket.handle(), ZMQ_DONTWAIT) < 0) break;
    if (frames.size() < kMaxRequestFrames) frames.push_back(part.to_string());
  } while (part.more());
  return frames;
}

void send_reply(zmq::socket_t& socket, const ZapVerdict& verdict) {
  const std::array<std::string_view, 6> frames = {"1.0",
                                                  verdict.request_id,
                                                  verdict.accepted ? "200" : "400",
                                                  verdict.accepted ? "OK" : "refused",
                                                  verdict.user_id,
                                                  ""};
  for (std::size_t i = 0; i < frames.size(); ++i) {
    zmq_send(socket.handle(), frames[i].data(), frames[i].size(),
             ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0));
  }
}

}  // namespace

ZapVerdict judge_zap_request(const std::vector<std::string>& frames, const Authorizer& authorizer,
                             std::string_view own_domain) {
  if (frames.size() != kCurveRequestFrames) return refuse(frames, "not a CURVE request");
  const auto& [version, domain, mechanism, key] = std::tie(frames[0], frames[2], frames[5], frames[6]);
  if (version != "1.0") return refuse(frames, "unknown version of ZAP");
  if (domain != own_domain) return refuse(frames, "another domain");
  if (mechanism != "CURVE") return refuse(frames, "mechanism " + mechanism + " instead of CURVE");
  if (key.size() != PublicKey::kSize) return refuse(frames, "a key of another size");
  PublicKey client;
  std::copy_n(std::as_bytes(std::span(key)).begin(), PublicKey::kSize, client.bytes.begin());
  if (!authorizer.find(client)) return refuse(frames, "unknown key " + to_string(client));
  return {true, frames[1], to_string(client), {}};
}

Result<std::unique_ptr<ZapHandler>> ZapHandler::start(zmq::context_t& context) {
  zmq::socket_t socket(context, zmq::socket_type::rep);
  socket.set(zmq::sockopt::linger, 0);
  if (zmq_bind(socket.handle(), "inproc://zeromq.zap.01") != 0) {
    return ErrorInfo{ErrorCode::kInternal, "cannot start the ZAP handler", zmq_strerror(zmq_errno()), ""};
  }
  return std::unique_ptr<ZapHandler>(new ZapHandler(std::move(socket)));
}

std::string ZapHandler::add_domain(std::shared_ptr<const Authorizer> authorizer, LogLevel refusals) {
  const std::lock_guard lock(mutex_);
  std::string domain = std::string(kZapDomain) + "-" + std::to_string(++last_domain_);
  domains_.emplace(domain, Domain{std::move(authorizer), LimitedLog(refusals)});
  return domain;
}

void ZapHandler::remove_domain(const std::string& domain) {
  const std::lock_guard lock(mutex_);
  domains_.erase(domain);
}

int ZapHandler::fd() {
  return socket_.get(zmq::sockopt::fd);
}

void ZapHandler::serve() {
  const MonotonicClock clock;
  for (auto frames = receive_request(socket_); !frames.empty(); frames = receive_request(socket_)) {
    ZapVerdict verdict = refuse(frames, "another domain");
    const std::lock_guard lock(mutex_);
    const auto domain = frames.size() > 2 ? domains_.find(frames[2]) : domains_.end();
    if (domain != domains_.end())
      verdict = judge_zap_request(frames, *domain->second.authorizer, domain->first);
    if (!verdict.accepted && domain != domains_.end()) {
      const std::string from = frames.size() > 3 ? " from " + frames[3] : "";
      domain->second.refusals("refused a connection" + from + ": " + verdict.why, clock.now());
    }
    send_reply(socket_, verdict);
  }
}

}  // namespace troupe
