#include "runtime/host/responder.hpp"

#include "runtime/host/actor_context.hpp"
#include "runtime/host/process_gate.hpp"

namespace troupe {
namespace {

wire::Bytes joined(wire::ByteView head, wire::ByteView rest) {
  wire::Bytes all;
  all.reserve(head.size() + rest.size());
  all.insert(all.end(), head.begin(), head.end());
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

}  // namespace

void ProcessGate::reply_parts(ProcessAddress to, std::uint64_t call, wire::ByteView head,
                              wire::ByteView rest) {
  reply(to, call, joined(head, rest), {});
}

void ProcessGate::resolve(const std::shared_ptr<CallState>& call, Outcome outcome, wire::Kept refers_to) {
  call->resolve(std::move(outcome), std::move(refers_to));
}

void Responder::outcome(Outcome outcome, wire::Kept refers_to) {
  const auto local = std::exchange(local_, nullptr);
  ProcessGate* gate = std::exchange(gate_, nullptr);
  if (local == nullptr && gate == nullptr) return;
  if (local == nullptr) return gate->reply(to_, call_, outcome, std::move(refers_to));
  if (gate != nullptr) return gate->resolve(local, std::move(outcome), std::move(refers_to));
  local->resolve(std::move(outcome), std::move(refers_to));
}

void Responder::comes_with(const std::shared_ptr<CallState>& other) {
  if (local_ != nullptr) local_->set_parts({other}, 1);
}

void Responder::passes_on(CallState& answer) const {
  if (local_ != nullptr) answer.passes_on_to(local_);
}

std::shared_ptr<CallState> Responder::caller() const {
  auto at = local_;
  while (at != nullptr) {
    auto next = at->passes_to();
    if (next == nullptr) break;
    at = std::move(next);
  }
  return at;
}

void Responder::answer_parts(wire::ByteView head, wire::ByteView rest) {
  if (local_ == nullptr && gate_ != nullptr)
    return std::exchange(gate_, nullptr)->reply_parts(to_, call_, head, rest);
  answer(joined(head, rest));
}

Responder::~Responder() {
  if (local_ == nullptr && gate_ == nullptr) return;
  const ActorContext* actor = current_actor();
  const std::string* why = actor == nullptr ? nullptr : actor->ended();
  fail({ErrorCode::kActorDied, "the actor is gone",
        "it ended before it answered" + (why == nullptr ? "" : ": " + *why),
        "spawn it again, or monitor it to be told"});
}

namespace detail {

void answer_later(const std::shared_ptr<CallState>& state, Responder responder, std::string_view name) {
  if (state == nullptr) {
    return responder.fail({ErrorCode::kTaskFailed, std::string(name) + " gave no answer",
                           "it returned a default-constructed Future, behind which there is no call",
                           "return what call() or Promise::future() gave"});
  }
  responder.comes_with(state);  // before it looks: of two that wait for each other one sees both
  if (const auto caller = responder.caller(); caller != nullptr && state->needs(*caller)) {
    return responder.fail({ErrorCode::kBadConfig, std::string(name) + " gave no answer",
                           "it returned the Future of its own call, or one that waits for that",
                           "return the value, or the Future of a call that ends without this one"});
  }
  state->on_ready([state, name, later = std::make_shared<Responder>(std::move(responder))] {
    Outcome outcome = state->outcome();
    // The death of another actor: it is not to be taken for the death of this one.
    const bool died = !outcome.ok() && outcome.error().code == ErrorCode::kActorDied;
    if (died && outcome.error().origin.empty()) {
      ErrorInfo error = outcome.error();
      error.origin = name;
      outcome = std::move(error);
    }
    later->outcome(std::move(outcome), state->refers_to());
  });
}

}  // namespace detail
}  // namespace troupe
