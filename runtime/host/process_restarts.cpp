// Calls of actors that are started again when they die.
#include "runtime/core/log.hpp"
#include "runtime/host/process.hpp"

namespace troupe {

std::unique_ptr<ActorDirectory> Process::make_directory() {
  ActorDirectory::Floor floor;
  floor.ask = [this](ActorId actor) { node_->tell(wire::ResolveAsk{actor}); };
  floor.send = [this](const auto& call, ProcessAddress to) { return send_moving(call, to); };
  floor.take_sent = [this](ActorId actor, ProcessAddress but) {
    std::vector<ActorDirectory::Call> taken;
    const auto sent = calls_.take_where([&](const PendingCall& call) {
      return call.moving != nullptr && call.to.actor == actor && call.to.home() != but;
    });
    for (const auto& call : sent) taken.push_back(call.moving);
    return taken;
  };
  floor.resume_later = [this](ActorId actor) {
    later(kAgain, [this, actor] {
      if (!ending_) directory_->resume(actor);
    });
  };
  floor.resolve = [this](std::shared_ptr<CallState> state, ErrorInfo error) {
    later(Duration::zero(), [state = std::move(state), error = std::move(error)] { state->resolve(error); });
  };
  floor.notify = [this](OnDeath callback, Death death) {
    later(Duration::zero(), [this, callback = std::move(callback), death = std::move(death)] {
      if (!ending_) callback(death);
    });
  };
  return std::make_unique<ActorDirectory>(std::move(floor));
}

/// Its node repeats it until the head has written it down: a life that ends meanwhile has no next one.
void Process::kill_for_good(const ActorAddress& actor, std::string reason) {
  const auto asked = node_->ask(
      [&](std::uint64_t request) {
        return wire::KillAsk{actor, std::move(reason), request};
      },
      rings_.get());
  asked.state->on_ready([this, state = asked.state, id = actor.actor] {
    if (state->outcome().ok() || ending_) return;
    log(LogLevel::kError,
        "actor " + to_string(id) + " was not killed: " + state->outcome().error().message());
  });
}

Result<void> Process::send_moving(const std::shared_ptr<MovingCall>& call, ProcessAddress to) {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCall;
  header.flags = call->state == nullptr    ? wire::kFlagOneWay
                 : call->args.kept.empty() ? std::uint8_t{0}
                                           : wire::kFlagReferences;
  header.to = to;
  header.from = address();
  header.job = config_.job;
  header.actor = call->actor;
  header.method = call->method;
  const std::size_t bytes = wire::kHeaderBytes + call->args.bytes.size();
  if (call->state != nullptr) {
    header.id = calls_.add(
        {call->state, wire::FrameKind::kCall, {to.node, to.process, call->actor}, bytes, call, call->method});
  }
  const auto sent = routes_->send(header, call->args.bytes);
  if (sent || call->state == nullptr) return sent;
  // Else it has failed meanwhile, with what it was sent to.
  return calls_.take(header.id, to) ? sent : Result<void>();
}

}  // namespace troupe
