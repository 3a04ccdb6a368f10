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
    taken.reserve(sent.size());
    for (const auto& call : sent) taken.push_back(call.moving);
    return taken;
  };
  floor.resume_later = [this](ActorId actor) {
    later(kAgain, [this, actor] {
      if (!ending_) directory_->resume(actor);
    });
  };
  floor.resolve = [this](std::shared_ptr<CallState> state, const ErrorInfo& error) {
    fail_later({std::move(state)}, error);
  };
  floor.notify = [this](OnDeath callback, Death death) {
    later(Duration::zero(), [this, callback = std::move(callback), death = std::move(death)] {
      if (!ending_) callback(death);
    });
  };
  return std::make_unique<ActorDirectory>(std::move(floor));
}

/// Its node repeats it until the head has written it down: a life that ends meanwhile has no next one. When
/// the node dies first, a driver says it at its next place.
void Process::kill_for_good(const ActorAddress& actor, std::string reason) {
  const auto asked = node_->ask(
      [&](std::uint64_t request) {
        return wire::KillAsk{actor, reason, request};
      },
      rings_.get());
  asked.state->on_ready([this, state = asked.state, actor, reason = std::move(reason)] {
    if (state->outcome().ok() || ending_) return;
    const ErrorInfo& why = state->outcome().error();
    if (why.code == ErrorCode::kUnavailable && handlers_.on_kill_lost)
      return handlers_.on_kill_lost(actor, reason);
    log(LogLevel::kError, "actor " + to_string(actor.actor) + " was not killed: " + why.message());
  });
}

/// Of an actor of this process: its node keeps what it saves, or the process that spawned it.
class Process::Keeper final : public StateKeeper {
 public:
  Keeper(Process& process, wire::StartActorHere& start)
      : process_(process),
        actor_(start.actor),
        incarnation_(start.incarnation),
        owner_(start.owner),
        is_kept_by_node_(start.is_kept),
        state_(std::move(start.state)) {}

  std::shared_ptr<CallState> last() override {
    auto last = std::make_shared<CallState>(nullptr);
    if (is_kept_by_node_ || incarnation_ == 1) {
      last->resolve(wire::encode(std::exchange(state_, std::nullopt)));
    } else {
      process_.ask_owner(owner_, kLastState, wire::encode(StateOfLife{actor_, incarnation_}), last);
    }
    return last;
  }
  std::shared_ptr<CallState> keep(wire::Bytes state) override {
    if (is_kept_by_node_) {
      return process_.node_
          ->ask(
              [&](std::uint64_t request) {
                return wire::SaveAsk{request, actor_, std::move(state)};
              },
              process_.rings_.get())
          .state;
    }
    auto kept = std::make_shared<CallState>(nullptr);
    process_.ask_owner(owner_, kKeepState, wire::encode(StateOfLife{actor_, incarnation_, std::move(state)}),
                       kept);
    return kept;
  }

 private:
  Process& process_;
  const ActorId actor_;
  const std::uint32_t incarnation_;
  const ProcessAddress owner_;
  const bool is_kept_by_node_;
  std::optional<wire::Bytes> state_;  ///< of the life before
};

std::shared_ptr<StateKeeper> Process::keeper_of(wire::StartActorHere& start) {
  if (!start.is_kept && !start.owner.process) return nullptr;
  return std::make_shared<Keeper>(*this, start);
}

/// A link that broke is waited for. Without its owner an actor has no other life: there is nothing to keep.
void Process::ask_owner(ProcessAddress owner, std::uint64_t operation, wire::Bytes body,
                        std::shared_ptr<CallState> answer) {
  const auto asked = send_call(wire::FrameKind::kCall, {owner.node, owner.process, {}}, operation, body);
  asked->on_ready([this, asked, owner, operation, body = std::move(body), answer]() mutable {
    const Outcome& outcome = asked->outcome();
    const bool is_gone = !outcome.ok() && outcome.error().code == ErrorCode::kActorDied;
    const bool broke = !outcome.ok() && outcome.error().code == ErrorCode::kUnavailable;
    if (is_gone && operation == kKeepState) {
      answer->resolve(wire::Bytes{});
    } else if (!outcome.ok() && outcome.error().code == ErrorCode::kRefused) {
      ErrorInfo ended = outcome.error();  // to its callers this life has ended
      ended.code = ErrorCode::kActorDied;
      answer->resolve(std::move(ended));
    } else if (!broke || ending_ || left_ != 0) {
      answer->resolve(outcome);
    } else {
      later(kAgain, [this, owner, operation, body = std::move(body), answer]() mutable {
        ask_owner(owner, operation, std::move(body), answer);
      });
    }
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
  auto sent = routes_->send(header, call->args.bytes);
  if (sent || call->state == nullptr) return sent;
  // Else it has failed meanwhile, with what it was sent to.
  return calls_.take(header.id, to) ? sent : Result<void>();
}

// When a driver has another node, or gets none.

void Process::give_back() {
  node_->stop();
  rings_->begin_stop();
  objects_->end_threads();
}

void Process::no_other_node(const ErrorInfo& why) {
  const std::string text = "its program gets no other one: " + why.message();
  const auto gone = [&](std::string what) { return own_node_gone(std::move(what), text, kStartAgain); };
  tasks_->close(gone("a task has no answer"));
  directory_->close(gone("a call has no answer"));
  routes_->own_node_lost(gone("a call was not sent"));
  objects_->no_other_node(text);
}

}  // namespace troupe
