#include "scheduler/jobs/head_session.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/link/zmq/zmq_transport.hpp"

namespace troupe {
namespace {

/// A head that died is back within a second: it is tried again that soon.
constexpr Duration kAgain = std::chrono::milliseconds(200);
constexpr Duration kMostForOne = std::chrono::seconds(5);

bool may_pass(const ErrorInfo& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout;
}

}  // namespace

struct HeadSession::Connection {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, wire::Answer> answers;  ///< guarded by mutex
  std::optional<std::string> lost;                ///< guarded by mutex: why the connection is of no use
  std::unique_ptr<LinkClient> link;

  void receive(wire::ByteView frame) {
    const auto header = wire::decode_header(frame);
    auto message = header ? wire::decode_control(*header, frame.subspan(wire::kHeaderBytes))
                          : Result<wire::Control>(header.error());
    const std::lock_guard lock(mutex);
    if (auto* answer = message ? std::get_if<wire::Answer>(&*message) : nullptr) {
      answers.insert_or_assign(answer->request, std::move(*answer));
    } else {
      lost = "the head said something else than an answer";
    }
    changed.notify_all();
  }
  void lose(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (!lost) lost = why;
    changed.notify_all();
  }
};

HeadSession::HeadSession(ClusterFolder folder, std::optional<Endpoint> address)
    : folder_(std::move(folder)), address_(std::move(address)), transport_(make_zmq_transport(clock_)) {}

HeadSession::~HeadSession() = default;

/// The folder's key is for one question at a time: it lets in a key of our own.
Result<void> HeadSession::connect(Duration timeout) {
  auto contact = folder_.contact(address_);
  if (!contact) return contact.error();
  const auto keys = CurveKeyPair::generate();
  auto let_in = folder_.ask(*contact, wire::ClientAsk{1, to_string(keys.public_key())}, timeout);
  if (!let_in) return let_in.error();
  auto connection = std::make_unique<Connection>();
  Connection* to = connection.get();
  ClientHandlers handlers;
  handlers.on_message = [to](const wire::Bytes& frame) { to->receive(frame); };
  handlers.on_room = [] {};
  handlers.on_state = [to](LinkState state, const std::string& why) {
    if (state == LinkState::kLost || state == LinkState::kRefused) to->lose(why);
  };
  auto link = transport_->connect({contact->address, contact->head_key, keys, timeout}, std::move(handlers));
  if (!link) return link.error();
  connection->link = *std::move(link);
  connection_ = std::move(connection);
  return {};
}

Result<wire::Bytes> HeadSession::ask_again(const wire::Control& message, std::uint64_t request,
                                           Duration timeout) {
  const Instant deadline = clock_.now() + timeout;
  ErrorInfo failure{ErrorCode::kTimeout, "cannot ask the head", "it did not answer in time",
                    "look at its log"};
  for (bool first = true; first || clock_.now() < deadline; first = false) {
    if (!first) std::this_thread::sleep_for(std::min(kAgain, std::max(Duration(0), deadline - clock_.now())));
    const Duration left = std::max(Duration(kAgain), deadline - clock_.now());
    if (connection_ == nullptr) {
      if (auto connected = connect(std::min(left, kMostForOne)); !connected) {
        failure = connected.error();
        if (!may_pass(failure)) return failure;
        continue;
      }
    }
    Connection& to = *connection_;
    if (to.link->send(wire::control_frame(message)) == Sent::kQueued) {
      std::unique_lock lock(to.mutex);
      to.changed.wait_for(lock, std::max(Duration(kAgain), deadline - clock_.now()),
                          [&] { return to.answers.contains(request) || to.lost; });
      if (auto answered = to.answers.extract(request); !answered.empty()) {
        wire::Answer answer = std::move(answered.mapped());
        if (!answer.ok) return answer.error;
        return std::move(answer.value);
      }
      failure.why = to.lost.value_or("it did not answer in time");
    }
    connection_.reset();
  }
  return failure;
}

}  // namespace troupe
