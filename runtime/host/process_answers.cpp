// Answers that are too large for a message: they go as objects.
#include "runtime/host/may_wait.hpp"
#include "runtime/host/process.hpp"
#include "runtime/objects/object_messages.hpp"

namespace troupe {

namespace {

/// With their names they fit a message beside an answer that is small.
constexpr std::size_t kMostReferences = 100'000;

ErrorInfo too_many_references(std::size_t count) {
  return {ErrorCode::kLimit, "an answer is too large",
          "it refers to " + std::to_string(count) + " objects, and " + std::to_string(kMostReferences) +
              " is the limit",
          "return them in several answers"};
}

}  // namespace

void Process::reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome, wire::Kept refers_to) {
  if (is_in_child()) return;  // the answer is the parent's to give
  if (!outcome.ok() || refers_to.empty()) return give_answer(to, call, outcome, {});
  if (refers_to.size() > kMostReferences) return send_reply(to, call, too_many_references(refers_to.size()));
  give_answer(to, call, outcome, refers_to);
  objects_->hand_over(std::move(refers_to), to, call);
}

/// With the names of what it refers to behind it.
void Process::give_answer(ProcessAddress to, std::uint64_t call, const Outcome& outcome,
                          const wire::Kept& refers_to) {
  const auto send = [&](wire::Bytes body, std::uint8_t flags) {
    objects::append_names(body, refers_to);
    send_reply(to, call, std::move(body), static_cast<std::uint8_t>(flags | wire::kFlagReferences));
  };
  const std::size_t names = refers_to.size() * sizeof(objects::ObjectName) + sizeof(std::uint32_t);
  const std::size_t most = thread_may_wait() ? objects::kInlineBytes : wire::kMaxBodyBytes - names;
  if (!outcome.ok() || outcome->size() <= most)
    return refers_to.empty() ? send_reply(to, call, outcome) : send(*outcome, 0);
  try {
    const auto object = objects_->put(wire::ByteView(*outcome));
    objects_->offer_answer(object, to);
    auto name = wire::encode(object->name());
    if (!refers_to.empty()) return send(std::move(name), objects::kFlagAnswerInObject);
    send_reply(to, call, std::move(name), objects::kFlagAnswerInObject);
  } catch (const Error& error) {
    ErrorInfo info = error.info();
    info.what = "an answer is too large: " + info.what;
    send_reply(to, call, info);
  }
}

/// A responder's answer goes through reply(), which would make objects of it.
Responder Process::answer_as_it_is(const wire::FrameHeader& header) {
  const auto answer = std::make_shared<CallState>(nullptr);
  // Callbacks of callbacks run later: it is kept until then.
  answer->on_ready([this, state = answer, to = header.from, id = header.id] {
    if (!is_in_child()) send_reply(to, id, state->outcome());
  });
  return Responder(answer);
}

void Process::decline_answer(const Message& message) {
  const auto name = wire::decode<objects::ObjectName>(message.body);
  if (name && name->owner == message.header.from) objects_->hold(*name);  // and drop it
}

void Process::answer_in_object(PendingCall call, const Message& message, wire::Kept refers_to) {
  const auto name = wire::decode<objects::ObjectName>(message.body);
  if (!name || name->owner != message.header.from) {
    call.state->resolve(ErrorInfo{ErrorCode::kBadInput, "refused an answer",
                                  "it is no object of who was called", "both must run the same executable"});
    return;
  }
  if (call.state->ready()) return decline_answer(message);
  objects_->take(*name,
                 [this, call = std::move(call), refers_to = std::move(refers_to)](Outcome outcome) mutable {
                   // Another life has an answer; one that this node has no room for would be computed again
                   // without end.
                   const bool is_lost = !outcome.ok() && (outcome.error().code == ErrorCode::kActorDied ||
                                                          outcome.error().code == ErrorCode::kUnavailable);
                   if (is_lost && call.moving != nullptr)
                     return directory_->failed(call.moving, call.to.home(), outcome.error());
                   call.state->resolve(std::move(outcome), std::move(refers_to));
                 });
}

}  // namespace troupe
