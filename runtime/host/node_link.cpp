#include "runtime/host/node_link.hpp"

namespace troupe {
namespace {

constexpr std::size_t kRequestsUnderWay = 256;

ErrorInfo node_gone(const std::string& why) {
  return {ErrorCode::kUnavailable, "this host's node cannot be asked", why,
          "its driver gets another node: spawn actors there again"};
}

}  // namespace

NodeLink::NodeLink(ProcessAddress self, std::unique_ptr<NodeChannel> channel)
    : self_(self), channel_(std::move(channel)) {}

NodeLink::~NodeLink() {
  stop();
}

void NodeLink::start(UniqueFd doorbell, Handlers handlers) {
  handlers_ = std::move(handlers);
  NodeChannel::Handlers from_channel;
  from_channel.on_message = [this](Message message) {
    const bool answer = message.header.kind == wire::FrameKind::kControl &&
                        message.header.id == wire::Control(wire::Answer{}).index();
    if (answer) return on_answer(std::move(message));
    handlers_.on_message(std::move(message));
    return true;
  };
  from_channel.on_room = [this] {
    flush_unsent();
    handlers_.on_room();
  };
  from_channel.on_pulse = [this] { tell(wire::Pulse{}); };
  from_channel.on_closed = [this](const std::string& why) { lost(why); };
  channel_->start(self_, std::move(doorbell), std::move(from_channel));
}

void NodeLink::stop() {
  channel_->stop();
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

void NodeLink::waits(std::uint64_t request, std::string why) {
  const std::lock_guard lock(mutex_);
  if (const auto at = asked_.find(request); at != asked_.end())
    at->second.state->set_waits_for(std::move(why));
}

bool NodeLink::on_answer(Message message) {
  auto decoded = wire::decode<wire::Answer>(message.body);
  if (!decoded) {
    lost("its answer does not decode: " + decoded.error().message());
    return false;
  }
  std::shared_ptr<CallState> state;
  std::vector<std::pair<std::uint64_t, wire::Control>> next;
  {
    const std::lock_guard lock(mutex_);
    const auto at = asked_.find(decoded->request);
    if (at == asked_.end()) return true;
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
  return true;
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
