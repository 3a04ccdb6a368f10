#include "runtime/security/zap_handler.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/core/log_limiter.hpp"
#include "runtime/core/quiet_thread.hpp"

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

ZapVerdict judge_zap_request(const std::vector<std::string>& frames, const Authorizer& authorizer) {
  if (frames.size() != kCurveRequestFrames) return refuse(frames, "not a CURVE request");
  const auto& [version, domain, mechanism, key] = std::tie(frames[0], frames[2], frames[5], frames[6]);
  if (version != "1.0") return refuse(frames, "unknown version of ZAP");
  if (domain != kZapDomain) return refuse(frames, "another domain");
  if (mechanism != "CURVE") return refuse(frames, "mechanism " + mechanism + " instead of CURVE");
  if (key.size() != PublicKey::kSize) return refuse(frames, "a key of another size");
  PublicKey client;
  std::copy_n(std::as_bytes(std::span(key)).begin(), PublicKey::kSize, client.bytes.begin());
  if (!authorizer.find(client)) return refuse(frames, "unknown key " + to_string(client));
  return {true, frames[1], to_string(client), {}};
}

Result<std::unique_ptr<ZapHandler>> ZapHandler::start(zmq::context_t& context,
                                                      std::shared_ptr<const Authorizer> authorizer,
                                                      LogLevel refusals) {
  zmq::socket_t socket(context, zmq::socket_type::rep);
  socket.set(zmq::sockopt::linger, 0);
  if (zmq_bind(socket.handle(), "inproc://zeromq.zap.01") != 0) {
    return ErrorInfo{ErrorCode::kInternal, "cannot start the ZAP handler", zmq_strerror(zmq_errno()), ""};
  }
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return io_error("cannot create an eventfd", errno, "raise ulimit -n");
  return std::unique_ptr<ZapHandler>(
      new ZapHandler(std::move(socket), std::move(stop), std::move(authorizer), refusals));
}

ZapHandler::ZapHandler(zmq::socket_t socket, UniqueFd stop, std::shared_ptr<const Authorizer> authorizer, LogLevel refusals)
    : socket_(std::move(socket)), stop_(std::move(stop)), authorizer_(std::move(authorizer)), refusal_level_(refusals) {
  thread_ = start_quiet_thread([this] { serve(); });
}

ZapHandler::~ZapHandler() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void ZapHandler::serve() {
  std::array<zmq_pollitem_t, 2> items = {
      {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, stop_.get(), ZMQ_POLLIN, 0}}};
  const MonotonicClock clock;
  LimitedLog refusals(refusal_level_);
  // The wait has no deadline: its abort is the eventfd of the destructor.
  while (zmq_poll(items.data(), static_cast<int>(items.size()), -1) >= 0 || zmq_errno() == EINTR) {
    if ((items[1].revents & ZMQ_POLLIN) != 0) return;
    if ((items[0].revents & ZMQ_POLLIN) == 0) continue;
    const auto frames = receive_request(socket_);
    if (frames.empty()) continue;
    const ZapVerdict verdict = judge_zap_request(frames, *authorizer_);
    if (!verdict.accepted) {
      const std::string from = frames.size() > 3 ? " from " + frames[3] : "";
      refusals("refused a connection" + from + ": " + verdict.why, clock.now());
    }
    send_reply(socket_, verdict);
  }
}

}  // namespace troupe
