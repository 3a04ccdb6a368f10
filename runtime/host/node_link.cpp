#include "runtime/host/node_link.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/link/socket/first_exchange.hpp"

namespace troupe {
namespace {

constexpr Duration kPulse = std::chrono::seconds(1);
constexpr std::size_t kRequestsUnderWay = 256;
/// Senders hold themselves back by windows; this bounds what all of them together may queue.
constexpr int kMessagesATurn = 256;

ErrorInfo node_gone(const std::string& why) {
  return {ErrorCode::kUnavailable, "this host's node cannot be asked", why,
          "its driver gets another node: spawn actors there again"};
}

}  // namespace

NodeLink::NodeLink(ProcessAddress self, SocketLink link)
    : self_(self), link_(std::move(link)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

NodeLink::~NodeLink() {
  stop();
}

void NodeLink::start(UniqueFd doorbell, Handlers handlers) {
  handlers_ = std::move(handlers);
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(doorbell));
  if (!send_control(link_, self_, wire::Hello{}, std::move(fds))) {
    throw Unavailable(
        {ErrorCode::kUnavailable, "cannot reach this host's node", "it closed the link", "see its output"});
  }
  thread_ = start_quiet_thread([this] { run(); });
}

void NodeLink::stop() {
  if (stopping_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

Sent NodeLink::send(const wire::FrameHeader& header, wire::ByteView body) {
  const Sent sent = link_.send(header, body);
  if (sent == Sent::kFull) refused_ = true;
  if (link_.wants_write()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  }
  return sent;
}

void NodeLink::tell(const wire::Control& message) {
  wire::FrameHeader header;
  header.from = self_;
  auto body = wire::encode_control(message, header);
  const std::lock_guard lock(unsent_mutex_);
  if (unsent_.empty() && send(header, body) != Sent::kFull) return;
  unsent_.push_back({header, std::move(body)});
}

void NodeLink::flush_unsent() {
  const std::lock_guard lock(unsent_mutex_);
  while (!unsent_.empty() && send(unsent_.front().header, unsent_.front().body) != Sent::kFull) {
    unsent_.pop_front();
  }
}

NodeLink::Request NodeLink::ask(const MakeRequest& make, Waiter* waiter) {
  Request request{next_.fetch_add(1), std::make_shared<CallState>(waiter)};
  auto message = make(request.number);
  std::string why;
  bool now = false;
  {
    const std::lock_guard lock(mutex_);
    why = lost_;
    if (why.empty()) {
      asked_.emplace(request.number, Asked{request.state});
      now = waiting_.empty() && under_way_ < kRequestsUnderWay;
      if (now) ++under_way_;
      if (!now) waiting_.emplace_back(request.number, std::move(message));
    }
  }
  if (!why.empty()) {
    request.state->resolve(node_gone(why));
  } else if (now) {
    tell(message);
  }
  return request;
}

std::vector<UniqueFd> NodeLink::take_fds(std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  const auto found = answered_fds_.extract(request);
  return found.empty() ? std::vector<UniqueFd>() : std::move(found.mapped());
}

void NodeLink::run() {
  const NoWaitScope receives;
  const MonotonicClock clock;
  Instant next_pulse = clock.now() + kPulse;
  while (!stopping_) {
    const auto left = std::max(Duration::zero(), next_pulse - clock.now());
    pollfd waits[2] = {{link_.fd(), static_cast<short>(POLLIN | (link_.wants_write() ? POLLOUT : 0)), 0},
                       {wake_.get(), POLLIN, 0}};
    ::poll(waits, 2, static_cast<int>(left / std::chrono::milliseconds(1)) + 1);
    std::uint64_t count = 0;
    if (waits[1].revents != 0) [[maybe_unused]]
      const auto got = ::read(wake_.get(), &count, sizeof count);
    if (clock.now() >= next_pulse) {
      next_pulse = clock.now() + kPulse;
      tell(wire::Pulse{});
    }
    link_.flush();
    if (!link_.wants_write() && refused_.exchange(false)) {
      flush_unsent();
      handlers_.on_room();
    }
    receive_all();
    if (const std::lock_guard lock(mutex_); !lost_.empty()) return;
  }
}

void NodeLink::receive_all() {
  for (int i = 0; i < kMessagesATurn && !stopping_; ++i) {
    Message message;
    const auto got = link_.receive(message);
    if (got == SocketLink::Got::kNothing) return;
    if (got == SocketLink::Got::kClosed) return lost(link_.why_closed());
    const bool answer = message.header.kind == wire::FrameKind::kControl &&
                        message.header.id == wire::Control(wire::Answer{}).index();
    if (answer) {
      on_answer(std::move(message));
    } else {
      handlers_.on_message(std::move(message));
    }
  }
}

void NodeLink::on_answer(Message message) {
  auto decoded = wire::decode<wire::Answer>(message.body);
  if (!decoded) return lost("its answer does not decode: " + decoded.error().message());
  std::shared_ptr<CallState> state;
  std::vector<std::pair<std::uint64_t, wire::Control>> next;
  {
    const std::lock_guard lock(mutex_);
    const auto at = asked_.find(decoded->request);
    if (at == asked_.end()) return;
    state = std::move(at->second.state);
    asked_.erase(at);
    if (!message.fds.empty()) answered_fds_.emplace(decoded->request, std::move(message.fds));
    --under_way_;
    while (!waiting_.empty() && under_way_ < kRequestsUnderWay) {
      ++under_way_;
      next.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }
  for (const auto& [number, request] : next) tell(request);
  state->resolve(decoded->ok ? Outcome(std::move(decoded->value)) : Outcome(std::move(decoded->error)));
}

void NodeLink::lost(const std::string& why) {
  std::unordered_map<std::uint64_t, Asked> asked;
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) return;
    lost_ = why.empty() ? "it closed the link" : why;
    asked.swap(asked_);
    waiting_.clear();
  }
  for (const auto& [number, one] : asked) one.state->resolve(node_gone(lost_));
  handlers_.on_lost(lost_);
}

}  // namespace troupe
