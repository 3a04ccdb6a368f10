#include "scheduler/head/head_client.hpp"

#include <condition_variable>
#include <mutex>
#include <optional>

#include "runtime/link/zmq/zmq_transport.hpp"

namespace troupe {
namespace {

Result<wire::Bytes> read_answer(wire::ByteView frame) {
  const auto header = wire::decode_header(frame);
  if (!header) return header.error();
  auto message = wire::decode_control(*header, frame.subspan(wire::kHeaderBytes));
  if (!message) return message.error();
  auto* answer = std::get_if<wire::Answer>(&*message);
  if (answer == nullptr) {
    return ErrorInfo{ErrorCode::kBadInput, "the head said something else than an answer", "",
                     "both sides must run the same build"};
  }
  if (!answer->ok) return answer->error;
  return std::move(answer->value);
}

/// What the link's thread leaves for the one that waits.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<wire::Bytes>> answer;
};

}  // namespace

Result<wire::Bytes> ask_head(const HeadContact& head, const wire::Control& message, Duration timeout) {
  const MonotonicClock clock;
  const Instant deadline = clock.now() + timeout;
  Mailbox box;
  const auto leave = [&box](Result<wire::Bytes> answer) {
    const std::lock_guard lock(box.mutex);
    if (!box.answer) box.answer.emplace(std::move(answer));
    box.changed.notify_all();
  };
  const std::string what = "cannot ask the head at " + to_string(head.address);
  ClientHandlers handlers;
  handlers.on_message = [&](const wire::Bytes& frame) { leave(read_answer(frame)); };
  handlers.on_room = [] {};
  handlers.on_state = [&](LinkState state, const std::string& why) {
    if (state == LinkState::kLost) leave(ErrorInfo{ErrorCode::kUnavailable, what, why, "try again"});
  };
  const auto transport = make_zmq_transport(clock);
  auto client = transport->connect({head.address, head.head_key, head.keys, timeout}, std::move(handlers));
  if (!client) return client.error();
  if ((*client)->send(wire::control_frame(message)) != Sent::kQueued)
    return ErrorInfo{ErrorCode::kUnavailable, what, "the connection broke", "try again"};
  std::unique_lock lock(box.mutex);
  const bool answered =
      box.changed.wait_for(lock, deadline - clock.now(), [&] { return box.answer.has_value(); });
  if (!answered) return ErrorInfo{ErrorCode::kTimeout, what, "it did not answer in time", "look at its log"};
  auto answer = std::move(*box.answer);
  lock.unlock();
  client->reset();  // its thread may still touch the mailbox
  return answer;
}

Result<void> tell_head(const HeadContact& head, const wire::Control& message, Duration timeout) {
  const MonotonicClock clock;
  ClientHandlers handlers;
  handlers.on_message = [](const wire::Bytes&) {};
  handlers.on_room = [] {};
  handlers.on_state = [](LinkState, const std::string&) {};
  const auto transport = make_zmq_transport(clock);
  auto client = transport->connect({head.address, head.head_key, head.keys, timeout}, std::move(handlers));
  if (!client) return client.error();
  if ((*client)->send(wire::control_frame(message)) != Sent::kQueued) {
    return ErrorInfo{ErrorCode::kUnavailable, "cannot tell the head at " + to_string(head.address),
                     "the connection broke", "try again"};
  }
  return {};  // the client's last words wait until they are heard
}

Result<void> enroll(const JoinToken& token, const CurveKeyPair& keys, Duration timeout) {
  constexpr Duration kAnswers = std::chrono::milliseconds(300);
  constexpr Duration kOwnKey = std::chrono::seconds(2);
  Result<wire::Bytes> answer = wire::Bytes{};
  for (const Duration patience : {kAnswers, timeout}) {
    answer = ask_head({token.head, token.head_key, token.one_time},
                      wire::EnrollAsk{1, to_string(keys.public_key())}, patience);
    if (answer) return {};
    // The one-time key is worth nothing once ours is in, mostly before the head's answer got out. Being let
    // in with our own key says the same.
    if (ask_head({token.head, token.head_key, keys}, wire::StatusAsk{1}, kOwnKey)) return {};
    if (answer.error().code == ErrorCode::kRefused) break;
  }
  return answer.error();
}

}  // namespace troupe
