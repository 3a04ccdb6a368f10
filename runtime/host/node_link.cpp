#include "runtime/host/node_link.hpp"

#include "runtime/core/log.hpp"

namespace troupe {
namespace {

ErrorInfo node_gone(const std::string& why) {
  return {ErrorCode::kUnavailable, "this host's node cannot be asked", why, kSpawnThere};
}

}  // namespace

ErrorInfo own_node_gone(std::string what, const std::string& why, std::string todo) {
  return {ErrorCode::kUnavailable, std::move(what), "this host's node is gone: " + why, std::move(todo)};
}

NodeLink::NodeLink(ProcessAddress self, std::unique_ptr<NodeChannel> channel)
    : self_(self), channel_(std::move(channel)) {}

NodeLink::~NodeLink() {
  stop();
}

void NodeLink::start(UniqueFd doorbell, Handlers handlers) {
  handlers_ = std::move(handlers);
  NodeChannel::Handlers from_channel;
  from_channel.on_message = [this](Message message) {
    unanswered_ = 0;
    const bool is_control = message.header.kind == wire::FrameKind::kControl;
    if (is_control && message.header.id == wire::Control(wire::Answer{}).index())
      return on_answer(std::move(message));
    if (is_control && message.header.id == wire::Control(wire::Pulse{}).index()) return true;
    handlers_.on_message(std::move(message));
    return true;
  };
  from_channel.on_room = [this] {
    flush_unsent();
    handlers_.on_room();
  };
  from_channel.on_pulse = [this] { return on_pulse(); };
  from_channel.on_closed = [this](const std::string& why) { lost(why); };
  channel_->start(self_, std::move(doorbell), std::move(from_channel));
}

void NodeLink::stop() {
  channel_->stop();
}

void NodeLink::tell(const wire::Control& message) {
  queue_unsent({message});
  flush_unsent();
}

void NodeLink::queue_unsent(const RequestQueue::Messages& messages) {
  const std::lock_guard lock(unsent_mutex_);
  for (const auto& message : messages) {
    wire::FrameHeader header;
    header.from = self_;
    auto body = wire::encode_control(message, header);
    unsent_.push_back({header, std::move(body)});
  }
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
  {
    const std::lock_guard lock(mutex_);
    why = lost_;
    if (why.empty()) {
      asked_.emplace(request.number, request.state);
      RequestQueue::Messages now;
      requests_.ask(request.number, std::move(message), now);
      queue_unsent(now);
    }
  }
  if (!why.empty()) {
    request.state->resolve(node_gone(why));
  } else {
    flush_unsent();
  }
  return request;
}

std::vector<UniqueFd> NodeLink::take_fds(std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  const auto found = answered_fds_.extract(request);
  return found.empty() ? std::vector<UniqueFd>() : std::move(found.mapped());
}

void NodeLink::waits(std::uint64_t request, std::string why) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = asked_.find(request);
    if (at == asked_.end()) return;
    at->second->set_waits_for(std::move(why));
    RequestQueue::Messages now;
    requests_.waits(request, now);
    queue_unsent(now);
  }
  flush_unsent();
}

void NodeLink::cancel(std::uint64_t request) {
  {
    const std::lock_guard lock(mutex_);
    asked_.erase(request);
    RequestQueue::Messages now;
    requests_.cancel(request, now);
    queue_unsent(now);
  }
  flush_unsent();
}

bool NodeLink::on_pulse() {
  if (is_watched_ && unanswered_ >= kPulses) {
    const std::string why = "it has given no sign of life for " + std::to_string(kPulses) + " s";
    log(LogLevel::kWarning, "this program's node hangs or is stopped: " + why);
    lost(why);
    return false;
  }
  ++unanswered_;
  tell(wire::Pulse{});
  return true;
}

bool NodeLink::on_answer(Message message) {
  auto decoded = wire::decode<wire::Answer>(message.body);
  if (!decoded) {
    lost("its answer does not decode: " + decoded.error().message());
    return false;
  }
  std::shared_ptr<CallState> state;
  {
    const std::lock_guard lock(mutex_);
    const auto at = asked_.find(decoded->request);
    if (at == asked_.end()) return true;  // it was cancelled, and the node will hear of it
    state = std::move(at->second);
    asked_.erase(at);
    if (!message.fds.empty()) answered_fds_.emplace(decoded->request, std::move(message.fds));
    RequestQueue::Messages now;
    requests_.answered(decoded->request, now);
    queue_unsent(now);
  }
  flush_unsent();
  state->resolve(decoded->ok ? Outcome(std::move(decoded->value)) : Outcome(std::move(decoded->error)));
  return true;
}

void NodeLink::lost(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) return;
    lost_ = "node " + to_string(self_.node) + ": " + (why.empty() ? "it closed the link" : why);
  }
  if (handlers_.on_losing) handlers_.on_losing(lost_);
  give_up(lost_);
  handlers_.on_lost(lost_);
}

void NodeLink::give_up(const std::string& why) {
  decltype(asked_) asked;
  {
    const std::lock_guard lock(mutex_);
    if (lost_.empty()) lost_ = why;
    asked.swap(asked_);
    requests_.clear();
  }
  for (const auto& [number, state] : asked) state->resolve(node_gone(lost_));
}

}  // namespace troupe
